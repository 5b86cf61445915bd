"""A schedule: which agent runs again and again, when, and within which limits.

Everything that can be wrong with one is found by ``checked``, before it reaches Redis.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from holdfast.agents.models import dumped
from holdfast.config.names import checked_queue
from holdfast.errors import InputError
from holdfast.schedules.overlap import POLICIES
from holdfast.schedules.wallclock import next_fire
from holdfast.views.schedule_options import CatchUpMost, Count, Misfire, Overlap, OverlapMost, Priority
from holdfast.views.triggers import Cron, Moment, Once, Since, Trigger

Source: TypeAlias = Literal["code", "api", "turn"]
"""Where it is defined; ``turn`` is one turn of another schedule, which ends with its run."""

_YEAR: Final = 365 * 86400
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")
# A member that is a mere number is taken for damage and removed.
_NUMBER = re.compile(r"[0-9.]+")
# Only turns have these in their names: report#2, report@1772332200.000.
_TURN = re.compile(r"[#@]")
_NAME_ALLOWED: Final = (
    "up to 200 letters, digits, _ . : / and -, the first a letter, digit or _, and not a mere number"
)
_NAME_MOST: Final = 200
_WHERE = re.compile(r" - at `\$\.?(.*)`$")
_UNLISTED = re.compile(r"Invalid enum value (.*)", re.DOTALL)
# Stored fields have other names than the options that users write.
_WRITTEN: Final = {
    "trigger.seconds": "every",
    "trigger.since": "since",
    "trigger.expression": "cron",
    "trigger.zone": "tz",
    "trigger.at": "at",
    "timeout_seconds": "timeout",
    "error_seconds": "error_interval",
}
_ZONES_OF_THE_MACHINE: Final = {"localtime", "posixrules"}
_CHOICES: Final = {"misfire": Misfire, "overlap": Overlap, "since": Since}


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One schedule, as it is declared, stored and sent."""

    name: str
    agent: str
    trigger: Trigger
    timeout_seconds: Annotated[float, Meta(ge=0.001, le=_YEAR)] = 300.0
    error_seconds: Annotated[float, Meta(ge=0, le=_YEAR)] | None = None
    """The wait after a failure; None is the interval, for a cron expression its next time."""
    priority: Priority = 5
    """0 is the most urgent."""
    input: Any = None
    starts_at: Moment = 0.0
    ends_at: Moment = 0.0
    max_runs: Count = 0
    """Runs after which it is done, failed ones included; 0 is no limit."""
    misfire: Misfire = "coalesce"
    catch_up_most: CatchUpMost = 10
    overlap: Overlap = "skip"
    overlap_most: OverlapMost = 10
    """Turns that wait or run at once with the policy ``allow``."""
    pause_after_failures: Count = 0
    target: str = ""
    """The queue that its runs are submitted to; empty runs the agent in the scheduler."""
    metadata: dict[str, str] = {}
    tenant: Annotated[str, Meta(max_length=100, pattern="^[A-Za-z0-9_.-]*$")] = ""
    """The tenant of the schedule and of its runs; its name then begins with ``<tenant>/``."""
    source: Source = "code"


_ENCODER: Final = msgspec.json.Encoder(order="deterministic")
_DECODER: Final = msgspec.json.Decoder(Schedule)


def family(name: str) -> str:
    """Return the schedule that a name belongs to: ``report#2`` and ``report@…`` are turns of ``report``."""
    return _TURN.split(name, maxsplit=1)[0] if "#" in name or "@" in name else name


def single_turn(schedule: Schedule, name: str, at: float) -> Schedule:
    """Return one turn of a schedule as a schedule of its own, without the schedule's limits."""
    return msgspec.structs.replace(
        schedule,
        name=name,
        trigger=Once(at=at),
        misfire="coalesce",
        overlap="skip",
        starts_at=0.0,
        ends_at=0.0,
        max_runs=0,
        source="turn",
    )


def turn_name(name: str, at: float) -> str:
    """Return the name of a turn: the same when it is run again because its scheduler died."""
    return f"{family(name)}@{at:.3f}"


