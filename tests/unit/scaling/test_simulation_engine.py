"""The simulated world: small cases followed by hand, laws that always hold, and the queueing formula."""

from __future__ import annotations

import math
from array import array

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.config.scaling import ScalingSettings
from holdfast_simulator.engine import Phase, Simulation, Worker, leaving_order
from holdfast_simulator.marking import NO_LAG, Lag, Mark
from holdfast_simulator.outcome import Outcome, Waits, waits_of
from holdfast_simulator.policies import NAMED, Policy, policies_of
from holdfast_simulator.spec import KedaSpec, Metric, Trigger
from holdfast_simulator.synthetic import synthetic_trace
from holdfast_simulator.traces import Row, Trace, trace_of
from holdfast_simulator.world import Spread, World

AT_ONCE = Spread(0.0, 0.0)
WORLD = World(slots=1, scheduling=AT_ONCE, startup=AT_ONCE, cost_lag=NO_LAG)


def trace(*runs: tuple[float, float]) -> Trace:
    return trace_of(Row(arrival, duration) for arrival, duration in runs)


def run(given: Trace, policy: str | Policy, world: World = WORLD) -> Outcome:
    found = policies_of(policy, world)[0] if isinstance(policy, str) else policy
    return Simulation(given, found, world).run()


def world(**given) -> World:
    return msgspec.structs.replace(WORLD, **given)


# -- by hand


def test_runs_wait_for_a_slot_in_the_order_of_their_arrival():
    outcome = run(trace((0, 10), (1, 10), (2, 10)), "fixed:1")
    assert outcome.wait_seconds.most == 18  # the third: from 2 to 20
    assert outcome.wait_seconds.mean == pytest.approx((0 + 9 + 18) / 3)
    assert (outcome.ended, outcome.queue_most) == (3, 2)


def test_a_worker_does_as_many_at_once_as_it_has_slots():
    outcome = run(trace((0, 10), (1, 10), (2, 10)), "fixed:1", world(slots=3))
    assert outcome.wait_seconds.most == 0


def test_a_higher_priority_is_served_first():
    rows = [Row(0, 10), Row(1, 1, "", "low"), Row(2, 1, "", "normal"), Row(3, 1, "", "high")]
    simulation = Simulation(trace_of(rows), policies_of("fixed:1", WORLD)[0], WORLD)
    simulation.run()
    assert list(simulation.waited) == [0, 11, 9, 7]  # started at 10: high, 11: normal, 12: low


def test_a_pod_takes_runs_once_it_has_a_node_and_has_started():
    slow = world(scheduling=Spread(2.0, 2.0), startup=Spread(7.0, 7.0))
    outcome = run(trace((0.5, 1)), "push", slow)
    assert outcome.wait_seconds.most == 9
    polled = run(trace((0.5, 1)), "depth", slow)
    assert polled.wait_seconds.most == 13.5  # woken by the poll at 5


def test_a_push_waits_for_the_run_that_is_more_than_its_activation():
    policy = policies_of("push", WORLD)[0]
    trigger = msgspec.structs.replace(policy.keda.triggers[0], activation=1.0)
    spec = msgspec.structs.replace(policy.keda, triggers=(trigger,))
    simulation = Simulation(trace((0.5, 9), (3.5, 9)), msgspec.structs.replace(policy, keda=spec), WORLD)
    simulation.run()
    assert simulation.waited[0] == 3  # alone it is not worth a worker


@pytest.mark.parametrize("name", ["push", "local"])
def test_an_arrival_wakes_nobody_while_redis_can_not_be_asked(name):
    outcome = run(trace((1.5, 1)), name, world(outages=((1.0, 16.0),)))
    assert outcome.wait_seconds.most >= 14.5  # the outage is over at 16, before a fallback counts


def test_idle_years_are_jumped_over_in_the_rhythm_of_the_polls():
    outcome = run(trace((0, 1), (1e9 + 0.5, 1)), "depth")
    assert outcome.ended == 2
    assert outcome.wait_seconds.most == 4.5  # woken by the poll that is due every five seconds


def test_worker_hours_count_from_the_node_to_the_end():
    fixed = run(trace((0, 10)), "fixed:3", world(tail_seconds=3590, price_per_hour=0.5))
    assert fixed.worker_hours == pytest.approx(3, rel=0.01)
    assert fixed.cost == pytest.approx(1.5, rel=0.01)
    assert fixed.used == pytest.approx(10 / 3 / 3600, rel=0.01)


