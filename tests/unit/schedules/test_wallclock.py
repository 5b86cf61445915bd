"""Cron expressions against a second, slower reading of the same rule: minute by minute through the year."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InputError
from holdfast.schedules.wallclock import next_fire, read

ZONES = [
    "America/New_York",
    "Europe/Berlin",
    "Europe/London",
    "Australia/Lord_Howe",  # by half an hour
    "Antarctica/Troll",  # by two hours
    "America/Santiago",  # at midnight
    "Africa/Casablanca",  # back for Ramadan
    "Asia/Kathmandu",  # never, and a quarter of an hour off
    "UTC",
]


def epoch(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def fires(expression: str, zone: str, after: float, n: int) -> list[float]:
    found: list[float] = []
    at: float | None = after
    while len(found) < n and (at := next_fire(expression, zone, at)) is not None:
        found.append(at)
    return found


def shown(times: list[float], zone: str) -> list[str]:
    return [datetime.fromtimestamp(at, ZoneInfo(zone)).isoformat() for at in times]


def changes(zone: str, year: int) -> list[int]:
    """The hours of a year at which the clocks have been changed."""
    begin = int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
    hours = range(begin, begin + 366 * 86400, 1800)
    offset = [datetime.fromtimestamp(at, ZoneInfo(zone)).utcoffset() for at in hours]
    return [hours[i] for i in range(1, len(hours)) if offset[i] != offset[i - 1]]


def by_hand(minutes: set[int], hours: set[int], zone: str, start: int, end: int, *, named: bool) -> list[int]:
    """Every minute is looked at: the rule, written as it is said."""

    def matches(wall: datetime) -> bool:
        return wall.minute in minutes and wall.hour in hours

    found: list[int] = []
    # From long before, so that times that are shown a second time are known.
    begin = start - 4 * 3600
    last = datetime.fromtimestamp(begin - 60, ZoneInfo(zone)).replace(tzinfo=None, fold=0)
    latest = last
    for at in range(begin, end, 60):
        wall = datetime.fromtimestamp(at, ZoneInfo(zone)).replace(tzinfo=None, fold=0)
        skipped = [last + timedelta(minutes=m) for m in range(1, int((wall - last).total_seconds()) // 60)]
        if named:
            new = wall > latest
            fire = (new and matches(wall)) or any(matches(time) for time in skipped if time > latest)
        else:
            fire = matches(wall)
        if fire and at >= start:
            found.append(at)
        last, latest = wall, max(wall, latest)
    return found


EXPRESSIONS = [
    ("*/15 * * * *", {0, 15, 30, 45}, set(range(24)), False),
    ("0 * * * *", {0}, set(range(24)), False),
    ("0 */2 * * *", {0}, set(range(0, 24, 2)), False),
    ("30 2 * * *", {30}, {2}, True),
    ("0 30 2 * * *", {30}, {2}, True),
    ("30 1 * * *", {30}, {1}, True),
    ("0 0,30 0-3 * * *", {0, 30}, {0, 1, 2, 3}, True),
    ("45 1,2 * * *", {45}, {1, 2}, True),
    ("0 0 0 * * *", {0}, {0}, True),
    ("0 0,2,4,6,8,10,12,14,16,18,20,22 * * *", {0}, set(range(0, 24, 2)), True),
]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize(
    ("expression", "minutes", "hours", "named"), EXPRESSIONS, ids=lambda value: str(value)[:24]
)
def test_around_every_change_of_the_clocks_it_fires_as_the_rule_says(zone, expression, minutes, hours, named):
    assert read(expression, zone).named is named
    for change in changes(zone, 2026) or [1_770_000_000]:
        start, end = change - 14 * 3600, change + 28 * 3600
        expected = by_hand(minutes, hours, zone, start, end, named=named)
        found = fires(expression, zone, start - 1, len(expected))
        assert shown(found, zone) == shown([float(at) for at in expected], zone)


def test_a_named_time_that_is_skipped_fires_as_soon_as_it_is_skipped():
    times = fires("30 2 * * *", "America/New_York", epoch("2026-03-07T12:00-05:00"), 2)
    assert shown(times, "America/New_York") == ["2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"]


def test_a_named_time_that_comes_twice_fires_the_first_time():
    times = fires("0 30 1 * * *", "America/New_York", epoch("2026-10-31T12:00-04:00"), 2)
    assert shown(times, "America/New_York") == ["2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"]


def test_several_skipped_times_fire_once():
    times = fires("*/10 0,10,20,30,40,50 2 * * *", "Europe/Berlin", epoch("2026-03-29T00:00+01:00"), 2)
    assert shown(times, "Europe/Berlin") == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:00:00+02:00"]


def test_the_library_alone_would_leave_a_daily_schedule_out_and_fire_it_twice():
    """Why it is asked about clocks without a zone only; if this fails, it has changed: read its changelog."""
    zone = ZoneInfo("America/New_York")
    spring = CronSim("0 30 2 * * *", datetime(2026, 3, 7, 12, tzinfo=zone))
    autumn = CronSim("0 30 1 * * *", datetime(2026, 10, 31, 12, tzinfo=zone))
    assert next(spring).date().isoformat() == "2026-03-09"
    assert [next(autumn).day, next(autumn).day] == [1, 1]
    howe = CronSim("0 */2 * * *", datetime(2026, 4, 5, 0, 30, tzinfo=ZoneInfo("Australia/Lord_Howe")))
    assert next(howe).hour == 4  # 02:00 exists that night


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("* * * * *", "2026-05-01T10:00:30+00:00", "2026-05-01T10:01:00+00:00"),
        ("*/5 * * * * *", "2026-05-01T10:00:57+00:00", "2026-05-01T10:01:00+00:00"),
        ("*/5 * * * * *", "2026-05-01T10:00:55+00:00", "2026-05-01T10:01:00+00:00"),
        ("*/5 * * * * *", "2026-05-01T10:00:54.999+00:00", "2026-05-01T10:00:55+00:00"),
        ("*/5 * * * * *", "2026-05-01T10:00:55.001+00:00", "2026-05-01T10:01:00+00:00"),
        ("15 30 9 * * MON-FRI", "2026-05-01T10:00:00+00:00", "2026-05-04T09:30:15+00:00"),
        ("0 0 L * *", "2026-02-10T00:00:00+00:00", "2026-02-28T00:00:00+00:00"),
        ("0 0 * * FRI#2", "2026-05-01T00:00:00+00:00", "2026-05-08T00:00:00+00:00"),
        ("0 0 29 2 *", "2026-05-01T00:00:00+00:00", "2028-02-29T00:00:00+00:00"),
        ("0 0 1 1 *", "2026-01-01T00:00:00+00:00", "2027-01-01T00:00:00+00:00"),
    ],
)
def test_an_expression_fires_next(expression, after, expected):
    assert next_fire(expression, "UTC", epoch(after)) == epoch(expected)


@pytest.mark.parametrize(
    "expression",
    ["", "* * * *", "60 * * * *", "* * * * * * *", "a * * * *", "0 0 30 2 *", "*/0 * * * *", "5-1 * * * *"],
)
def test_what_is_no_expression_is_refused(expression):
    with pytest.raises(InputError, match=r"^cron: "):
        read(expression, "UTC")


@pytest.mark.parametrize(
    "zone", ["", "Mars/Olympus", "../../etc/passwd", "/etc/passwd", "Europe", "Europe/Paris\0"]
)
def test_what_is_no_zone_is_refused(zone):
    with pytest.raises(InputError, match=r"^tz: "):
        read("* * * * *", zone)


def test_what_never_fires_says_so():
    assert next_fire("0 0 * 2 MON#5", "UTC", epoch("9990-01-01T00:00+00:00")) is None


FIELDS = st.sampled_from(["*", "*/2", "*/7", "0", "5", "1-4", "0,30", "59", "3,11,23"])


@settings(deadline=None)
@given(
    second=st.sampled_from(["", "0 ", "*/20 ", "7 "]),
    minute=FIELDS,
    hour=st.sampled_from(["*", "*/2", "*/6", "0", "1", "2", "2-3", "1,2,3", "23"]),
    zone=st.sampled_from(ZONES),
    after=st.integers(1_760_000_000, 1_800_000_000),
    fraction=st.floats(0, 0.999),
)
def test_it_fires_later_and_nothing_lies_between(second, minute, hour, zone, after, fraction):
    expression = f"{second}{minute} {hour} * * *"
    first = next_fire(expression, zone, after + fraction)
    assert first is not None
    assert first > after + fraction
    assert first == int(first)
    # From any time before it on, it is the next one: nothing was jumped over.
    middle = (after + fraction + first) / 2
    assert next_fire(expression, zone, middle) == first
    assert next_fire(expression, zone, first - 1) == first
