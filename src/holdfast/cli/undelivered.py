"""``holdfast relay undelivered``: the events that no receiver took, with their reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from holdfast.cli import options, output
from holdfast.cli.output import Column
from holdfast.cli.root import FAILED
from holdfast.cli.station import Station, at_station
from holdfast.cli.wording import ago
from holdfast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.events.undelivered import GivenUp, Undelivered

undelivered = options.group("Events that no receiver took: list them, deliver them again.")

OfRun = Annotated[str, typer.Option("--run", metavar="RUN", help="Only events of this run.")]
OfSink = Annotated[
    str, typer.Option("--sink", metavar="SINK", help="Only events for this sink: eventapi, webhook or push.")
]

_SINKS = ("eventapi", "webhook", "push")
_COLUMNS = (
    Column("RUN"),
    Column("EVENT", number=True),
    Column("TYPE", free=True),
    Column("SINK"),
    Column("QUEUE", free=True),
    Column("GIVEN UP"),
    Column("ERROR", free=True),
)


@undelivered.command("list")
def list_undelivered(
    queue: options.AnyQueue = None,
    run: OfRun = "",
    sink: OfSink = "",
    limit: options.Limit = 20,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List undelivered events, newest first."""
    _check(sink)

    async def work(station: Station) -> tuple[list[tuple[str, GivenUp]], bool]:
        found: list[tuple[str, GivenUp]] = []
        more = False
        async for name, each in _places(station, queue):
            events, rest = await _newest(each, limit, run, sink)
            found += [(name, event) for event in events]
            more = more or rest
        found.sort(key=lambda one: -one[1].at)
        return found[:limit], more or len(found) > limit

    found, more = at_station(options.read_settings(config), work)
    if json:
        events = [{**msgspec.to_builtins(event), "queue": name} for name, event in found]
        output.document({"events": events, "more": more})
        return
    output.table(_COLUMNS, [_row(name, event) for name, event in found], empty="no undelivered events")
    if more:
        output.note("more: --limit, or --run, --sink and --queue for some of them")


async def _newest(undelivered: Undelivered, limit: int, run: str, sink: str) -> tuple[list[GivenUp], bool]:
    """The newest events that are asked for, and whether there may be more."""
    page = await undelivered.list(limit=limit, run_id=run, sink=sink)
    events = page.events
    # A page may be short, or empty, and yet not the last.
    while page.cursor and len(events) < limit:
        page = await undelivered.list(limit=limit - len(events), cursor=page.cursor, run_id=run, sink=sink)
        events = events + page.events
    return events, bool(page.cursor)


def _row(queue: str, event: GivenUp) -> tuple[str, ...]:
    error = f"delivered again soon; {event.error}" if event.redelivering else event.error
    number = str(event.sequence) if event.sequence else ""
    return (event.run_id, number, event.type, event.sink, queue, ago(event.at), error)


@undelivered.command("redeliver")
def redeliver(
    everything: Annotated[bool, typer.Option("--all", help="All undelivered events.")] = False,
    queue: options.AnyQueue = None,
    run: OfRun = "",
    sink: OfSink = "",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Have relays deliver undelivered events again, in order per run. Each is listed until it is taken."""
    _check(sink)
    if not (everything or run or sink):
        raise InputError("name --run RUN, --sink SINK, or --all for all undelivered events")

    async def work(station: Station) -> tuple[int, dict[str, str]]:
        from holdfast.events.undelivered import served_sinks

        queued, refused = 0, dict[str, str]()
        async for name, each in _places(station, queue):
            served = await served_sinks(station.members(), station.redis, name)
            result = await each.redeliver(run_id=run, sink=sink, served=served)
            queued += result.queued
            refused |= result.refused
        return queued, refused

    queued, refused = at_station(options.read_settings(config), work)
    if json:
        output.document({"queued": queued, "refused": refused})
    else:
        if queued or not refused:
            output.line(f"{queued} events are delivered again" if queued else "no undelivered events")
        for problem in dict.fromkeys(refused.values()):
            output.note(problem)
    if refused:
        raise typer.Exit(FAILED)


async def _places(station: Station, queue: str | None) -> AsyncIterator[tuple[str, Undelivered]]:
    """The undelivered events of each partition, with the queue's name."""
    from holdfast.events.undelivered import Undelivered

    queues = [await station.queue(queue)] if queue is not None else station.queues()
    for each in queues:
        for partition in await each.all_partitions():
            yield each.name, Undelivered(partition.keys, partition.redis)


def _check(sink: str) -> None:
    if sink and sink not in _SINKS:
        raise InputError(f"--sink must be one of {', '.join(_SINKS)}, got {sink!r}")
