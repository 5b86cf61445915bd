"""What the local autoscaler decides: ranges, reasons, and who leaves."""

from __future__ import annotations

import pytest

from holdfast.config import QueueSettings
from holdfast.config.scaling import ScalingSettings
from holdfast.errors import InputError
from holdfast.runs.queue import Depth
from holdfast.scaling.depth import Need, need_of
from holdfast.scaling.local import (
    Bounds,
    Hand,
    Pilot,
    bounded,
    capped,
    describe_range,
    first_to_leave,
    hands,
    read_bounds,
)


def need(
    undelivered: int = 0, pending: int = 0, *, oldest: float = 0.0, paused: bool = False, **scaling
) -> Need:
    settings = QueueSettings(slots=3, scaling=ScalingSettings(**scaling))
    depth = Depth(undelivered, pending, 0, 0, 0, oldest, 0, paused)
    return need_of(settings, depth)


@pytest.mark.parametrize(
    ("text", "bounds"), [("0..8", Bounds(0, 8)), ("1..1", Bounds(1, 1)), ("2..1024", Bounds(2, 1024))]
)
def test_a_range_is_read(text: str, bounds: Bounds):
    assert read_bounds(text) == bounds


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("8", "--autoscale '8' is not a range: write MIN..MAX like 0..8"),
        ("0...8", "is not a range"),
        ("-1..8", "is not a range"),
        ("a..b", "is not a range"),
        ("0..", "is not a range"),
        ("8..2", "--autoscale 8..2 has a minimum (8) above its maximum (2)"),
        ("0..0", "--autoscale 0..0 allows no worker at all: the maximum must be at least 1"),
        ("0..5000", "allows 5000 processes on this machine: the maximum may be up to 1024"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused_in_a_sentence(text: str, told: str):
    with pytest.raises(InputError) as refused:
        read_bounds(text)
    assert told in str(refused.value)


def test_a_range_takes_the_place_of_the_queues_own_and_nothing_else():
    queue = QueueSettings(name="browser:jobs", scaling=ScalingSettings(max_workers=3, down_seconds=7))
    assert bounded(queue, None).scaling == queue.scaling
    ranged = bounded(queue, Bounds(1, 8)).scaling
    assert (ranged.min_workers, ranged.max_workers, ranged.down_seconds) == (1, 8, 7)
    assert capped(queue, 2).scaling.max_workers == 2
    assert capped(queue, None).scaling.max_workers == 3


def test_settings_that_are_too_much_for_one_machine_name_their_queue():
    queue = QueueSettings(name="browser:jobs", scaling=ScalingSettings(max_workers=90_000))
    with pytest.raises(InputError, match=r"'browser:jobs'.*scaling\.max_workers.*90000 processes"):
        bounded(queue, None)
    with pytest.raises(InputError, match=r"minimum \(3\) above its maximum \(2\)"):
        capped(QueueSettings(scaling=ScalingSettings(min_workers=3)), 2)


@pytest.mark.parametrize(
    ("seen", "workers", "why"),
    [
        (need(undelivered=14), 5, "14 runs want a slot, 3 each"),
        (need(undelivered=1), 1, "1 run wants a slot, 3 each"),
        (need(undelivered=20, pending=3, max_workers=4), 4, "23 runs want a slot, 3 each, at most 4"),
        (need(min_workers=2), 2, "at least 2 are kept"),
        (need(undelivered=2, min_workers=1), 1, "at least 1 is kept"),
        (need(undelivered=6, oldest=60.0), 2, "6 runs want a slot, 3 each"),
        (need(undelivered=9, pending=4, paused=True), 2, "4 runs want a slot in a paused queue, 3 each"),
    ],
)
def test_more_workers_come_at_once_and_it_is_said_why(seen: Need, workers: int, why: str):
    plan = Pilot(ScalingSettings(min_workers=seen.wanted if "kept" in why else 0)).follow(0.0, seen, 0)
    assert (plan.workers, plan.why) == (workers, why)


@pytest.mark.parametrize(
    ("scaling", "text"),
    [
        ({"max_workers": 4}, "has 0 to 4 workers of 3 slots, fewer after 60 s"),
        (
            {"max_workers": 4, "enabled": False},
            "is not scaled (scaling.enabled is false): keeps 1 worker of 3 slots",
        ),
        (
            {"min_workers": 2, "enabled": False},
            "is not scaled (scaling.enabled is false): keeps 2 workers of 3 slots",
        ),
    ],
)
def test_it_is_reported_how_many_workers_a_queue_may_have(scaling, text: str):
    assert describe_range(QueueSettings(slots=3, scaling=ScalingSettings(**scaling))) == text


@pytest.mark.parametrize(("least", "why"), [(0, "not scaled, 1 is kept"), (2, "not scaled, 2 are kept")])
@pytest.mark.parametrize("waiting", [0, 44])
def test_a_type_that_is_not_scaled_keeps_its_workers_and_no_run_is_the_reason(least: int, why: str, waiting):
    scaling = ScalingSettings(enabled=False, min_workers=least, max_workers=4)
    seen = need(undelivered=waiting, enabled=False, min_workers=least, max_workers=4)
    assert Pilot(scaling).follow(0.0, seen, 0).why == why


def test_fewer_workers_are_enough_only_after_a_while():
    pilot = Pilot(ScalingSettings(down_seconds=60))
    assert pilot.follow(0.0, need(undelivered=14), 0).workers == 5
    assert pilot.follow(30.0, need(pending=4), 5).workers == 5
    down = pilot.follow(61.0, need(pending=1), 5)
    assert (down.workers, down.why) == (2, "no more than 2 were needed in the last 60 s")
    assert pilot.follow(91.0, need(), 2).workers == 1
    none = pilot.follow(160.0, need(), 1)
    assert (none.workers, none.why) == (0, "nothing to do in the last 60 s")


def test_the_time_in_which_redis_was_away_is_no_time_with_nothing_to_do():
    pilot = Pilot(ScalingSettings(down_seconds=60))
    pilot.follow(0.0, need(undelivered=14), 0)
    for at in range(1, 600):
        pilot.blind(float(at), 5)
    assert pilot.follow(600.0, need(), 5).workers == 5
    assert pilot.follow(658.0, need(), 5).workers == 5
    assert pilot.follow(661.0, need(), 5).workers == 0


def test_who_has_not_joined_leaves_first_then_idle_ones_then_those_that_hold_least():
    staff = [Hand(1, 0), Hand(2, 3), Hand(3, 0), Hand(4, 1), Hand(5, None), Hand(6, 3)]
    assert [hand.number for hand in first_to_leave(staff, 6)] == [5, 3, 1, 4, 6, 2]
    assert [hand.number for hand in first_to_leave(staff, 2)] == [5, 3]


def test_what_workers_hold_is_found_by_their_consumers_names():
    assert hands({1: "a", 2: "b"}, {"a": 2, "stranger": 9}) == [Hand(1, 2), Hand(2, None)]
