"""``holdfast schedules``: what runs again and again, and what an operator does about it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from holdfast.cli import options, output
from holdfast.cli.formatting import ago, compact, moment, span
from holdfast.cli.output import Column
from holdfast.cli.root import COMMANDS, FAILED
from holdfast.cli.session import Session, in_session
from holdfast.errors import InputError, NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from holdfast.api.scheduleshapes import ScheduleView
    from holdfast.runs.run import Ticket
    from holdfast.schedules.backfill import Filled
    from holdfast.schedules.definitions import Definitions
    from holdfast.schedules.entries import Entries, Entry
    from holdfast.schedules.history import History, PastTurn
    from holdfast.schedules.registry import Registry
    from holdfast.schedules.replies import Changed
    from holdfast.schedules.schedule import Schedule

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

    async def work(session: Session) -> list[Entry]:
        return (await _entries(session).list(pattern, limit=limit)).entries

    found = sorted(in_session(options.read_settings(config), work), key=lambda entry: entry.name)[:limit]
    if json:
        output.document({"schedules": [_document(entry) for entry in found]})
    else:
        output.table(_COLUMNS, [_row(entry) for entry in found], empty="no schedules")


@schedules.command("show")
def show_schedule(name: Name, json: options.Json = False, config: options.Config = None) -> None:
    """Show one schedule: its definition, its state and its last turns."""

    async def work(session: Session) -> tuple[Entry, list[PastTurn]]:
        return await _entries(session).get(name), await _history(session).turns(name, _SHOWN_TURNS)

    entry, turns = in_session(options.read_settings(config), work)
    if json:
        output.document(_document(entry))
        return
    output.record(_fields(entry))
    if turns:
        output.line("")
        _show_turns(turns)


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

    async def work(session: Session) -> list[PastTurn]:
        await _entries(session).get(name)
        return await _history(session).turns(name, limit)

    turns = in_session(options.read_settings(config), work)
    if json:
        output.document({"name": name, "turns": turns})
    else:
        _show_turns(turns)


@schedules.command("create")
def create_schedule(
    name: Name,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Agent to run.")],
    payload: Annotated[
        str, typer.Argument(metavar="JSON", help="Input of each run; - reads stdin.", show_default=False)
    ] = "null",
    every: Annotated[
        str | None, typer.Option("--every", metavar="DURATION", help="Interval between runs: 30s, 5m, 1d.")
    ] = None,
    cron: Annotated[
        str | None, typer.Option("--cron", metavar="CRON", help="Cron expression, such as '30 3 * * *'.")
    ] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="TIME", help="Run once at TIME.")] = None,
    tz: Annotated[
        str, typer.Option("--tz", "--timezone", metavar="ZONE", help="Time zone of --cron.")
    ] = "UTC",
    since: Annotated[
        str, typer.Option("--since", metavar="EVENT", help="Count --every from the start or the completion.")
    ] = "start",
    queue: Annotated[
        str,
        typer.Option(
            "--queue",
            metavar="QUEUE",
            help="Queue to submit runs to. Without it the scheduler runs the agent.",
        ),
    ] = "",
    priority: Annotated[
        int | None, typer.Option("--priority", min=0, max=9, help="Priority; 0 is the most urgent.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="DURATION", help="Timeout of each run.")
    ] = None,
    error_interval: Annotated[
        str | None,
        typer.Option("--error-interval", metavar="DURATION", help="Interval after a run that failed."),
    ] = None,
    pause_after_failures: Annotated[
        int,
        typer.Option(
            "--pause-after-failures", min=0, help="Pause after so many failures in a row; 0 never pauses."
        ),
    ] = 0,
    starts_at: Annotated[
        str | None, typer.Option("--starts-at", metavar="TIME", help="No run before TIME.")
    ] = None,
    ends_at: Annotated[
        str | None, typer.Option("--ends-at", metavar="TIME", help="No run after TIME.")
    ] = None,
    max_runs: Annotated[
        int,
        typer.Option(
            "--max-runs", min=0, help="Number of runs after which the schedule ends; 0 is no limit."
        ),
    ] = 0,
    misfire: Annotated[
        str | None,
        typer.Option(
            "--misfire", metavar="POLICY", help="What to do with missed runs: coalesce, skip or catch_up."
        ),
    ] = None,
    catch_up_most: Annotated[
        int | None, typer.Option("--catch-up-most", min=1, help="Missed runs that catch_up does at most.")
    ] = None,
    overlap: Annotated[
        str | None,
        typer.Option(
            "--overlap",
            metavar="POLICY",
            help="What to do while the last run is still running: skip, buffer, cancel or allow.",
        ),
    ] = None,
    overlap_most: Annotated[
        int | None, typer.Option("--overlap-most", min=1, help="Runs that allow lets wait or run at once.")
    ] = None,
    metadata: options.Metadata = None,
    tenant: Annotated[
        str, typer.Option("--tenant", metavar="TENANT", help="Tenant of the schedule and of its runs.")
    ] = "",
    paused: Annotated[bool, typer.Option("--paused", help="Create the schedule paused.")] = False,
    reason: options.Reason = "",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Create a schedule of AGENT. It needs --every, --cron or --at; TIME is like 2030-01-31T07:00Z."""
    if reason and not paused:
        raise InputError("--reason says why a schedule is paused: write --paused, too")
    moments = {"--at": at, "--starts-at": starts_at, "--ends-at": ends_at}
    read = {option: None if text is None else _time(option, text) for option, text in moments.items()}
    wanted: dict[str, Any] = {
        "every": every,
        "cron": cron,
        "at": read["--at"],
        "tz": tz,
        "since": since,
        "input": options.json_value(payload),
        "target": queue,
        "priority": priority,
        "timeout": timeout,
        "error_interval": error_interval,
        "pause_after_failures": pause_after_failures,
        "starts_at": read["--starts-at"],
        "ends_at": read["--ends-at"],
        "max_runs": max_runs,
        "misfire": misfire,
        "catch_up_most": catch_up_most,
        "overlap": overlap,
        "overlap_most": overlap_most,
        "metadata": options.metadata_of(metadata),
        "tenant": tenant,
    }

    async def work(session: Session) -> tuple[bool, Entry]:
        from holdfast.cli.submit import warn_if_unserved
        from holdfast.runs.scope import scoped
        from holdfast.schedules.declaration import declared

        schedule = declared(scoped(tenant, name), agent, **wanted)
        if queue:
            await session.queue(queue)
        fresh = await _definitions(session).create(schedule, paused=paused, reason=reason)
        await warn_if_unserved(session, agent, queue, json=json)
        return fresh, await _entries(session).get(schedule.name)

    fresh, entry = in_session(options.read_settings(config), work)
    if json:
        output.document(_document(entry))
    else:
        due = moment(entry.next_at or 0, _zone(_schedule(entry)))
        state = "paused" if entry.paused_since else f"next {due}" if due else entry.state
        output.line(f"{entry.name} {'created' if fresh else 'already exists'}, {state}")


