"""``holdfast runs``: look at runs, cancel them, queue them again."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from holdfast.cli import options, output
from holdfast.cli.output import Column
from holdfast.cli.root import COMMANDS, FAILED
from holdfast.cli.station import Station, at_station
from holdfast.cli.wording import ago, compact, moment, span
from holdfast.errors import HoldfastError, InputError, NotFound, RedisUnavailable
from holdfast.runs.run import Run, Status, checked_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from holdfast.events.event import Event
    from holdfast.runs.past import Change
    from holdfast.runs.queue import Page, RunQueue

runs = options.group(COMMANDS["runs"])

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
RunIds = Annotated[list[str], typer.Argument(metavar="RUN", help="The runs' ids.")]

_COLUMNS = (
    Column("RUN"),
    Column("STATUS"),
    Column("AGENT", free=True),
    Column("QUEUE", free=True),
    Column("TRY", number=True, optional=True),
    Column("SUBMITTED"),
    Column("TOOK", number=True, optional=True),
)


_UNLISTED = {"input", "interrupt", "metadata", "result"}


def add_to(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(runs, name="runs")


@runs.command("list")
def list_runs(
    queue: options.AnyQueue = None,
    status: Annotated[Status | None, typer.Option("--status", help="Only runs with this status.")] = None,
    agent: Annotated[str, typer.Option("--agent", metavar="AGENT", help="Only runs of this agent.")] = "",
    limit: options.Limit = 20,
    cursor: Annotated[
        str, typer.Option("--cursor", help="Go on where a page ended; needs --queue if there are several.")
    ] = "",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List runs, newest first."""
    settings = options.read_settings(config)
    if cursor and queue is None and len(settings.queue_names()) > 1:
        raise InputError("--cursor belongs to one queue: name it with --queue")

    async def work(station: Station) -> Page:
        queues = [await station.queue(queue)] if queue is not None else station.queues()
        pages = [await q.list(status=status, agent=agent, limit=limit, cursor=cursor) for q in queues]
        return pages[0] if len(pages) == 1 else _merged(pages, limit)

    page = at_station(settings, work)
    if json:
        output.document({"runs": [_listed(run) for run in page.runs], "cursor": page.cursor})
        return
    # A narrow terminal has no room for what is the same in every row.
    several = queue is None and len(settings.queue_names()) > 1
    shown = [at for at, column in enumerate(_COLUMNS) if several or column.title != "QUEUE"]
    rows = [tuple(_row(run)[at] for at in shown) for run in page.runs]
    output.table([_COLUMNS[at] for at in shown], rows, empty="no runs")
    if page.cursor and len(page.runs) == limit:
        output.note(f"more: --cursor {page.cursor}")


def _merged(pages: list[Page], limit: int) -> Page:
    from holdfast.runs.queue import Page

    newest = sorted((run for page in pages for run in page.runs), key=lambda run: -run.submitted_at)
    return Page(newest[:limit])


def _listed(run: Run) -> dict[str, Any]:
    """What a list knows of a run: not its input, question and result, which `runs show` reads."""
    fields: dict[str, Any] = msgspec.to_builtins(run)
    return {name: value for name, value in fields.items() if name not in _UNLISTED} | {"archived": False}


def _row(run: Run) -> tuple[str, ...]:
    took = span(run.finished_at - run.started_at) if run.finished_at and run.started_at else ""
    return (run.id, run.status, run.agent, run.queue, str(run.attempt), ago(run.submitted_at), took)


