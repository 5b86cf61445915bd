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
    from collections.abc import AsyncIterator, Awaitable, Callable

    from holdfast.events.undelivered import GivenUp, Undelivered
    from holdfast.runs.paging import Slice

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
    cursor: Annotated[str, typer.Option("--cursor", help="Go on where a page ended.")] = "",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List undelivered events, newest first."""
    _check(sink)

    async def work(station: Station) -> tuple[list[tuple[str, GivenUp]], str]:
        from holdfast.runs.paging import merged, read_cursor, write_cursor

        sources = {
            f"{name}/{number}": _source(name, each, run, sink)
            async for name, number, each in _places(station, queue)
        }
        places = read_cursor(cursor, tuple(sources))
        found: list[tuple[str, GivenUp]] = []
        # A page may be short, or empty, and yet not the last.
        while places and len(found) < limit:
            found += await merged(sources, places, limit - len(found), lambda each: each[1].at)
        return found, write_cursor(places)

    found, following = at_station(options.read_settings(config), work)
    if json:
        events = [{**msgspec.to_builtins(event), "queue": name} for name, event in found]
        output.document({"events": events, "cursor": following})
        return
    output.table(_COLUMNS, [_row(name, event) for name, event in found], empty="no undelivered events")
    if following:
        output.note(f"more: --cursor {following}")


def _source(
    queue: str, undelivered: Undelivered, run: str, sink: str
) -> Callable[[str, int], Awaitable[Slice[tuple[str, GivenUp]]]]:
    async def fetch(cursor: str, limit: int) -> Slice[tuple[str, GivenUp]]:
        from holdfast.runs.paging import Slice

        page = await undelivered.list(limit=limit, cursor=cursor, run_id=run, sink=sink)
        return Slice([(queue, event) for event in page.events], page.cursor)

    return fetch


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
        async for name, _, each in _places(station, queue):
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


async def _places(station: Station, queue: str | None) -> AsyncIterator[tuple[str, int, Undelivered]]:
    """The undelivered events of each partition, with the queue's name and the partition's number."""
    from holdfast.events.undelivered import Undelivered

    queues = [await station.queue(queue)] if queue is not None else station.queues()
    for each in queues:
        for number, partition in enumerate(await each.all_partitions()):
            yield each.name, number, Undelivered(partition.keys, partition.redis)


def _check(sink: str) -> None:
    if sink and sink not in _SINKS:
        raise InputError(f"--sink must be one of {', '.join(_SINKS)}, got {sink!r}")