def schedule_of_turn(turn: str) -> str:
    """Return the schedule whose turn has this name; nothing if it is not the name of a turn."""
    schedule, _, at = turn.rpartition("@")
    return schedule if _NUMBER.fullmatch(at) else ""


def checked(schedule: Schedule) -> Schedule:
    """Return the schedule as it will be read back, or raise InputError with the field that is wrong."""
    sound = _converted(schedule)
    _check_name("name", sound.name, sound.tenant)
    _check_name("agent", sound.agent)
    if sound.target:
        _check_target(sound)
    if isinstance(sound.trigger, Cron):
        _check_cron(sound, sound.trigger)
    if sound.source == "turn":
        raise _wrong(sound, "source: a turn is made by its schedule, not registered")
    if sound.misfire in POLICIES[sound.overlap].excludes:  # guard: catch-up-without-overlap
        both = f"{sound.overlap!r} and misfire {sound.misfire!r}"
        raise _wrong(sound, f"overlap: {both} don't go together: choose one of the two")
    if 0 < sound.ends_at <= sound.starts_at:
        raise _wrong(sound, f"ends_at: {sound.ends_at:g} is not after starts_at, {sound.starts_at:g}")
    return sound


def encoded(schedule: Schedule) -> bytes:
    """Return the schedule as JSON; equal schedules are equal bytes."""
    return _ENCODER.encode(schedule)


def decoded(raw: bytes | str) -> Schedule:
    """Read a schedule back, or raise InputError with what is wrong with it."""
    try:
        return _DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InputError(f"the schedule can't be read: {_located(exc)}") from None


def _converted(schedule: Schedule) -> Schedule:
    try:
        return msgspec.convert(msgspec.to_builtins(schedule, enc_hook=dumped), Schedule)
    except msgspec.ValidationError as exc:
        raise _wrong(schedule, _as_written(exc)) from None
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise _wrong(schedule, f"input: it can't be written as JSON ({exc})") from None


def _located(exc: Exception) -> str:
    text = str(exc)
    where = _WHERE.search(text)
    return f"{where[1]}: {text[: where.start()]}" if where else text


def _as_written(exc: Exception) -> str:
    """Return what is wrong, by the names of the options, with the values that are allowed."""
    field, colon, what = _located(exc).partition(": ")
    if not colon:
        return field
    field = _WRITTEN.get(field, field)
    unlisted = _UNLISTED.fullmatch(what)
    if unlisted and field in _CHOICES:
        what = f"{unlisted[1]} is not one of {', '.join(get_args(_CHOICES[field]))}"
    return f"{field}: {what}"


def _check_name(field: str, name: str, tenant: str = "") -> None:
    # A tenant in front of a name is checked by itself, and may begin otherwise than a name.
    # guard: tenant-prefix
    plain = f"_{name[len(tenant) :]}" if tenant and name.startswith(f"{tenant}/") else name
    if not _NAME.fullmatch(plain) or _NUMBER.fullmatch(plain) or len(name) > _NAME_MOST:
        raise InputError(f"{field}: {name[:80]!r} is not a name: {_NAME_ALLOWED}")


def _check_target(schedule: Schedule) -> None:
    try:
        checked_queue(schedule.target)
    except InputError as exc:
        raise _wrong(schedule, f"target: {exc}") from None


def _check_cron(schedule: Schedule, cron: Cron) -> None:
    # Refused here only: one that was stored before this check keeps its turns.
    if cron.zone in _ZONES_OF_THE_MACHINE:
        raise _wrong(
            schedule,
            f"tz: {cron.zone!r} is another time on each machine: write a name like Europe/Paris or UTC",
        )
    try:
        first = next_fire(cron.expression, cron.zone, schedule.starts_at)
    except InputError as exc:
        raise _wrong(schedule, str(exc)) from None
    if first is None:
        raise _wrong(schedule, f"cron: {cron.expression!r} never fires")


def _wrong(schedule: Schedule, what: str) -> InputError:
    return InputError(f"schedule {str(schedule.name)[:80]!r}: {what}")
