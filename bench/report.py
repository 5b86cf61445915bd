"""How figures are shown: one table for the terminal and bench/report.md, all numbers in a JSON file."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import psutil

from bench import harness
from bench.figures import Figure, number

REPORT = Path(__file__).with_name("report.md")
RESULTS = Path(__file__).with_name("results.json")
_HEAD = ("what", "goal", "figure", "bare redis-py", "ratio", "")
_FLAGS = ("appendonly", "appendfsync", "save", "io-threads", "maxmemory")
_PACKAGES = ("holdfast", "redis", "hiredis", "msgspec", "uvloop")

Parts = Mapping[str, Sequence[Figure]]

ABOUT = f"""\
Written by `make bench`. Every figure is the median of its rounds, which alternate with those of the bare
redis-py calls on the same machine in the same run; a ratio is the median of the rounds' ratios. Every side of
every round has a fresh Valkey of its own on a unix socket. Workers are started by `python -m holdfast worker`
in processes of their own (on uvloop, their default; the bare calls are on asyncio unless a row says
otherwise), with {harness.SLOTS} slots and log level WARNING where it is about speed.

- drain: a no-op async agent, queued before the clock starts; bare = XREADGROUP COUNT 500, a task per entry,
  pipelined XACK + XDEL. CPU is that of the server (INFO cpu) and of the worker process, for each run.
- instructions: those of the server for a run that is claimed and settled in batches of 100, and for one of
  the bare loop, counted by callgrind: while the code is the same so are they, whatever else the machine does.
- partitions: the same runs of one queue, drained by two workers from a cluster of three servers; bare = one
  partition, so one of them does all. The busiest server's CPU for a run is what limits a queue.
- submit: bare = pipelined XADD of the same five fields, as many as one call of ours takes.
- latency: from before the submit in one process to the first line of the agent in another, open loop; bare =
  XADD and the drain's loop with blocking reads.
- recovery: SIGKILL at a random moment between two renewals; SIGTERM with `drain_seconds: 0`, since a run that
  may finish is not handed back.
- leases: what the renewal script takes in Redis, for one worker that holds them all.
- emit: every event is awaited before the next; bare = as many tasks, each awaiting its own XADD.
- http: bare = an empty FastAPI POST route under uvicorn, asked by the same client over 16 connections.
- steps: one after the other, each committed. relay: one relay process, a receiver in this one.
- schedules: bare = the two scripts alone, acquire a batch and complete it, from one process; nothing is run.
- hosts: residents that import pydantic, through gRPC; bare = the same resident by multiprocessing spawn, or,
  where the row says so, a fresh Ray actor of its class, ready when its constructor has returned; of gRPC
  Health, a server that has nothing else.
"""


async def conditions() -> dict[str, str]:
    """What the figures depend on; nothing that tells where they were made."""
    async with harness.server() as on:
        info = await on.redis.info("server")
        flags = [f"{name} {(await on.redis.config_get(name))[name] or '(off)'}" for name in _FLAGS]
    load = os.getloadavg()[0]
    memory = psutil.virtual_memory().total / 2**30
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "machine": f"{_cpu()}, {os.cpu_count()} cores, {memory:.0f} GB, load {load:.1f} before the start",
        "system": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "packages": ", ".join(f"{name} {version(name)}" for name in _PACKAGES),
        "server": f"{info.get('server_name', 'redis')} {info.get('valkey_version') or info['redis_version']}",
        "flags": ", ".join(flags),
    }


def table(figures: Sequence[Figure]) -> str:
    """A markdown table that can be read as it is."""
    rows = [_HEAD, *(_row(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines = [f"| {' | '.join(cells)} |" for cells in padded]
    rule = "|".join("-" * (width + 2) for width in widths)
    return "\n".join([lines[0], f"|{rule}|", *lines[1:]])


def _row(figure: Figure) -> tuple[str, ...]:
    return (
        figure.name,
        str(figure.goal or ""),
        f"{number(figure.value)} {figure.unit}",
        "" if figure.bare is None else f"{number(figure.bare)} {figure.unit}",
        "" if figure.ratio is None else f"{figure.ratio:.2f}",
        figure.verdict,
    )


def write_report(parts: Parts, seen: Mapping[str, str]) -> None:
    """Renew the sections of the parts that were measured; the others stay, each with its own date."""
    told = "\n".join(f"- {name}: {value}" for name, value in seen.items())
    sections = _sections(REPORT.read_text() if REPORT.exists() else "")
    for part, figures in parts.items():
        load = seen["machine"].rpartition(", ")[2]
        sections[part] = f"Measured {seen['date']}, {load}.\n\n{table(figures)}"
    tables = "\n\n".join(f"## {part}\n\n{section}" for part, section in sections.items())
    REPORT.write_text(f"# Speed and memory\n\n{ABOUT}\nThe last run:\n\n{told}\n\n{tables}\n")


def _sections(text: str) -> dict[str, str]:
    _, *parts = text.split("\n## ")
    return {name: body.strip() for name, _, body in (part.partition("\n") for part in parts)}


def write_results(path: Path, parts: Parts, seen: Mapping[str, str]) -> None:
    rows = {
        part: [dataclasses.asdict(figure) | {"verdict": figure.verdict} for figure in figures]
        for part, figures in parts.items()
    }
    path.write_text(json.dumps({"conditions": seen, "parts": rows}, indent=1) + "\n")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