@schedules.command("trigger")
def trigger_schedule(name: Name, json: options.Json = False, config: options.Config = None) -> None:
    """Run a schedule now; its turns stay where they are."""
    _change([name], lambda known, names: known.registry.trigger(names), json=json, config=config)


@schedules.command("pause")
def pause_schedules(
    names: Names = None,
    everything: Everything = False,
    reason: options.Reason = "",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Pause schedules until they are resumed."""
    wanted = _wanted(names, everything=everything)
    _change(
        wanted,
        lambda known, found: known.pause(found, reason),
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
    wanted = _wanted(names, everything=everything)
    _change(
        wanted,
        lambda known, found: known.resume(found),
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
    wanted = _wanted(names, everything=False)
    _change(wanted, lambda known, found: known.remove(found, force=force), json=json, config=config)


@schedules.command("next")
def next_times(
    name: Name,
    count: Annotated[int, typer.Option("--count", min=1, max=1000, help="How many turns.")] = 5,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Tell the next turns of a schedule."""

    async def work(session: Session) -> tuple[list[float], str]:
        from holdfast.schedules.entries import upcoming
        from holdfast.schedules.schedule import decoded

        entry, now = await _entries(session).get(name), (await _registry(session).count()).now
        schedule = decoded(entry.spec)
        return upcoming(entry, schedule, now, count), _zone(schedule)

    times, zone = in_session(options.read_settings(config), work)
    if json:
        from holdfast.api.scheduleshapes import ScheduleTimes

        output.document(ScheduleTimes(name, times))
    else:
        for at in times:
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

    async def work(session: Session) -> tuple[list[Filled], str]:
        from holdfast.runs.run import Submission
        from holdfast.schedules.backfill import Backfill
        from holdfast.schedules.registry import checked_keys
        from holdfast.schedules.submission import run_request

        async def submit(schedule: Schedule, turn: str) -> Ticket:
            queue = await session.queue(schedule.target)
            return await queue.submit(msgspec.convert(run_request(schedule, turn), Submission))

        fill = Backfill(session.redis, checked_keys(session.settings.redis), submit)
        zone = _zone(_schedule(await _entries(session).get(name)))
        if dry_run:
            return await fill.plan(name, *window, limit=limit), zone
        return await fill.run(name, *window, limit=limit, at_once=at_once), zone

    turns, zone = in_session(options.read_settings(config), work)
    if json:
        from holdfast.api.scheduleshapes import Backfilled, BackfilledTurn

        output.document(Backfilled(name, [BackfilledTurn(one.turn, one.at, one.word) for one in turns]))
        return
    for one in turns:
        output.line(f"{one.word} {one.turn} {moment(one.at, zone)}")
    if not turns:
        output.line("no turn of it lies in that window")


def _time(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise InputError(
            f"{option}: {text[:60]!r} is not a time with its zone: write it like 2026-03-01T00:00Z"
        )
    return at.timestamp()


@schedules.command("explain")
def explain_schedule(name: Name, json: options.Json = False, config: options.Config = None) -> None:
    """Say why a schedule does not run now."""

    async def work(session: Session) -> tuple[str, str]:
        from holdfast.schedules.explain import explain
        from holdfast.schedules.schedule import decoded
        from holdfast.schedules.selection import Patterns
        from holdfast.schedules.submission import served_queues

        entry, now = await _entries(session).get(name), (await _registry(session).count()).now
        members = await session.members().all(session.redis)
        why = explain(
            entry,
            decoded(entry.spec),
            now=now,
            patterns=Patterns.of(session.settings.redis.agent),
            sharded=session.settings.redis.scheduler.sharding != "none",
            schedulers={one.name: one.fields for one in members if one.kind == "scheduler"},
            queues=served_queues(session.settings.queue_names(), members),
        )
        return entry.state.value, why

    state, why = in_session(options.read_settings(config), work)
    if json:
        output.document({"name": name, "state": state, "because": [why]})
    else:
        output.line(f"{name}: {why}")


def _entries(session: Session) -> Entries:
    from holdfast.schedules.entries import Entries
    from holdfast.schedules.registry import checked_keys

    return Entries(session.redis, checked_keys(session.settings.redis))


def _history(session: Session) -> History:
    from holdfast.schedules.history import History
    from holdfast.schedules.registry import checked_keys

    return History(session.redis, checked_keys(session.settings.redis))


def _registry(session: Session) -> Registry:
    from holdfast.schedules.registry import Registry, checked_keys

    return Registry(session.redis, checked_keys(session.settings.redis))


def _definitions(session: Session) -> Definitions:
    from holdfast.schedules.definitions import Definitions
    from holdfast.schedules.registry import checked_keys

    space = checked_keys(session.settings.redis).definitions
    return Definitions(_registry(session), _entries(session), session.store.found, space)


def _wanted(names: list[str] | None, *, everything: bool) -> list[str]:
    if bool(names) == everything:
        raise InputError("name the schedules, or write --all for all of them")
    return ["*"] if everything else list(names or ())


def _change(
    wanted: Sequence[str],
    change: Callable[[Definitions, list[str]], Awaitable[list[Changed]]],
    *,
    json: bool,
    config: Path | None,
    already: str = "is not changed",
) -> None:
    """Change schedules; one that can't be changed fails the command, but spares the others."""
    from holdfast.schedules.replies import Changed

    async def work(session: Session) -> tuple[dict[str, Changed], dict[str, Entry]]:
        known = _definitions(session)
        names = await _found(known.registry, wanted)
        before = await known.entries.get_many(names) if json else []  # a removed one is shown as it was
        words = await change(known, names)
        after = await known.entries.get_many(names) if json else []
        return dict(zip(names, words, strict=True)), {entry.name: entry for entry in (*before, *after)}

    done, entries = in_session(options.read_settings(config), work)
    refused = {name: why for name, word in done.items() if (why := _refusal(name, word))}
    outcomes = {**_OUTCOMES, Changed.ALREADY.value: already}
    for name, word in done.items():
        if json:
            output.json_line(_changed(name, word, entries.get(name), refused.get(name, "")))
        elif word is not Changed.UNKNOWN:
            output.line(f"{name} {outcomes.get(word.value, word.value)}")
    if not json:
        for why in refused.values():
            output.note(why)
    if refused:
        raise typer.Exit(FAILED)


def _refusal(name: str, word: Changed) -> str:
    """Return why a schedule was not changed; empty if it was, or needed no change."""
    from holdfast.schedules.definitions import removal_refused
    from holdfast.schedules.replies import Changed

    if word is Changed.UNKNOWN:
        return f"there is no schedule {name!r}: `holdfast schedules list` shows what there is"
    if word is Changed.STALE:
        return f"the schedule {name!r} is being changed by others: try again"
    return str(removal_refused(name)) if word is Changed.DECLARED else ""


def _changed(name: str, word: Changed, entry: Entry | None, refused: str) -> Any:
    """Return what the HTTP API answers: the schedule, or whether one runs that was triggered."""
    from holdfast.api.scheduleshapes import ScheduleChanged
    from holdfast.schedules.replies import Changed

    if refused:
        return {"name": name, "error": refused}
    if word in {Changed.TRIGGERED, Changed.BUFFERED} or entry is None:
        return ScheduleChanged(name, word.value)
    return _document(entry)


async def _found(registry: Registry, wanted: Sequence[str]) -> list[str]:
    names: list[str] = []
    for one in wanted:
        if any(sign in one for sign in "*?["):
            names += [name async for page in registry.names(one) for name in page]
        else:
            names.append(one)
    if not names:
        raise NotFound(f"no schedule fits {', '.join(wanted)}")
    return sorted(set(names))


def _schedule(entry: Entry) -> Schedule | None:
    from holdfast.schedules.schedule import decoded

    try:
        return decoded(entry.spec)
    except InputError:
        return None


def _document(entry: Entry) -> ScheduleView:
    from holdfast.api.scheduleshapes import ScheduleView, schedule_view

    return schedule_view(ScheduleView, entry, _schedule(entry))


def _trigger(schedule: Schedule | None) -> str:
    from holdfast.schedules.trigger import Cron, Every

    if schedule is None:
        return "unreadable"
    match schedule.trigger:
        case Every(seconds=seconds):
            return f"every {span(seconds)}"
        case Cron(expression=expression, zone=zone):
            return f"{expression} {zone}"
        case once:
            return f"once, {moment(once.at)}"


def _zone(schedule: Schedule | None) -> str:
    """Whose clocks its turns follow: those of a cron expression its own, any others those here."""
    from holdfast.schedules.trigger import Cron

    return schedule.trigger.zone if schedule is not None and isinstance(schedule.trigger, Cron) else ""


def _row(entry: Entry) -> tuple[str, ...]:
    due, last = ago(entry.next_at or 0), ago(entry.last_end or 0)
    counts = (str(entry.runs), str(entry.streak))
    return (entry.name, entry.state, _trigger(_schedule(entry)), due, last, entry.last_outcome, *counts)


def _show_turns(turns: Sequence[PastTurn]) -> None:
    output.table(_TURN_COLUMNS, [_turn_row(turn) for turn in turns], empty="no past turns")


def _turn_row(turn: PastTurn) -> tuple[str, ...]:
    outcome = f"{turn.outcome} (manual)" if turn.manual else turn.outcome
    error = f"{turn.error_kind}: {turn.error}" if turn.error_kind else turn.error
    took, counts = span(turn.duration_ms / 1000), (str(turn.attempt), str(turn.fence))
    return (turn.turn, outcome, moment(turn.started_at), took, *counts, turn.owner, turn.run_id or error)


def _fields(entry: Entry) -> list[tuple[str, str]]:
    schedule = _schedule(entry)
    known = [] if schedule is None else _definition(schedule)
    took = "" if entry.last_duration_ms is None else f" in {span(entry.last_duration_ms / 1000)}"
    return [
        ("schedule", entry.name),
        ("state", entry.state),
        ("trigger", _trigger(schedule)),
        *known,
        ("next", moment(entry.next_at or 0, _zone(schedule))),
        ("owner", entry.owner),
        ("running since", moment(entry.acquired_at or 0) if entry.owner else ""),
        ("paused", entry.paused and f"{entry.paused}, since {moment(entry.paused_since or 0)}"),
        ("last run", f"{entry.last_outcome}{took}, {moment(entry.last_end)}" if entry.last_end else ""),
        ("last error", _last_error(entry)),
        ("runs", str(entry.runs)),
        ("failures in a row", str(entry.streak)),
        ("fence", str(entry.fence)),
    ]


def _last_error(entry: Entry) -> str:
    when = moment(entry.last_error_at or 0)
    return f"{entry.last_error}, {when}" if entry.last_error and when else entry.last_error


def _definition(schedule: Schedule) -> list[tuple[str, str]]:
    return [
        ("agent", schedule.agent),
        ("runs in", f"queue {schedule.target}" if schedule.target else "the scheduler"),
        ("timeout", span(schedule.timeout_seconds)),
        ("priority", str(schedule.priority)),
        ("policies", f"misfire {schedule.misfire}, overlap {schedule.overlap}"),
        ("input", "" if schedule.input is None else compact(schedule.input)),
        ("source", schedule.source),
    ]
