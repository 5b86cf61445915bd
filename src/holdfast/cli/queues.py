"""``holdfast queues``: how much work there is, and the gate in front of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import options, output
from holdfast.cli.output import Column
from holdfast.cli.root import COMMANDS
from holdfast.cli.station import Station, at_station
from holdfast.cli.wording import moment, span

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from holdfast.runs.partition import Depth
    from holdfast.runs.queue import RunQueue

queues = options.group(COMMANDS["queues"])

QueueName = Annotated[
    str | None, typer.Argument(metavar="QUEUE", help="The queue, if it is not the default one.")
]

_COLUMNS = (
    Column("QUEUE", free=True),
    Column("GATE"),
    Column("DEPTH", number=True),
    Column("WAITING", number=True),
    Column("PENDING", number=True),
    Column("DELAYED", number=True),
    Column("DEAD", number=True),
    Column("OLDEST", number=True),
    Column("WORKERS", number=True),
)


def add_to(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(queues, name="queues")


@dataclass(frozen=True, kw_only=True)
class QueueState:
    """A queue as it is now: the fields of ``GET /queues/{name}``, and each of its partitions."""

    name: str
    mode: str
    reason: str
    since: float
    depth: int
    undelivered: int
    pending: int
    delayed: int
    dead: int
    oldest_seconds: float
    workers: int
    partitions: int
    streams: list[PartitionState]
    settings: Any = None


@dataclass(frozen=True)
class PartitionState:
    """One partition as it is now: the key of its stream, its slot in a cluster, and its work."""

    stream: str
    slot: int
    depth: Depth


@queues.command("list")
def list_queues(json: options.Json = False, config: options.Config = None) -> None:
    """List the configured queues."""

    async def work(station: Station) -> list[QueueState]:
        serving = await station.members().serving(station.redis)
        return [await _state(queue, serving) for queue in station.queues()]

    states = at_station(options.read_settings(config), work)
    if json:
        output.document({"queues": states})
    else:
        output.table(_COLUMNS, [_row(state) for state in states], empty="no queues")


@queues.command("show")
def show_queue(name: QueueName = None, json: options.Json = False, config: options.Config = None) -> None:
    """Show one queue: its work, its gate and its settings."""

    async def work(station: Station) -> QueueState:
        queue = await station.queue(name)
        serving = await station.members().serving(station.redis)
        return replace(await _state(queue, serving), settings=queue.settings)

    state = at_station(options.read_settings(config), work)
    if json:
        output.document(state)
    else:
        output.record(_fields(state))


async def _state(queue: RunQueue, serving: Counter[str]) -> QueueState:
    from holdfast.config.checks import key_slot
    from holdfast.runs.partition import partition_depths
    from holdfast.runs.queue import together

    partitions = await queue.all_partitions()
    depths = await partition_depths(queue.redis, partitions)
    depth = together(depths)
    streams = [partition.keys.stream for partition in partitions]
    gate = await queue.gate()
    return QueueState(
        name=queue.name,
        mode=gate.mode,
        reason=gate.reason,
        since=gate.since,
        depth=depth.depth,
        undelivered=depth.undelivered,
        pending=depth.pending,
        delayed=depth.delayed,
        dead=depth.dead,
        oldest_seconds=depth.oldest_seconds,
        workers=serving[queue.name],
        partitions=len(queue.partitions),
        streams=[
            PartitionState(stream, key_slot(stream), depth)
            for stream, depth in zip(streams, depths, strict=True)
        ],
    )


def _row(state: QueueState) -> tuple[str, ...]:
    counts = (state.depth, state.undelivered, state.pending, state.delayed, state.dead)
    oldest = span(state.oldest_seconds) if state.oldest_seconds else ""
    return (state.name, state.mode, *map(str, counts), oldest, str(state.workers))


def _fields(state: QueueState) -> list[tuple[str, str]]:
    settings = state.settings
    since = f" since {moment(state.since)}" if state.since else ""
    return [
        ("queue", state.name),
        ("gate", f"{state.mode}{since}{': ' + state.reason if state.reason else ''}"),
        ("depth", f"{state.depth} ({state.undelivered} waiting, {state.pending} pending)"),
        ("delayed", str(state.delayed)),
        ("dead", str(state.dead)),
        ("oldest", span(state.oldest_seconds) if state.oldest_seconds else "nothing waits"),
        ("workers", str(state.workers)),
        ("group", settings.group),
        ("slots", f"{settings.slots} per worker"),
        ("timeout", span(settings.timeout_seconds)),
        ("attempts", f"{settings.max_attempts} at most"),
        ("max depth", str(settings.max_depth)),
        ("retention", span(settings.retention_seconds)),
        ("partitions", "\n".join(map(_partition, state.streams)) if len(state.streams) > 1 else ""),
    ]


def _partition(state: PartitionState) -> str:
    depth = state.depth
    held = f"{depth.undelivered} waiting, {depth.pending} pending, {depth.delayed} delayed, {depth.dead} dead"
    return f"{state.stream} (slot {state.slot}): {held}"


@queues.command("pause")
def pause_queue(
    name: QueueName = None,
    reason: options.Reason = "",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Take no new runs and start none; what runs goes on."""
    _set_gate(name, lambda queue: queue.pause(reason), json=json, config=config)


@queues.command("drain")
def drain_queue(
    name: QueueName = None,
    reason: options.Reason = "",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Take no new runs, but work off those that are there."""
    _set_gate(name, lambda queue: queue.drain(reason), json=json, config=config)


@queues.command("resume")
def resume_queue(name: QueueName = None, json: options.Json = False, config: options.Config = None) -> None:
    """Open a paused or draining queue again."""
    _set_gate(name, lambda queue: queue.resume(), json=json, config=config)


def _set_gate(
    name: str | None, change: Callable[[RunQueue], Awaitable[None]], *, json: bool, config: Path | None
) -> None:
    async def work(station: Station) -> QueueState:
        queue = await station.queue(name)
        await change(queue)
        return await _state(queue, await station.members().serving(station.redis))

    state = at_station(options.read_settings(config), work)
    if json:
        output.document(state)
    else:
        output.line(f"{state.name} {state.mode}")
