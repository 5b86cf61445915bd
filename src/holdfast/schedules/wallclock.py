"""When a cron expression fires in a time zone, also on the days on which its clocks are changed.

The rule, the same with and without a field of seconds: when minute and hour are named (neither begins with
``*``), every time of day happens once: one that the clocks skip fires as soon as they have skipped it, one
that they show twice fires the first time only. Else the expression follows the clocks: it fires whenever they
show a matching time, so an hourly one keeps firing once an hour.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from holdfast.errors import InputError

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - what clocks on a wall show has no zone
_DAY: Final = 86400


@dataclass(frozen=True, slots=True)
class _Clock:
    """An expression that was read, and the clocks it looks at."""

    template: CronSim
    zone: ZoneInfo
    named: bool

    def next_shown(self, wall: datetime) -> datetime | None:
        """Return the next matching time of day after ``wall``, on clocks that are never changed."""
        # The library's own rule for changed clocks differs with the number of fields: with six, a daily
        # schedule is left out in spring and fires twice in autumn. So it sees clocks without a zone only.
        simulation = copy.copy(self.template)
        simulation.dt = wall
        return next(simulation, None)

    def offset(self, at: int) -> timedelta:
        """Return what the zone's clocks are ahead of UTC at an instant."""
        return datetime.fromtimestamp(at, self.zone).utcoffset() or timedelta()

    def change(self, low: int, high: int) -> int | None:
        """Return the first instant in (low, high] at which the clocks are changed."""
        # No zone changes its clocks twice within a day.
        for start in range(low, high, _DAY):
            end = min(start + _DAY, high)
            if self.offset(start) != self.offset(end):
                return self._narrow(start, end)
        return None

    def _narrow(self, low: int, high: int) -> int:
        before = self.offset(low)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.offset(middle) == before else (low, middle)
        return high


def next_fire(expression: str, zone: str, after: float) -> float | None:
    """Return the first instant after ``after`` at which the expression fires; None if there is none."""
    clock = read(expression, zone)
    try:
        at = _named(clock, after) if clock.named else _following(clock, after)
    except (OverflowError, ValueError):  # beyond the last year that a calendar knows
        return None
    return None if at is None else float(at)


@lru_cache(maxsize=4096)
def read(expression: str, zone: str) -> _Clock:
    """Read an expression and its zone, or raise InputError with the part that is wrong."""
    try:
        template = CronSim(expression, _EPOCH)
    except CronSimError as exc:
        raise InputError(
            f"cron: {expression[:100]!r} is not a cron expression ({exc}): write five fields "
            "(minute hour day month weekday), or six with the seconds in front"
        ) from None
    minute, hour = expression.split()[-5:-3]
    named = not minute.startswith("*") and not hour.startswith("*")
    return _Clock(template, _zone(zone), named)


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, outside of the database, a folder of it
        raise InputError(
            f"tz: {name[:100]!r} is not a time zone: write a name like Europe/Paris or UTC"
        ) from None


def _named(clock: _Clock, after: float) -> int | None:
    wall = datetime.fromtimestamp(math.floor(after), clock.zone).replace(tzinfo=None, fold=0)
    while (shown := clock.next_shown(wall)) is not None:
        at = _instant(clock, shown)
        if at > after:
            return at
        wall = shown
    return None


def _instant(clock: _Clock, shown: datetime) -> int:
    """Return when the clocks first show a time of day, or skip it."""
    first = int(shown.replace(tzinfo=clock.zone).timestamp())
    if datetime.fromtimestamp(first, clock.zone).replace(tzinfo=None) == shown:
        return first
    skipped = clock.change(int(shown.replace(tzinfo=clock.zone, fold=1).timestamp()), first)
    return first if skipped is None else skipped


def _following(clock: _Clock, after: float) -> int | None:
    here = math.floor(after)
    offset = clock.offset(here)
    wall = _wall(here, offset)
    while (shown := clock.next_shown(wall)) is not None:
        at = int((shown - offset - _EPOCH).total_seconds())
        changed = clock.change(here, at)
        if changed is None:
            return at
        # The clocks show something else from here on, this very second included.
        here, offset = changed, clock.offset(changed)
        wall = _wall(here - 1, offset)
    return None


def _wall(at: int, offset: timedelta) -> datetime:
    return datetime.fromtimestamp(at, UTC).replace(tzinfo=None) + offset
