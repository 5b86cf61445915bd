"""``holdfast relay undelivered``: events that no receiver has accepted, with their errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import options, output
from holdfast.cli.formatting import ago
from holdfast.cli.output import Column
from holdfast.cli.root import FAILED
from holdfast.cli.session import Session, in_session
from holdfast.errors import InputError

if TYPE_CHECKING:
    from holdfast.views.undelivered import Redelivering, UndeliveredList, UndeliveredView

undelivered = options.group("List events that no receiver has accepted, and deliver them again.")

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

    async def work(session: Session) -> UndeliveredList:
        from holdfast.views.undelivered import UndeliveredList

        operations = await session.operations(queue)
        page = await operations.undelivered.list(
            queue=queue or "", run_id=run, sink=sink, limit=limit, cursor=cursor
        )
        # A page may be short, or empty, and yet not the last.
        while page.cursor and len(page.events) < limit:
            more = await operations.undelivered.list(
                queue=queue or "", run_id=run, sink=sink, limit=limit - len(page.events), cursor=page.cursor
            )
            page = UndeliveredList(page.events + more.events, more.cursor)
        return page

    page = in_session(options.read_settings(config), work)
    if json:
        output.as_it_is(page)
        return
    output.table(_COLUMNS, [_row(event) for event in page.events], empty="no undelivered events")
    if page.cursor:
        output.note(f"more: --cursor {page.cursor}")


def _row(event: UndeliveredView) -> tuple[str, ...]:
    error = f"delivered again soon; {event.error}" if event.redelivering else event.error
    number = str(event.sequence) if event.sequence else ""
    return (event.run_id, number, event.type, event.sink, event.queue, ago(event.at), error)


@undelivered.command("redeliver")
def redeliver(
    everything: Annotated[bool, typer.Option("--all", help="All undelivered events.")] = False,
    queue: options.AnyQueue = None,
    run: OfRun = "",
    sink: OfSink = "",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Deliver undelivered events again, in order per run. Each is listed until its receiver accepts it."""
    _check(sink)
    if not (everything or run or sink):
        raise InputError("name --run RUN, --sink SINK, or --all for all undelivered events")

    async def work(session: Session) -> Redelivering:
        operations = await session.operations(queue)
        return await operations.undelivered.redeliver(
            queue=queue or "", run_id=run, sink=sink, everything=everything
        )

    started = in_session(options.read_settings(config), work)
    if json:
        output.as_it_is(started)
    else:
        if started.queued or not started.refused:
            queued = f"{started.queued} events are delivered again"
            output.line(queued if started.queued else "no undelivered events")
        for problem in dict.fromkeys(started.refused.values()):
            output.note(problem)
    if started.refused:
        raise typer.Exit(FAILED)


def _check(sink: str) -> None:
    if sink and sink not in _SINKS:
        raise InputError(f"--sink must be one of {', '.join(_SINKS)}, got {sink!r}")
