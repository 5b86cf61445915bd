"""Queues that no worker serves are reported once a scale-up would have brought one, and no sooner."""

from __future__ import annotations

from typing import Any

from holdfast.api.unserved import UnservedQueues
from holdfast.redis.members import Member
from holdfast.scaling.depth import Need

AFTER = 300.0


def need(queue: str = "q", *, undelivered: int = 0, due: int = 0, paused: bool = False, **more: Any) -> Need:
    fields = {"depth": 0.0, "in_flight": 0, "oldest_seconds": 0.0, "slots": 3, "wanted": 0, **more}
    return Need(queue=queue, undelivered=undelivered, due=due, paused=paused, **fields)


def worker(queues: str = "q", state: str = "working") -> Member:
    return Member("worker", "w", {"queues": queues, "state": state})


def test_a_queue_with_waiting_runs_and_no_worker_is_reported_after_a_scale_up_and_once():
    queues = UnservedQueues(AFTER)
    assert queues.observe(0.0, [need(undelivered=1)], []) == ([], [])
    assert queues.observe(AFTER - 1, [need(undelivered=1)], []) == ([], [])
    assert queues.observe(AFTER, [need(undelivered=2)], []) == ([need(undelivered=2)], [])
    assert queues.names == ("q",)
    assert queues.observe(AFTER + 10, [need(undelivered=2)], []) == ([], [])
    assert queues.observe(AFTER + 20, [need(undelivered=2)], [worker()]) == ([], ["q"])
    assert queues.names == ()


def test_a_system_that_was_scaled_to_zero_is_never_reported():
    queues = UnservedQueues(AFTER)
    for at in range(0, 100_000, 10):
        # Now and then a run comes, and its worker a minute later.
        coming = at % 1000 < 60
        observed = queues.observe(float(at), [need(undelivered=int(coming))], [])
        assert observed == ([], [])


def test_a_paused_queue_a_delayed_run_and_another_queues_worker():
    queues = UnservedQueues(AFTER)
    needs = [need("paused", undelivered=5, paused=True), need("late", due=1), need("served", undelivered=9)]
    queues.observe(0.0, needs, [worker("served,other")])
    began, _ = queues.observe(AFTER, needs, [worker("served,other")])
    assert [each.queue for each in began] == ["late"], "a due run waits like any other"


def test_a_worker_that_is_leaving_serves_nothing():
    queues = UnservedQueues(AFTER)
    for at in (0.0, AFTER):
        queues.observe(at, [need(undelivered=1)], [worker(state="draining")])
    assert queues.names == ("q",)


def test_while_redis_does_not_answer_no_time_passes_and_no_report_ends():
    """Workers are not known to be there for a heartbeat after an outage. Fails if the outage counts."""
    queues = UnservedQueues(AFTER)
    queues.observe(0.0, [need(undelivered=1)], [])
    queues.forget_times()
    assert queues.observe(AFTER, [need(undelivered=1)], []) == ([], [])
    queues.observe(2 * AFTER, [need(undelivered=1)], [])
    queues.forget_times()
    assert queues.observe(2 * AFTER + 1, [need(undelivered=1)], []) == ([], [])
    assert queues.names == ("q",)


def test_a_queue_that_can_not_be_read_stays_reported_and_its_time_begins_anew():
    queues = UnservedQueues(AFTER)
    both = [need("q", undelivered=1), need("r", undelivered=1)]
    queues.observe(0.0, both[:1], [])
    queues.observe(AFTER, both, [])
    assert queues.observe(AFTER + 10, [], [], unread={"q", "r"}) == ([], [])
    assert queues.names == ("q",)
    assert queues.observe(2 * AFTER, both, []) == ([], []), "nobody knows if r had a worker in between"
    assert queues.observe(2 * AFTER + 10, [], []) == ([], ["q"])
