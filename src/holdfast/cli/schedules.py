"""``holdfast schedules``: what runs again and again, and what an operator does about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import options, output
from holdfast.cli.derived import derived, flag_of
from holdfast.cli.formatting import ago, compact, moment, span
from holdfast.cli.output import Column
from holdfast.cli.root import COMMANDS, FAILED
from holdfast.cli.session import Session, in_session
from holdfast.errors import InputError
from holdfast.views.schedule_options import ScheduleRequest
from holdfast.views.triggers import Cron, Every

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from holdfast.operations.schedules import ScheduleOperations
    from holdfast.schedules.replies import ChangeReply
    from holdfast.views.schedules import (
        Backfilled,
        PastTurn,
        ScheduleExplained,
        ScheduleTimes,
        ScheduleTurns,
        ScheduleView,
    )

schedules = options.group(COMMANDS["schedules"])

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.")]
Names = Annotated[
    list[str] | None, typer.Argument(metavar="NAME", help="Schedules, or globs such as 'nightly-*'.")
]
_SHOWN_TURNS = 5
_LONGEST_HISTORY = 1000
Everything = Annotated[bool, typer.Option("--all", help="All schedules.")]

_OUTCOMES = {
    "declared": "is not removed: the code declares it",
    "stale": "is not changed: another change came first, try again",
    "buffered": "runs once more after the present run",
}
_TIMES = ("at", "starts_at", "ends_at")

_COLUMNS = (
    Column("NAME", free=True),
    Column("STATE"),
    Column("TRIGGER", free=True),
    Column("NEXT"),
    Column("LAST"),
    Column("OUTCOME"),
    Column("RUNS", number=True),
    Column("STREAK", number=True),
)
_TURN_COLUMNS = (
    Column("TURN", free=True),
    Column("OUTCOME"),
    Column("STARTED"),
    Column("TOOK", number=True),
    Column("ATTEMPT", number=True),
    Column("FENCE", number=True),
    Column("SCHEDULER", free=True),
    Column("RUN OR ERROR", free=True),
)


def add_to(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(schedules, name="schedules")


@schedules.command("list")
def list_schedules(
    pattern: Annotated[str, typer.Argument(metavar="GLOB", help="Names to list.")] = "*",
    limit: options.Limit = 100,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List schedules: where each is, and when it is due next."""

    async def work(session: Session) -> list[ScheduleView]:
        from holdfast.views.schedules import ScheduleView

        operations = (await session.operations()).schedules
        return await operations.find_all(ScheduleView, pattern=pattern, limit=limit, placed_turns=True)

    found = in_session(options.read_settings(config), work)
    if json:
        output.as_it_is({"schedules": found})
    else:
        output.table(_COLUMNS, [_row(each) for each in found], empty="no schedules")


@schedules.command("show")
def show_schedule(name: Name, json: options.Json = False, config: options.Config = None) -> None:
    """Show one schedule: its definition, its state and its last turns."""

    async def work(session: Session) -> tuple[ScheduleView, ScheduleTurns]:
        operations = (await session.operations()).schedules
        return await operations.get(name), await operations.turns(name, _SHOWN_TURNS)

    schedule, last = in_session(options.read_settings(config), work)
    if json:
        output.as_it_is(schedule)
        return
    output.record(_fields(schedule))
    if last.turns:
        output.line("")
        _show_turns(last.turns)


@schedules.command("turns")
def list_turns(
    name: Name,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=_LONGEST_HISTORY, help="Most turns to list.")
    ] = 20,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List the past turns of a schedule, newest first. Each has its times, its scheduler and its outcome."""

    async def work(session: Session) -> ScheduleTurns:
        return await (await session.operations()).schedules.turns(name, limit)

    past = in_session(options.read_settings(config), work)
    if json:
        output.as_it_is(past)
    else:
        _show_turns(past.turns)


@schedules.command("create")
@derived(
    ScheduleRequest,
    flags={"target": ("--queue",), "tz": ("--tz", "--timezone")},
    without=("name", "agent", "input", "metadata"),
)
def create_schedule(
    name: Name,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Agent to run.")],
    payload: Annotated[
        str, typer.Argument(metavar="JSON", help="Input of each run; - reads stdin.", show_default=False)
    ] = "null",
    metadata: options.Metadata = None,
    json: options.Json = False,
    config: options.Config = None,
    **given: Any,
) -> None:
    """Create a schedule of AGENT. It needs --every, --cron or --at; TIME is like 2030-01-31T07:00Z."""
    state: dict[str, Any] = {word: given.pop(word) or "" for word in ("tenant", "reason")}
    paused: bool = given.pop("paused")
    if state["reason"] and not paused:
        raise InputError("--reason says why a schedule is paused: write --paused, too")
    wanted = given | {"input": options.json_value(payload), "metadata": options.metadata_of(metadata)}
    wanted |= {word: _time(flag_of(word), given[word]) for word in _TIMES if given[word] is not None}
    queue = given["target"] or ""

    async def work(session: Session) -> tuple[ScheduleView, bool]:
        from holdfast.cli.submit import warn_if_unserved

        operations = (await session.operations(queue or None)).schedules
        created = await operations.create(name, agent, wanted, paused=paused, **state)
        await warn_if_unserved(session, agent, queue, json=json)
        return created

    schedule, fresh = in_session(options.read_settings(config), work)
    if json:
        output.as_it_is(schedule)
    else:
        due = moment(schedule.next_at or 0, _zone(schedule))
        status = "paused" if schedule.paused_since else f"next {due}" if due else schedule.state
        output.line(f"{schedule.name} {'created' if fresh else 'already exists'}, {status}")


@schedules.command("trigger")
def trigger_schedule(name: Name, json: options.Json = False, config: options.Config = None) -> None:
    """Run a schedule now; its turns stay where they are."""
    _change([name], lambda operations, names: operations.trigger_many(names), json=json, config=config)


@schedules.command("pause")
def pause_schedules(
    names: Names = None,
    everything: Everything = False,
    reason: options.Reason = "",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Pause schedules until they are resumed."""
    _change(
        _wanted(names, everything=everything),
        lambda operations, names: operations.pause_many(names, reason),
        already="is already paused",
        json=json,
        config=config,
    )


