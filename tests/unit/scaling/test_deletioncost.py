"""What a pod's deletion costs: by what its worker holds, and never in the rhythm of its runs."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import JanitorSettings, WorkerSettings
from holdfast.kubernetes.pod import Pod
from holdfast.redis.members import Member
from holdfast.scaling.deletioncost import STEPS, Busy, Costs, Patch, cost
from holdfast.services.pod_watch import busy_workers

RAISE, LOWER, EVERY = 15.0, 60.0, 5.0
SETTINGS = JanitorSettings(
    deletion_cost_raise_seconds=RAISE,
    deletion_cost_lower_seconds=LOWER,
    deletion_cost_seconds=EVERY,
    deletion_cost_per_second=1000,
)
LEVELS = {0: (0, 0.0), 100: (1, 5.0), 1000: (2, 70.0), 10_000: (1, 900.0)}
"""By cost, a worker that holds as much: runs and seconds."""


@pytest.mark.parametrize(
    ("runs", "held_seconds", "expected"),
    [
        (0, 0, 0),
        (0, 999, 0),
        (1, 0, 100),
        (3, 59.9, 100),
        (1, 60, 1000),
        (3, 599, 1000),
        (1, 600, 10_000),
        (100, 1e9, 10_000),
    ],
)
def test_the_cost_by_what_is_held(runs, held_seconds, expected):
    assert cost(runs, held_seconds) == expected


class Cluster:
    """Pods that take what is written to them, looked at every few seconds of a clock of our own."""

    def __init__(self, settings: JanitorSettings = SETTINGS, **pods: int) -> None:
        self.now = 0.0
        self.settings = settings
        self.costs = Costs(settings)
        self.pods = pods
        self.written: list[tuple[float, Patch]] = []
        self.deaf = False

    def look(self, **levels: int) -> list[Patch]:
        busy = [Busy(uid, self.pods.get(uid, 0), *LEVELS[level]) for uid, level in levels.items()]
        patches = self.costs.look(self.now, busy)
        for patch in patches:
            assert patch.cost != self.pods.get(patch.uid, 0), "what is there already is not written"
            if not self.deaf:
                self.pods[patch.uid] = patch.cost
            self.costs.wrote(self.now, patch)
            self.written.append((self.now, patch))
        self.now += EVERY
        return patches

    def during(self, seconds: float, **levels: int) -> list[Patch]:
        return [patch for _ in range(int(seconds / EVERY)) for patch in self.look(**levels)]

    def restart(self) -> None:
        self.costs = Costs(self.settings)


def test_who_is_busy_for_a_while_costs_more_and_who_is_idle_for_longer_less():
    cluster = Cluster()
    assert cluster.during(RAISE, a=100) == []
    assert cluster.look(a=100) == [Patch("a", 100, raised=True)]
    assert cluster.during(600, a=100) == []
    assert cluster.during(LOWER, a=0) == []
    assert cluster.look(a=0) == [Patch("a", 0, raised=False)]
    assert cluster.during(600, a=0) == []


def test_by_default_a_worker_is_marked_at_the_first_look_that_finds_it_busy():
    """A run that is not marked yet is chosen by a scale-in like an idle worker. Fails if it must last first."""
    costs = Costs(JanitorSettings())
    assert costs.look(0.0, [Busy("a", 0, 1, 0.0)]) == [Patch("a", 100, raised=True)]


def test_by_default_an_idle_worker_is_marked_in_half_of_the_time_until_the_scale_in():
    """The HPA may end workers 15 s before `down` (60 s) is over. Fails with a cost that is lowered as late."""
    settings = JanitorSettings()
    costs, now = Costs(settings), 0.0
    while not costs.look(now, [Busy("a", 100, 0, 0.0)]):
        now += settings.deletion_cost_seconds
    assert now + WorkerSettings().heartbeat_seconds <= 30.0


def test_runs_that_come_and_go_write_nothing():
    cluster = Cluster()
    for _ in range(200):
        assert cluster.during(RAISE, a=100) == []
        assert cluster.look(a=0) == []


def test_a_short_pause_of_a_busy_worker_does_not_lower_its_cost():
    cluster = Cluster(a=1000)
    for _ in range(100):
        assert cluster.during(LOWER - EVERY, a=0) == []
        assert cluster.look(a=1000) == []


def test_it_falls_to_the_most_that_was_held_lately():
    cluster = Cluster(a=10_000)
    cluster.during(RAISE, a=10_000)
    cluster.look(a=100)
    assert cluster.during(LOWER, a=0) == [Patch("a", 100, raised=False)]
    assert cluster.look(a=0) == [Patch("a", 0, raised=False)]


def test_a_new_leader_finds_the_costs_on_the_pods_and_writes_none_again():
    cluster = Cluster(**{f"p{n}": 100 for n in range(500)})
    busy = {f"p{n}": 100 for n in range(500)}
    for _ in range(20):
        assert cluster.during(60, **busy) == []
        cluster.restart()


def test_a_new_leader_lowers_nothing_before_it_has_looked_for_long_enough():
    cluster = Cluster(a=1000)
    for _ in range(10):
        cluster.restart()
        assert cluster.during(LOWER, a=0) == []


def test_after_a_gap_in_which_nobody_looked_nothing_is_known_to_have_lasted():
    """Fails if time alone counts: the worker may have been busy all the while."""
    cluster = Cluster(a=1000)
    cluster.during(LOWER, a=0)
    cluster.now += 3600
    assert cluster.during(LOWER, a=0) == []
    assert cluster.look(a=0) == [Patch("a", 0, raised=False)]


def test_a_pod_that_does_not_show_what_was_written_is_not_asked_at_every_look():
    """It refuses the patch, or its change comes late. Fails if only what the pod shows is compared."""
    cluster = Cluster()
    cluster.deaf = True
    written = cluster.during(600, a=100)
    assert 1 < len(written) <= 600 / LOWER


def test_what_could_not_be_sent_is_tried_at_the_next_look():
    cluster = Cluster()
    cluster.costs.wrote = lambda now, patch: None
    cluster.deaf = True
    cluster.during(RAISE, a=100)
    assert cluster.look(a=100) == cluster.look(a=100) == [Patch("a", 100, raised=True)]


def test_a_janitor_that_looks_seldom_still_writes():
    """Fails if the time after which nothing is known is shorter than the time between two looks."""
    settings = msgspec.structs.replace(SETTINGS, deletion_cost_seconds=120)
    costs = Costs(settings)
    looks = [costs.look(at, [Busy("a", 0, 1, 5.0)]) for at in (0, 120)]
    assert looks == [[], [Patch("a", 100, raised=True)]]


def test_not_more_than_the_rate_allows_and_the_endangered_first():
    settings = msgspec.structs.replace(SETTINGS, deletion_cost_per_second=2)
    cluster = Cluster(settings, **{f"idle{n}": 1000 for n in range(50)})
    levels = {f"idle{n}": 0 for n in range(50)} | {f"busy{n}": 100 for n in range(20)} | {"long": 10_000}
    cluster.during(LOWER - EVERY, **dict.fromkeys(levels, 0))
    looks = [cluster.look(**levels) for _ in range(60)]
    assert max(len(patches) for patches in looks) == 2 * EVERY
    order = [patch for patches in looks for patch in patches]
    raised = [patch.uid for patch in order if patch.raised]
    assert raised[0] == "long"
    assert len(raised) == 21
    assert cluster.pods == levels, "and in the end all of them"


def test_who_is_gone_is_forgotten():
    cluster = Cluster()
    cluster.during(300, **{f"p{n}": 0 for n in range(100)})
    cluster.look(a=0)
    assert list(cluster.costs._known) == ["a"]


@given(st.lists(st.sampled_from(sorted(LEVELS)), max_size=200), st.sampled_from(sorted(LEVELS)))
def test_however_a_worker_flaps_its_pod_is_written_at_most_k_times_in_a_minute(levels, first):
    cluster = Cluster(a=first)
    for level in levels:
        cluster.look(a=level)
    times = [at for at, _ in cluster.written]
    for start in times:
        assert sum(start <= at < start + LOWER for at in times) <= 2 * len(STEPS)


@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_a_worker_that_is_busy_or_not_is_written_at_most_twice_in_a_minute(busy):
    cluster = Cluster()
    for is_busy in busy:
        cluster.look(a=100 if is_busy else 0)
    times = [at for at, _ in cluster.written]
    for start in times:
        assert sum(start <= at < start + LOWER + RAISE for at in times) <= 2


@given(st.lists(st.sampled_from(sorted(LEVELS)), max_size=60), st.sampled_from(sorted(LEVELS)))
def test_what_lasts_is_written_in_the_end(levels, last):
    cluster = Cluster()
    for level in levels:
        cluster.look(a=level)
    cluster.during(2 * LOWER + RAISE, a=last)
    assert cluster.pods.get("a", 0) == last


@given(st.lists(st.sampled_from(sorted(LEVELS)), min_size=1, max_size=100))
def test_no_cost_is_written_that_the_worker_did_not_hold_lately(levels):
    cluster = Cluster()
    for at, level in enumerate(levels):
        seen = set(levels[max(0, at - int(LOWER / EVERY)) : at + 1])
        assert all(patch.cost in seen for patch in cluster.look(a=level))


# -- who is looked at


def worker(name: str, **fields: str) -> Member:
    return Member("worker", name, {"load": "1", "held_seconds": "5", **fields})


def test_only_pods_in_which_workers_of_ours_live_are_looked_at():
    pods = {uid: Pod(f"pod-{uid}", uid) for uid in ("mine", "foreign", "leaving", "two")}
    pods["leaving"] = msgspec.structs.replace(pods["leaving"], deleting=True)
    members = [
        worker("a", pod_uid="mine"),
        worker("b", pod_uid="leaving"),
        worker("c", pod_uid="two"),
        worker("d", pod_uid="two", held_seconds="70"),
        worker("e", pod_uid="not listed"),
        worker("f"),
        worker("g", pod_uid="mine", load="what?"),
        Member("janitor", "j", {"pod_uid": "foreign", "load": "9"}),
    ]
    assert busy_workers(members, pods) == [Busy("mine", 0, 1, 5.0), Busy("two", 0, 2, 75.0)]