def followed() -> Policy:
    """As many workers as there are runs, at once, and one at least."""
    instant = {"scaleDown": {"stabilizationWindowSeconds": 0}}
    spec = msgspec.convert(
        {"minReplicaCount": 1, "triggers": [{"metric": "streamLength", "target": 1}], "behavior": instant},
        KedaSpec,
    )
    return Policy(name="followed", keda=spec)


def test_a_run_that_outlives_the_drain_is_handed_back_and_goes_on_elsewhere():
    # Two runs start two workers at 15; one run ends at 40, so at 45 one worker must go. Idle leaves first:
    runs = trace((0, 1000), (1, 24))
    idle_first = run(runs, followed(), world(drain_seconds=5))
    assert (idle_first.handed_back, idle_first.scaled_down) == (0, 1)
    # Unmarked, the one that was ready last leaves, whatever it does.
    blind = run(trace((0, 40), (1, 1000)), followed(), world(drain_seconds=5, deletion_cost=False))
    assert blind.handed_back == 1
    assert blind.repeated_seconds == 0
    scratch = world(drain_seconds=5, deletion_cost=False, checkpoints=False)
    again = run(trace((0, 40), (1, 1000)), followed(), scratch)
    assert again.handed_back == 1
    assert again.repeated_seconds > 30
    assert again.ended == blind.ended == 2


def shrunk(world: World) -> Outcome:
    """Five workers become idle at 67 s beside five younger ones that are busy until 270 s."""
    runs = trace(*((0, 67) for _ in range(15)), *((30, 240) for _ in range(15)))
    return run(runs, "depth", world)


def test_a_worker_whose_cost_is_lowered_too_late_is_no_cheaper_than_a_busy_one():
    """Seen on a real cluster: with a cost that was lowered after 60 s, busy workers left while idle ones stayed."""
    late = world(
        slots=3, drain_seconds=20, scaling=ScalingSettings(down_seconds=60), cost_lag=Lag(20.0, 75.0)
    )
    assert shrunk(late).handed_back > 0
    assert shrunk(msgspec.structs.replace(late, cost_lag=World().cost_lag)).handed_back == 0


def test_a_pod_shows_late_what_its_worker_holds():
    mark = Mark(Lag(raised=3.0, lowered=27.0))
    assert mark.cost(2.9, [0.0]) == 0
    assert mark.cost(3.0, [0.0]) == 100
    assert mark.cost(63.0, [0.0]) == 1000
    assert [mark.cost(now, []) for now in (70.0, 90.0, 90.1)] == [1000, 1000, 0]
    assert mark.cost(92.0, [91.0]) == 0, "a run that ends before anybody has seen it is never shown"
    assert mark.cost(200.0, []) == 0


def test_a_drain_that_is_long_enough_hands_nothing_back():
    blind = world(drain_seconds=2000, deletion_cost=False)
    outcome = run(trace((0, 40), (1, 1000)), followed(), blind)
    assert (outcome.scaled_down, outcome.handed_back, outcome.ended) == (1, 0, 2)


class Scripted:
    """A policy that says how many there are from when on; the trigger is not asked."""

    name, triggers = "scripted", ()

    def __init__(self, first: int, **later: int) -> None:
        self.first = first
        self._later = {float(at.removeprefix("at")): replicas for at, replicas in later.items()}

    @property
    def next_at(self) -> float:
        return min(self._later, default=math.inf)

    def step(self, now, values, replicas):
        return self._later.pop(now)

    def wake(self, now, values, replicas):
        return replicas

    def scaler(self, world):
        return self

    def slots_in(self, world):
        return world.slots

    def scaling_in(self, world):
        return world.scaling


def test_a_run_that_was_handed_back_goes_before_those_that_wait():
    simulation = Simulation(trace((0, 100), (0, 100), (2, 1)), Scripted(2, at10=1), world(drain_seconds=5))
    simulation.run()
    assert simulation.handed_back == 1
    # The other worker is free at 100, and has 85 seconds of the one that came back to do first.
    assert list(simulation.waited) == [0, 0, 183]


def test_a_worker_that_drained_early_costs_until_then_only():
    hours = {
        drain: run(trace((0, 60), (0, 60)), Scripted(2, at10=0), world(drain_seconds=drain)).worker_hours
        for drain in (100, 300)
    }
    assert hours == {100: pytest.approx(120 / 3600), 300: pytest.approx(120 / 3600)}


