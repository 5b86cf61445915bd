"""``holdfast queues``: how much work there is, and the gate in front of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import options, output
from holdfast.cli.formatting import moment, span
from holdfast.cli.output import Column
from holdfast.cli.root import COMMANDS
from holdfast.cli.session import Session, in_session

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from holdfast.operations.queues import QueueOperations
    from holdfast.views.queues import PartitionView, QueueDetail, QueueList, QueueView

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


@queues.command("list")
def list_queues(json: options.Json = False, config: options.Config = None) -> None:
    """List the configured queues."""

    async def work(session: Session) -> QueueList:
        return await (await session.operations()).queues.list()

    found = in_session(options.read_settings(config), work)
    if json:
        output.as_it_is(found)
    else:
        output.table(_COLUMNS, [_row(each) for each in found.queues], empty="no queues")


@queues.command("show")
def show_queue(name: QueueName = None, json: options.Json = False, config: options.Config = None) -> None:
    """Show one queue: its work, its gate and its settings."""

    async def work(session: Session) -> QueueDetail:
        return await (await session.operations(name)).queues.get(name or "")

    queue = in_session(options.read_settings(config), work)
    if json:
        output.as_it_is(queue)
    else:
        output.record(_fields(queue))


def _row(state: QueueView) -> tuple[str, ...]:
    counts = (state.depth, state.undelivered, state.pending, state.delayed, state.dead)
    oldest = span(state.oldest_seconds) if state.oldest_seconds else ""
    return (state.name, state.mode, *map(str, counts), oldest, str(state.workers))


def _fields(state: QueueDetail) -> list[tuple[str, str]]:
    settings: dict[str, Any] = state.settings
    since = f" since {moment(state.since)}" if state.since else ""
    return [
        ("queue", state.name),
        ("gate", f"{state.mode}{since}{': ' + state.reason if state.reason else ''}"),
        ("depth", f"{state.depth} ({state.undelivered} waiting, {state.pending} pending)"),
        ("delayed", str(state.delayed)),
        ("dead", str(state.dead)),
        ("oldest", span(state.oldest_seconds) if state.oldest_seconds else "-"),
        ("longest attempt", _longest_attempt(state)),
        ("length", f"{state.length} {'entry' if state.length == 1 else 'entries'} in its streams"),
        ("workers", str(state.workers)),
        ("idlest consumer", _idlest_consumer(state)),
        ("group", settings["group"]),
        ("slots", f"{settings['slots']} per worker"),
        ("timeout", span(settings["timeout_seconds"])),
        ("attempts", f"{settings['max_attempts']} at most"),
        ("max depth", str(settings["max_depth"])),
        ("retention", span(settings["retention_seconds"])),
        ("partitions", "\n".join(map(_partition, state.streams)) if len(state.streams) > 1 else ""),
    ]


def _longest_attempt(state: QueueDetail) -> str:
    seconds = state.longest_running_seconds
    return f"running for {span(seconds)}" if seconds else "none is running"


def _idlest_consumer(state: QueueDetail) -> str:
    some = any(each.depth.consumers for each in state.streams)
    return f"last seen {span(state.consumer_idle_seconds)} ago" if some else "no consumers"


def _partition(state: PartitionView) -> str:
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
    _set_gate(name, lambda queues: queues.pause(name or "", reason), json=json, config=config)


@queues.command("drain")
def drain_queue(
    name: QueueName = None,
    reason: options.Reason = "",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Take no new runs, but work off those that are there."""
    _set_gate(name, lambda queues: queues.drain(name or "", reason), json=json, config=config)


@queues.command("resume")
def resume_queue(name: QueueName = None, json: options.Json = False, config: options.Config = None) -> None:
    """Open a paused or draining queue again."""
    _set_gate(name, lambda queues: queues.resume(name or ""), json=json, config=config)


def _set_gate(
    name: str | None,
    change: Callable[[QueueOperations], Awaitable[QueueDetail]],
    *,
    json: bool,
    config: Path | None,
) -> None:
    async def work(session: Session) -> QueueDetail:
        return await change((await session.operations(name)).queues)

    state = in_session(options.read_settings(config), work)
    if json:
        output.as_it_is(state)
    else:
        output.line(f"{state.name} {state.mode}")