@runs.command("show")
def show_run(
    run_id: RunId,
    queue: options.AnyQueue = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Show everything that is known of a run."""
    checked_id(run_id, "RUN")
    run, archived = at_station(options.read_settings(config), lambda station: station.run(run_id, queue))
    if json:
        output.document({**msgspec.to_builtins(run), "archived": archived})
    else:
        output.record(_fields(run))


def _fields(run: Run) -> list[tuple[str, str]]:
    ended = run.status.ended
    return [
        ("run", run.id),
        ("status", run.status),
        ("agent", run.agent),
        ("queue", run.queue),
        ("thread", run.thread_id),
        ("parent", run.parent),
        ("attempt", str(run.attempt) if run.attempt else ""),
        ("fence", str(run.fence) if run.fence else ""),
        ("owner", run.owner),
        ("submitted", moment(run.submitted_at)),
        ("due", "" if ended or run.status is not Status.DELAYED else moment(run.due_at)),
        ("started", moment(run.started_at)),
        ("finished", moment(run.finished_at)),
        ("took", span(run.finished_at - run.started_at) if run.finished_at and run.started_at else ""),
        ("cancel", run.cancel),
        ("parked", run.parked),
        ("asks", compact(run.interrupt) if run.status is Status.INTERRUPTED else ""),
        ("metadata", compact(run.metadata) if run.metadata else ""),
        ("input", compact(run.input)),
        ("result", compact(run.result) if run.status is Status.SUCCEEDED else ""),
        ("error", f"{run.error.kind}: {run.error.message}" if run.error else ""),
        ("traceback", run.error.traceback.rstrip() if run.error else ""),
    ]


@runs.command("events")
def show_events(
    run_id: RunId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    after: Annotated[
        str, typer.Option("--after", metavar="EVENT", help="Begin after this event's id.")
    ] = "0",
    queue: options.AnyQueue = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Show what happened to a run, in order. With --json, a line for each event."""
    from holdfast.events.feed import checked_event_id
    from holdfast.runs.past import expired

    checked_event_id(after)
    show: Callable[[Event], None] = output.json_line if json else output.event

    async def work(station: Station) -> None:
        try:
            found = await station.queue_of(_checked(run_id), queue)
        except NotFound as missing:
            raise expired(await station.past(run_id, queue, missing)) from None
        feed, last = station.feed(found), after
        if follow:
            async with aclosing(feed.follow(run_id, after)) as events:
                async for event in events:
                    show(event)
            return
        while events := await feed.read(run_id, last):
            for event in events:
                show(event)
            last = events[-1].id

    at_station(options.read_settings(config), work)


@runs.command("cancel")
def cancel_runs(
    run_ids: RunIds,
    queue: options.AnyQueue = None,
    reason: options.Reason = "cancelled from the command line",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Cancel runs that wait or run. Those that wait end at once, those that run by asking their workers."""

    async def cancel(found: RunQueue, run_id: str) -> str:
        return await found.cancel(run_id, reason)

    _each(run_ids, "cancel", cancel, queue=queue, json=json, config=config)


@runs.command("retry")
def retry_runs(
    run_ids: RunIds,
    queue: options.AnyQueue = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Queue runs again that failed, timed out or were cancelled. They begin with their first attempt."""

    async def retry(found: RunQueue, run_id: str) -> str:
        await found.replay(run_id)
        return "queued"

    _each(run_ids, "retry", retry, queue=queue, json=json, config=config)


@runs.command("resume")
def resume_run(
    run_id: RunId,
    answer: Annotated[
        str, typer.Argument(metavar="JSON", help="The answer; - reads it from stdin.", show_default=False)
    ] = "null",
    queue: options.AnyQueue = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Give an interrupted run the answer it waits for."""
    value = options.json_value(answer)

    async def resume(found: RunQueue, run_id: str) -> str:
        await found.resume_run(run_id, value)
        return "queued"

    _each([run_id], "resume", resume, queue=queue, json=json, config=config)


@runs.command("explain")
def explain_run(
    run_id: RunId,
    queue: options.AnyQueue = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Explain why a run waits, what it does, or how it ended."""
    checked_id(run_id, "RUN")
    run, because = at_station(
        options.read_settings(config), lambda station: _explained(station, run_id, queue)
    )
    if json:
        output.document({"run_id": run.id, "status": run.status, "because": because})
        return
    output.line(f"{run.id}: {run.status}")
    for sentence in because:
        output.line(f"- {sentence}")


async def _explained(station: Station, run_id: str, name: str | None) -> tuple[Run, list[str]]:
    from holdfast.runs.explain import explain, explain_past, lease_age, parents_of_waiting_runs

    try:
        queue = await station.queue_of(run_id, name)
        run = await queue.get(run_id)
    except NotFound as missing:
        past = await station.past(run_id, name, missing)
        return past, explain_past(past)
    members = await station.members().all(station.redis)
    depth = await queue.depth()
    parents = await parents_of_waiting_runs(run, queue, depth)
    lease = await lease_age(run, queue, station.settings.lease.ttl_seconds)
    return run, explain(run, await queue.gate(), depth, members, parents=parents, lease=lease)


def _each(
    run_ids: list[str],
    verb: Change,
    change: Callable[[RunQueue, str], Awaitable[str]],
    *,
    queue: str | None,
    json: bool,
    config: Path | None,
) -> None:
    """Change one run after the other; one that can't be changed fails the command, but spares the others."""

    async def work(station: Station) -> bool:
        failed = False
        for run_id in run_ids:
            try:
                word = await change(await _changing(station, run_id, queue, verb), run_id)
                answer = {"run_id": run_id, "status": word}
            except RedisUnavailable:
                raise
            except HoldfastError as exc:
                failed = True
                answer = {"run_id": run_id, "error": str(exc)}
            _report(answer, json=json)
        return failed

    if at_station(options.read_settings(config), work):
        raise typer.Exit(FAILED)


async def _changing(station: Station, run_id: str, queue: str | None, verb: Change) -> RunQueue:
    """The queue of a run that is about to be changed; Conflict if only the archive has the run."""
    from holdfast.runs.past import unchangeable

    try:
        return await station.queue_of(_checked(run_id), queue)
    except NotFound as missing:
        raise unchangeable(await station.past(run_id, queue, missing), verb) from None


def _report(answer: dict[str, str], *, json: bool) -> None:
    if json:
        output.json_line(answer)
    elif "error" in answer:
        output.note(answer["error"])
    else:
        status = "cancel requested" if answer["status"] == "requested" else answer["status"]
        output.line(f"{answer['run_id']} {status}")


def _checked(run_id: str) -> str:
    return checked_id(run_id, "RUN")