def test_pods_that_leave_before_they_are_ready_do_nothing():
    slow = world(scheduling=Spread(5.0, 5.0), startup=Spread(5.0, 5.0), patience_seconds=700)
    unplaced = run(trace((0, 1)), Scripted(0, at1=3, at2=0), slow)
    assert (unplaced.ended, unplaced.worker_hours) == (0, 0)
    starting = run(trace((0, 1)), Scripted(0, at1=3, at8=0), slow)
    assert (starting.ended, starting.worker_hours) == (0, pytest.approx(3 * 2 / 3600))


def test_the_shares_of_waits():
    waits = waits_of([float(n) for n in range(100)])
    assert waits == Waits(mean=49.5, p50=50, p95=95, p99=99, most=99)


def test_a_crashed_workers_runs_wait_for_the_lease_and_go_on():
    fragile = world(crashes_per_hour=60.0, lease_seconds=30.0, patience_seconds=1e6)
    outcome = run(trace((0, 300)), "fixed:1", fragile)
    assert outcome.ended == 1
    assert outcome.crashes >= 1
    assert outcome.reclaimed >= 1
    calm = run(trace((0, 300)), "fixed:1")
    assert (calm.crashes, calm.reclaimed) == (0, 0)


def test_nobody_finishes_what_a_crash_took_from_him():
    # Crashes come every 2 s on average and take progress along: 60 s are never done in one piece.
    fragile = world(crashes_per_hour=1800.0, lease_seconds=5.0, checkpoints=False, patience_seconds=2000)
    outcome = run(trace((0, 60)), "fixed:1", fragile)
    assert outcome.unfinished == 1
    assert outcome.reclaimed > 10


def test_whom_a_replica_set_ends_first():
    pods = [Worker(number) for number in range(6)]
    pods[1].phase = Phase.STARTING
    for at, ready in ((2, 10.0), (3, 20.0), (4, 30.0), (5, 5.0)):
        pods[at].phase, pods[at].ready_at = Phase.READY, ready
    pods[4].runs.add(7)
    pods[3].runs.update((8, 9))
    costs = {4: 10_000, 3: 100}
    order = sorted(pods, key=lambda pod: leaving_order(pod, costs.get(pod.number, 0)))
    assert [pod.number for pod in order] == [0, 1, 2, 5, 3, 4]  # what took long already stays longest
    order = sorted(pods, key=lambda pod: leaving_order(pod, 0))
    assert [pod.number for pod in order] == [0, 1, 4, 3, 2, 5]


def test_an_outage_of_the_metric_is_answered_by_the_fallback_not_by_zero():
    runs = synthetic_trace("synthetic:poisson?rate=1&duration=30&for=1h", 3)
    away = world(slots=3, outages=((1200.0, 2400.0),))
    outcome = run(runs, "depth", away)
    during = [sample.replicas for sample in outcome.samples if 1300 < sample.at < 2400]
    assert min(during) >= 8
    assert outcome.unfinished == 0


def test_slow_pods_bring_no_worker_beyond_the_last_that_a_run_can_use():
    runs = trace(*((0, 30) for _ in range(200)))
    peaks = {
        weight: run(runs, "depth", world(slots=3, startup=Spread(60.0, 60.0), scaling=scaling)).replicas_most
        for weight in (1.0, 2.0)
        for scaling in [ScalingSettings(max_workers=200, age_weight=weight)]
    }
    assert peaks == {1.0: 67, 2.0: 67}


# -- the seed's metrics


BUSY = "synthetic:poisson?rate=1&duration=30&for=2h"  # thirty at once on average: ten workers of three


def test_depth_scales_where_pending_entries_can_not():
    runs = synthetic_trace(BUSY, 1)
    ours = run(runs, "depth", world(slots=3, scaling=ScalingSettings(max_workers=40)))
    assert ours.unfinished == 0
    assert ours.replicas_most >= 12


def test_pending_entries_never_wake_from_zero():
    outcome = run(synthetic_trace(BUSY, 1), "pending-entries", world(slots=3))
    assert (outcome.replicas_most, outcome.ended) == (0, 0)


def test_pending_entries_never_ask_for_more_than_is_running():
    # A warm worker is full: 3 in flight of a target of 3 is a ratio of 1, whatever waits behind them.
    warm = world(slots=3, scaling=ScalingSettings(min_workers=1, max_workers=40))
    outcome = run(synthetic_trace(BUSY, 1), "pending-entries", warm)
    assert outcome.replicas_most == 1
    assert outcome.queue_most > 5000


