"""``holdfast submit``: submit a run; with ``--follow``, show its events and end as it ends."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from holdfast.cli import options, output
from holdfast.cli.root import COMMANDS, FAILED
from holdfast.cli.session import Session, in_session
from holdfast.runs.run import Multitask, Priority, Status

if TYPE_CHECKING:
    from holdfast.client import RunHandle
    from holdfast.client.request import SubmitOptions
    from holdfast.runs.run import Run


def add_to(root: typer.Typer) -> None:
    """Add the command."""
    root.command("submit", help=COMMANDS["submit"])(submit)


def submit(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Agent to run.")],
    payload: Annotated[
        str,
        typer.Argument(metavar="JSON", help="Input of the run; - reads it from stdin.", show_default=False),
    ] = "null",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print the run's events until it ends.")
    ] = False,
    queue: options.OneQueue = None,
    priority: Annotated[Priority, typer.Option("--priority", help="Priority of the run.")] = Priority.NORMAL,
    delay: Annotated[
        str, typer.Option("--delay", metavar="TIME", help="Delay before the run starts: 30s, 5m.")
    ] = "0",
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Timeout of one attempt.")
    ] = None,
    run_id: Annotated[
        str,
        typer.Option("--run-id", metavar="ID", help="Run id. Submitting it again returns the existing run."),
    ] = "",
    thread_id: Annotated[
        str,
        typer.Option(
            "--thread-id", metavar="ID", help="Conversation id: runs of a thread go one after the other."
        ),
    ] = "",
    multitask: Annotated[
        Multitask, typer.Option("--multitask", help="What to do while another run of the thread goes on.")
    ] = Multitask.ENQUEUE,
    idempotency_key: Annotated[
        str, typer.Option("--idempotency-key", metavar="KEY", help="The same key gives the same run.")
    ] = "",
    metadata: options.Metadata = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Queue a run of AGENT with the input JSON; with --follow, exit 1 unless it succeeds."""
    settings = options.read_settings(config)
    wanted: SubmitOptions = {
        "queue": queue,
        "priority": priority,
        "delay": delay,
        "timeout": timeout,
        "run_id": run_id,
        "thread_id": thread_id,
        "multitask": multitask,
        "idempotency_key": idempotency_key,
        "metadata": options.metadata_of(metadata),
    }
    value = options.json_value(payload)
    run = in_session(settings, lambda session: _ask(session, agent, value, wanted, follow=follow, json=json))
    _end_as(run)


async def _ask(
    session: Session, agent: str, value: Any, wanted: SubmitOptions, *, follow: bool, json: bool
) -> Run | None:
    """Submit the run and say so; with ``follow``, return it as it ended."""
    await session.queue(wanted.get("queue"))
    from holdfast.client import Client

    async with Client(session.settings.redis.url, settings=session.settings) as client:
        handle = await client.submit(agent, value, **wanted)
        await _accepted(session, handle, agent, json=json)
        return await _follow(handle, json=json) if follow else None


def _end_as(run: Run | None) -> None:
    if run is not None and run.status is not Status.SUCCEEDED:
        raise typer.Exit(FAILED)


async def _accepted(session: Session, handle: RunHandle, agent: str, *, json: bool) -> None:
    run = await handle.run()
    if json:
        output.json_line(_receipt(handle, run))
    else:
        known = f"already exists in {handle.queue}: {run.status}"
        output.line(f"{run.id} {f'submitted to {handle.queue}' if handle.fresh else known}")
    if not run.status.ended:
        await warn_if_unserved(session, agent, handle.queue, json=json)


def _receipt(handle: RunHandle, run: Run) -> dict[str, Any]:
    """What ``POST /execute`` answers, with the queue, and whether the run is a new one."""
    from holdfast.views.runs import Accepted

    accepted = Accepted(run.status.value, run.id, run.id, handle.message_id, run.thread_id)
    return {**msgspec.to_builtins(accepted), "queue": handle.queue, "fresh": handle.fresh}


async def warn_if_unserved(session: Session, agent: str, queue: str = "", *, json: bool) -> None:
    """Say if no live worker of a queue knows an agent, or no live scheduler; it may not be what was meant."""
    kind, where = ("worker", f" of queue {queue!r}") if queue else ("scheduler", "")
    members = await session.members().all(session.redis, kind)
    served = [m.fields for m in members if not queue or queue in m.fields.get("queues", "").split(",")]
    if not served:
        waits = (
            f"no worker serves queue {queue!r} now: the run waits"
            if queue
            else "no scheduler is alive now: it waits"
        )
        output.note(f"{waits} for one", json=json)
    elif not any(agent in fields.get("agents", "").split(",") for fields in served):
        names = sorted({name for fields in served for name in fields.get("agents", "").split(",") if name})
        known = ", ".join(names) or "none"
        output.note(f"no live {kind}{where} knows agent {agent!r} (they know: {known})", json=json)


async def _follow(handle: RunHandle, *, json: bool) -> Run:
    from asyncio import CancelledError

    from holdfast.client.handle import error_of

    try:
        async with aclosing(handle.events()) as events:
            async for happened in events:
                (output.json_line if json else output.event)(happened)
                if happened.type == "interrupted" and not json:
                    output.note(f"it waits for an answer: holdfast runs resume {handle.run_id} '\"yes\"'")
    except CancelledError:  # Ctrl-C: it ends the looking, not the run
        again = f"holdfast runs events {handle.run_id} --follow"
        ended = f"holdfast runs cancel {handle.run_id} ends it"
        output.note(f"the run goes on: {again} shows it, {ended}", json=json)
        raise
    run = await handle.run()
    if json:
        output.json_line(run)
    elif run.status is Status.SUCCEEDED:
        output.as_it_is(run.result)
    else:
        output.note(f"{error_of(run)} (holdfast runs show {run.id} tells more)")
    return run
