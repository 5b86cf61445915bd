"""Triggers: an interval, a cron expression or one moment makes a schedule due. Values, without a clock."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from holdfast.config import duration_seconds
from holdfast.errors import ConfigError, InputError

if TYPE_CHECKING:
    from datetime import timedelta

LONGEST_SECONDS: Final = 10 * 365 * 86400
SHORTEST_SECONDS: Final = 0.001
LATEST: Final = 32_503_680_000
"""The year 3000: a later time is taken for a mistake."""

Since: TypeAlias = Literal["start", "completion"]
Moment: TypeAlias = Annotated[float, Meta(ge=0, le=LATEST)]


class Every(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="every"):
    """Due again ``seconds`` after its last start, or after its last completion."""

    seconds: Annotated[float, Meta(ge=SHORTEST_SECONDS, le=LONGEST_SECONDS)]
    since: Since = "start"


class Cron(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="cron"):
    """Due whenever the clocks of ``zone`` match: five fields, or six with the seconds in front."""

    expression: Annotated[str, Meta(min_length=1, max_length=1000)]
    zone: Annotated[str, Meta(min_length=1, max_length=100)] = "UTC"


class Once(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="once"):
    """Due at one moment, epoch seconds."""

    at: Moment


Trigger: TypeAlias = Every | Cron | Once


def trigger_of(
    *,
    every: str | float | timedelta | None = None,
    cron: str | None = None,
    at: float | datetime | None = None,
    tz: str = "UTC",
    since: Since = "start",
) -> Trigger:
    """Make the trigger that a caller describes with exactly one of every, cron and at."""
    given = [name for name, value in (("every", every), ("cron", cron), ("at", at)) if value is not None]
    if len(given) != 1:
        got = " and ".join(given) or "none of them"
        raise InputError(f"give exactly one of every, cron and at, got {got}")
    if every is not None:
        return Every(seconds=_seconds(every), since=since)
    if cron is not None:
        return Cron(expression=cron, zone=tz)
    assert at is not None
    return Once(at=_moment(at))


def _seconds(every: str | float | timedelta) -> float:
    try:
        return duration_seconds(every)
    except ConfigError as exc:
        raise InputError(f"every: {exc}") from None


def _moment(at: float | datetime) -> float:
    if not isinstance(at, datetime):
        try:
            return float(at)
        except (TypeError, ValueError):
            raise InputError(
                f"at: {at!r} is not a time: write epoch seconds, or a datetime with its zone"
            ) from None
    if at.tzinfo is None:
        raise InputError(f"at: {at.isoformat()} has no time zone: write one, like {at.isoformat()}Z")
    return at.timestamp()
