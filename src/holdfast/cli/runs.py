"""``holdfast runs``: look at runs, cancel them, queue them again."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import options, output
from holdfast.cli.formatting import ago, compact, moment, span
from holdfast.cli.output import Column
from holdfast.cli.root import COMMANDS, FAILED
from holdfast.cli.session import Session, in_session
from holdfast.errors import HoldfastError, RedisUnavailable
from holdfast.runs.run import Status, checked_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from holdfast.events.event import Event
    from holdfast.operations.runs import RunOperations
    from holdfast.views.runs import Changed, Explained, RunList, RunRow, RunView

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

    async def work(session: Session) -> RunList:
        from holdfast.operations.run_list import RunFilter

        operations = await session.operations(queue)
        wanted = RunFilter(queue=queue or "", status=status, agent=agent)
        return await operations.runs.list(wanted, limit=limit, cursor=cursor)

    page = in_session(settings, work)
    if json:
        output.as_it_is(page)
        return
    # A narrow terminal has no room for what is the same in every row.
    several = queue is None and len(settings.queue_names()) > 1
    shown = [at for at, column in enumerate(_COLUMNS) if several or column.title != "QUEUE"]
    rows = [tuple(_row(run)[at] for at in shown) for run in page.runs]
    output.table([_COLUMNS[at] for at in shown], rows, empty="no runs")
    if page.cursor:
        output.note(f"more: --cursor {page.cursor}")


def _row(run: RunRow) -> tuple[str, ...]:
    took = span(run.finished_at - run.started_at) if run.finished_at and run.started_at else ""
    return (run.id, run.status, run.agent, run.queue, str(run.attempt), ago(run.submitted_at), took)


@runs.command("show")
def show_run(
    run_id: RunId,
    queue: options.AnyQueue = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Show all details of a run."""
    checked_id(run_id, "RUN")

    async def work(session: Session) -> RunView:
        return await (await session.operations(queue)).runs.get(run_id, queue=queue or "")

    run = in_session(options.read_settings(config), work)
    if json:
        output.as_it_is(run)
    else:
        output.record(_fields(run))


def _fields(run: RunView) -> list[tuple[str, str]]:
    ended = Status(run.status).ended
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
        ("due", "" if ended or run.status != Status.DELAYED else moment(run.due_at)),
        ("started", moment(run.started_at)),
        ("finished", moment(run.finished_at)),
        ("took", span(run.finished_at - run.started_at) if run.finished_at and run.started_at else ""),
        ("cancel", run.cancel),
        ("parked", run.parked),
        ("asks", compact(run.interrupt) if run.status == Status.INTERRUPTED else ""),
        ("metadata", compact(run.metadata) if run.metadata else ""),
        ("input", compact(run.input)),
        ("result", compact(run.result) if run.status == Status.SUCCEEDED else ""),
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
    from holdfast.events.feed import PAGE, checked_event_id

    checked_event_id(after)
    show: Callable[[Event], None] = output.json_line if json else output.event

    async def work(session: Session) -> None:
        operations = await session.operations(queue)
        access, _ = await operations.runs.with_events(run_id, queue=queue or "")
        last = after
        if follow:
            async with aclosing(access.follow(run_id, after)) as events:
                async for event in events:
                    show(event)
            return
        while events := await access.read(run_id, last, PAGE):
            for event in events:
                show(event)
            last = events[-1].id

    in_session(options.read_settings(config), work)


@runs.command("cancel")
def cancel_runs(
    run_ids: RunIds,
    queue: options.AnyQueue = None,
    reason: options.Reason = "cancelled from the command line",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Cancel runs that wait or run. Those that wait end at once, those that run by asking their workers."""

    async def cancel(runs: RunOperations, run_id: str) -> Changed:
        return await runs.cancel(run_id, queue=queue or "", reason=reason)

    _each(run_ids, cancel, queue=queue, json=json, config=config)


@runs.command("retry")
def retry_runs(
    run_ids: RunIds,
    queue: options.AnyQueue = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Queue runs again that failed, timed out or were cancelled. They begin with their first attempt."""

    async def retry(runs: RunOperations, run_id: str) -> Changed:
        return await runs.retry(run_id, queue=queue or "")

    _each(run_ids, retry, queue=queue, json=json, config=config)


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

    async def resume(runs: RunOperations, run_id: str) -> Changed:
        return await runs.resume(run_id, value, queue=queue or "")

    _each([run_id], resume, queue=queue, json=json, config=config)


@runs.command("explain")
def explain_run(
    run_id: RunId,
    queue: options.AnyQueue = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Explain why a run waits, what it does, or how it ended."""
    checked_id(run_id, "RUN")

    async def work(session: Session) -> Explained:
        return await (await session.operations(queue)).runs.explain(run_id, queue=queue or "")

    explained = in_session(options.read_settings(config), work)
    if json:
        output.as_it_is(explained)
        return
    output.line(f"{explained.run_id}: {explained.status}")
    for sentence in explained.because:
        output.line(f"- {sentence}")


def _each(
    run_ids: list[str],
    change: Callable[[RunOperations, str], Awaitable[Changed]],
    *,
    queue: str | None,
    json: bool,
    config: Path | None,
) -> None:
    """Change one run after the other; one that can't be changed fails the command, but spares the others."""

    async def work(session: Session) -> bool:
        failed = False
        operations = await session.operations(queue)
        for run_id in run_ids:
            try:
                changed = await change(operations.runs, _checked(run_id))
                answer = {"run_id": run_id, "status": changed.status}
            except RedisUnavailable:
                raise
            except HoldfastError as exc:
                failed = True
                answer = {"run_id": run_id, "error": str(exc)}
            _report(answer, json=json)
        return failed

    if in_session(options.read_settings(config), work):
        raise typer.Exit(FAILED)


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