@schedules.command("resume")
def resume_schedules(
    names: Names = None,
    everything: Everything = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Resume paused schedules."""
    _change(
        _wanted(names, everything=everything),
        lambda operations, names: operations.resume_many(names),
        already="is not paused",
        json=json,
        config=config,
    )


@schedules.command("remove")
def remove_schedules(
    names: Names = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also schedules that the code declared before.")
    ] = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Remove schedules. Those that the code declares need --force, and come back if it still does."""
    _change(
        _wanted(names, everything=False),
        lambda operations, names: operations.remove_many(names, force=force),
        json=json,
        config=config,
    )


@schedules.command("next")
def next_times(
    name: Name,
    count: Annotated[int, typer.Option("--count", min=1, max=1000, help="How many turns.")] = 5,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Tell the next turns of a schedule."""

    async def work(session: Session) -> tuple[ScheduleTimes, str]:
        operations = (await session.operations()).schedules
        return await operations.next(name, count), _zone(await operations.get(name))

    coming, zone = in_session(options.read_settings(config), work)
    if json:
        output.as_it_is(coming)
    else:
        for at in coming.times:
            output.line(moment(at, zone))


@schedules.command("backfill")
def backfill_schedule(
    name: Name,
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="The first turn is not before it.")],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="All turns are before it.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell the turns.")] = False,
    limit: options.Limit = 100,
    at_once: Annotated[int, typer.Option("--at-once", min=1, max=100, help="How many at once.")] = 1,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Run the past turns of a window, each once. TIME is like 2026-03-01T00:00Z, or epoch seconds."""
    window = (_time("--from", start), _time("--to", end))

    async def work(session: Session) -> tuple[Backfilled, str]:
        schedule = await (await session.operations()).schedules.get(name)
        operations = (await session.operations(None if dry_run else schedule.target or None)).schedules
        filled = await operations.backfill(name, *window, limit=limit, at_once=at_once, dry_run=dry_run)
        return filled, _zone(schedule)

    filled, zone = in_session(options.read_settings(config), work)
    if json:
        output.as_it_is(filled)
        return
    for one in filled.turns:
        output.line(f"{one.status} {one.turn} {moment(one.at, zone)}")
    if not filled.turns:
        output.line("no turn of it lies in that window")


@schedules.command("explain")
def explain_schedule(name: Name, json: options.Json = False, config: options.Config = None) -> None:
    """Say why a schedule does not run now."""

    async def work(session: Session) -> ScheduleExplained:
        return await (await session.operations()).schedules.explain(name)

    explained = in_session(options.read_settings(config), work)
    if json:
        output.as_it_is(explained)
    else:
        output.line(f"{name}: {'; '.join(explained.because)}")


def _time(option: str, text: str) -> float:
    from holdfast.schedules.trigger import moment

    try:
        return float(text)
    except ValueError:
        return moment(option, text)


def _wanted(names: list[str] | None, *, everything: bool) -> list[str]:
    if bool(names) == everything:
        raise InputError("name the schedules, or write --all for all of them")
    return ["*"] if everything else list(names or ())


def _change(
    wanted: Sequence[str],
    change: Callable[[ScheduleOperations, list[str]], Awaitable[dict[str, ChangeReply]]],
    *,
    json: bool,
    config: Path | None,
    already: str = "is not changed",
) -> None:
    """Change schedules; one that can't be changed fails the command, but spares the others."""
    from holdfast.operations.schedules import refusal
    from holdfast.schedules.replies import ChangeReply

    async def work(session: Session) -> tuple[dict[str, ChangeReply], dict[str, ScheduleView]]:
        operations = (await session.operations()).schedules
        names = await operations.names(wanted)
        before = await operations.get_many(names) if json else {}  # a removed one is shown as it was
        words = await change(operations, names)
        return words, before | (await operations.get_many(names) if json else {})

    done, views = in_session(options.read_settings(config), work)
    refused = {name: str(why) for name, word in done.items() if (why := refusal(name, word))}
    outcomes = {**_OUTCOMES, ChangeReply.ALREADY.value: already}
    for name, word in done.items():
        if json:
            output.json_line(_changed(name, word, views.get(name), refused.get(name, "")))
        elif word is not ChangeReply.UNKNOWN:
            output.line(f"{name} {outcomes.get(word.value, word.value)}")
    if not json:
        for why in refused.values():
            output.note(why)
    if refused:
        raise typer.Exit(FAILED)


def _changed(name: str, word: ChangeReply, schedule: ScheduleView | None, refused: str) -> Any:
    """Return what the HTTP API answers: the schedule, or whether one runs that was triggered."""
    from holdfast.schedules.replies import ChangeReply
    from holdfast.views.schedules import ScheduleChanged

    if refused:
        return {"name": name, "error": refused}
    if word in {ChangeReply.TRIGGERED, ChangeReply.BUFFERED} or schedule is None:
        return ScheduleChanged(name, word.value)
    return schedule


def _trigger(schedule: ScheduleView) -> str:
    match schedule.trigger:
        case None:
            return "unreadable"
        case Every(seconds=seconds):
            return f"every {span(seconds)}"
        case Cron(expression=expression, zone=zone):
            return f"{expression} {zone}"
        case once:
            return f"once, {moment(once.at)}"


def _zone(schedule: ScheduleView) -> str:
    """Whose clocks its turns follow: those of a cron expression its own, any others those here."""
    return schedule.trigger.zone if isinstance(schedule.trigger, Cron) else ""


def _row(schedule: ScheduleView) -> tuple[str, ...]:
    due, last = ago(schedule.next_at or 0), ago(schedule.last_end or 0)
    counts = (str(schedule.runs), str(schedule.streak))
    return (schedule.name, schedule.state, _trigger(schedule), due, last, schedule.last_outcome, *counts)


def _show_turns(turns: Sequence[PastTurn]) -> None:
    output.table(_TURN_COLUMNS, [_turn_row(turn) for turn in turns], empty="no past turns")


def _turn_row(turn: PastTurn) -> tuple[str, ...]:
    outcome = f"{turn.outcome} (manual)" if turn.manual else turn.outcome
    error = f"{turn.error_kind}: {turn.error}" if turn.error_kind else turn.error
    took, counts = span(turn.duration_ms / 1000), (str(turn.attempt), str(turn.fence))
    return (turn.turn, outcome, moment(turn.started_at), took, *counts, turn.owner, turn.run_id or error)


def _fields(schedule: ScheduleView) -> list[tuple[str, str]]:
    known = [] if schedule.trigger is None else _definition(schedule)
    took = "" if schedule.last_duration_ms is None else f" in {span(schedule.last_duration_ms / 1000)}"
    since = f", since {moment(schedule.paused_since or 0)}"
    ended = f"{schedule.last_outcome}{took}, {moment(schedule.last_end or 0)}"
    return [
        ("schedule", schedule.name),
        ("state", schedule.state),
        ("trigger", _trigger(schedule)),
        *known,
        ("next", moment(schedule.next_at or 0, _zone(schedule))),
        ("owner", schedule.owner),
        ("running since", moment(schedule.acquired_at or 0) if schedule.owner else ""),
        ("paused", schedule.paused and f"{schedule.paused}{since}"),
        ("last run", ended if schedule.last_end else ""),
        ("last error", _last_error(schedule)),
        ("runs", str(schedule.runs)),
        ("failures in a row", str(schedule.streak)),
        ("fence", str(schedule.fence)),
    ]


def _last_error(schedule: ScheduleView) -> str:
    when = moment(schedule.last_error_at or 0)
    return f"{schedule.last_error}, {when}" if schedule.last_error and when else schedule.last_error


def _definition(schedule: ScheduleView) -> list[tuple[str, str]]:
    return [
        ("agent", schedule.agent),
        ("runs in", f"queue {schedule.target}" if schedule.target else "the scheduler"),
        ("timeout", span(schedule.timeout_seconds)),
        ("priority", str(schedule.priority)),
        ("policies", f"misfire {schedule.misfire}, overlap {schedule.overlap}"),
        ("input", "" if schedule.input is None else compact(schedule.input)),
        ("source", schedule.source),
    ]
