"""The HTTP API: accepting runs, beside an empty FastAPI route, and events that reach many clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import tempfile
import time
from typing import TYPE_CHECKING

import psutil

from bench import harness
from bench.figures import Figure, Goal, median_of, percentile
from holdfast.runs.run import Submission

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from bench.harness import Child, Plan, Server

_CONNECTIONS = 16
_CLIENTS = 500
_HOST = "Host: 127.0.0.1"
_BODY = json.dumps({"agent_id": "noop", "input": {"n": 1}}).encode()


async def measure(plan: Plan) -> list[Figure]:
    count = plan.pick(6_000, 600)
    empty, ours = [], []
    for _ in range(plan.pick(5, 1)):
        async with _empty_api() as port:
            empty.append(await _rate(port, count))
        async with harness.server() as on, _our_api(on) as (port, _):
            ours.append(await _rate(port, count))
        plan.say(f"POST /execute: empty route {empty[-1]:,.0f}/s, holdfast {ours[-1]:,.0f}/s")
    figures = [median_of("POST /execute", "runs/s", ours, empty, Goal(">=", 0.5, "ratio"))]
    return figures + await _streams(plan)


# -- accepting


async def _rate(port: int, count: int) -> float:
    await _posts(port, count // 10)
    began = time.perf_counter()
    await asyncio.gather(*(_posts(port, count // _CONNECTIONS) for _ in range(_CONNECTIONS)))
    return count // _CONNECTIONS * _CONNECTIONS / (time.perf_counter() - began)


async def _posts(port: int, count: int) -> None:
    """Requests one after the other on one connection, as a pool of a client would send them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    kind = f"Content-Type: application/json\r\nContent-Length: {len(_BODY)}"
    request = f"POST /execute HTTP/1.1\r\n{_HOST}\r\n{kind}\r\n\r\n".encode() + _BODY
    for _ in range(count):
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 202"), answer
        length = next(line for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length"))
        await reader.readexactly(int(length.partition(b":")[2]))
    writer.close()


# -- streaming


async def _streams(plan: Plan) -> list[Figure]:
    """Many clients follow runs of their own; an event of each is waited for at the client."""
    clients, rounds = plan.pick(_CLIENTS, 50), plan.pick(10, 2)
    async with harness.server() as on, on.queue() as queue, _our_api(on) as (port, child):
        before = _rss(child)
        tickets = await queue.submit_many([Submission(agent="noop", input=1) for _ in range(clients)])
        runs = [ticket.run_id for ticket in tickets if not isinstance(ticket, Exception)]
        sent: dict[str, float] = {}
        ages: list[float] = []
        followers = [asyncio.create_task(_follow(port, run_id, sent, ages)) for run_id in runs]
        await harness.until(lambda: _all_open(followers, sent, clients), 60)
        after = _rss(child)
        for _ in range(rounds):
            for run_id in runs:
                sent[run_id] = time.perf_counter()
                data = json.dumps({"at": sent[run_id]})
                await on.redis.xadd(queue.keys.feed(run_id), {"type": "tick", "data": data})
                await asyncio.sleep(0.002)
        await harness.until(lambda: _enough(ages, clients * rounds), 60)
        for follower in followers:
            follower.cancel()
        await asyncio.gather(*followers, return_exceptions=True)
    plan.say(
        f"{clients} event streams: p99 {1000 * percentile(ages, 0.99):.1f} ms, {after - before:.0f} MB more"
    )
    return [
        Figure(f"event to first byte, {clients} streams, p50", 1000 * percentile(ages, 0.5), "ms"),
        Figure(
            f"event to first byte, {clients} streams, p99",
            1000 * percentile(ages, 0.99),
            "ms",
            goal=Goal("<", 20),
        ),
        Figure(f"RSS that {clients} open streams add", after - before, "MB", goal=Goal("<", 100)),
    ]


async def _follow(port: int, run_id: str, sent: dict[str, float], ages: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        f"GET /runs/{run_id}/events HTTP/1.1\r\n{_HOST}\r\nAccept: text/event-stream\r\n\r\n".encode()
    )
    try:
        async for line in reader:
            if line.startswith(b"event: submitted"):
                sent[run_id] = 0.0
            elif line.startswith(b"data:") and b'"at":' in line:
                ages.append(time.perf_counter() - json.loads(line[5:])["at"])
    finally:
        writer.close()


async def _all_open(followers: list[asyncio.Task[None]], sent: dict[str, float], clients: int) -> bool:
    for follower in followers:
        if follower.done():
            follower.result()
            raise RuntimeError("an event stream ended by itself")
    return len(sent) == clients


async def _enough(ages: list[float], count: int) -> bool:
    return len(ages) >= count


# -- processes


@contextlib.asynccontextmanager
async def _empty_api() -> AsyncIterator[int]:
    port = _free_port()
    words = ("-m", "uvicorn", "bench.emptyapi:app", "--port", str(port), "--log-level", "critical")
    async with harness.Child.of(*words, "--no-access-log", cwd=harness.HERE.parent):
        await harness.until(lambda: _listens(port), 20)
        yield port


@contextlib.asynccontextmanager
async def _our_api(on: Server) -> AsyncIterator[tuple[int, Child]]:
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="hfbench") as cwd:
        words = ("-m", "holdfast", "api", "--port", str(port))
        environ = {"REDIS_URL": on.url, "LOG_LEVEL": "WARNING"}
        async with harness.Child.of(*words, cwd=cwd, **environ) as child:
            await harness.until(lambda: _listens(port), 20)
            yield port, child


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _rss(child: Child) -> float:
    return psutil.Process(child.process.pid).memory_info().rss / 2**20