@pytest.mark.parametrize(("null", "expected"), [(0, "starves"), (-1, "goes to the maximum")])
def test_a_lag_is_null_once_entries_are_deleted_out_of_order(null, expected):
    lag = KedaSpec(
        max_replica_count=20,
        min_replica_count=1,
        polling_interval=5,
        triggers=(Trigger(metric=Metric.LAG, target=3, null_lag=null),),
    )
    outcome = run(synthetic_trace(BUSY, 1), Policy(name=expected, keda=lag), world(slots=3))
    if null == 0:
        assert outcome.replicas_most < 10  # thirty slots would be needed
        assert outcome.queue_most > 1000
    else:
        assert outcome.replicas_most == 20  # ten are needed


def test_a_lag_is_known_while_runs_end_in_order():
    lag = KedaSpec(max_replica_count=1, polling_interval=5, triggers=(Trigger(metric=Metric.LAG, target=3),))
    simulation = Simulation(trace((0, 10), (1, 10), (2, 10)), Policy(name="lag", keda=lag), WORLD)
    assert simulation.run().unfinished == 0  # one slot: in order, so it is never NULL and never 0 too early


# -- laws


traces = st.lists(st.tuples(st.floats(0, 900), st.floats(0, 200)), min_size=0, max_size=40)


@settings(max_examples=60, deadline=None)
@given(
    runs=traces,
    name=st.sampled_from(["depth", "push", "stream-length", "local", "fixed:2"]),
    slots=st.integers(1, 4),
    crashes=st.sampled_from([0.0, 20.0]),
    checkpoints=st.booleans(),
    drain=st.sampled_from([0.0, 25.0]),
    least=st.integers(0, 3),
)
def test_every_run_ends_once_within_the_bounds(runs, name, slots, crashes, checkpoints, drain, least):
    here = world(
        slots=slots,
        crashes_per_hour=crashes,
        checkpoints=checkpoints,
        drain_seconds=drain,
        startup=Spread(1.0, 9.0),
        scaling=ScalingSettings(min_workers=least, max_workers=6),
        patience_seconds=1e6,
    )
    simulation = Simulation(trace(*runs), policies_of(name, here)[0], here)
    outcome = simulation.run()
    assert outcome.ended == outcome.runs == len(runs)
    assert (simulation.waiting, simulation.pending) == (0, 0)
    assert all(waited >= 0 for waited in simulation.waited)
    if not name.startswith("fixed"):
        assert all(least <= sample.replicas <= 6 for sample in outcome.samples)
        assert outcome.replicas_most <= 6
    done = sum(duration for _, duration in runs) + outcome.repeated_seconds
    assert simulation.busy_seconds == pytest.approx(done, abs=1e-3)
    assert simulation.busy_seconds <= simulation.worker_seconds * slots + 1e-6


@pytest.mark.parametrize("name", list(NAMED))
def test_the_same_seed_gives_the_same_outcome_and_another_gives_another(name):
    here = world(slots=3, startup=Spread(1.0, 20.0), crashes_per_hour=5.0)
    runs = synthetic_trace("synthetic:step?rate=0.2&duration=30&for=30m", 4)
    again = synthetic_trace("synthetic:step?rate=0.2&duration=30&for=30m", 4)
    assert runs == again
    first, second = run(runs, name, here), run(again, name, here)
    assert first == second
    if first.crashes:
        other = run(runs, name, msgspec.structs.replace(here, seed=2))
        assert other != first
    assert synthetic_trace("synthetic:step?rate=0.2&duration=30&for=30m", 5) != runs


# -- the formula


def erlang_c_wait(rate: float, mean: float, servers: int) -> float:
    """The mean wait in an M/M/c queue."""
    load = rate * mean
    last = load**servers / math.factorial(servers) * servers / (servers - load)
    waiting = last / (sum(load**k / math.factorial(k) for k in range(servers)) + last)
    return waiting * mean / (servers - load)


@pytest.mark.parametrize(
    ("rate", "servers", "slots", "policy"),
    [(0.8, 1, 1, "fixed:1"), (2.4, 3, 1, "fixed:3"), (2.4, 3, 3, "fixed:1"), (9.0, 12, 4, "fixed:3")],
)
def test_waits_are_those_of_erlangs_formula(rate, servers, slots, policy):
    seconds = 200_000 / rate
    runs = synthetic_trace(f"synthetic:poisson?rate={rate}&duration=1&for={seconds}s", 11)
    outcome = run(runs, policy, world(slots=slots))
    assert outcome.wait_seconds.mean == pytest.approx(erlang_c_wait(rate, 1.0, servers), rel=0.05)


def test_an_empty_trace_needs_nobody():
    outcome = run(Trace(array("d"), array("d")), "depth")
    assert (outcome.runs, outcome.replicas_most, outcome.wait_seconds.most) == (0, 0, 0)
