"""Threads: the runs of one go on one after the other. The others are parked, in order, or told what the thread owes."""

from __future__ import annotations

import pytest

from holdfast.errors import Conflict, QueueFull
from holdfast.runs.execution.claim import RunLease
from holdfast.runs.retention import Retention
from holdfast.runs.run import Multitask, Status, Submission
from holdfast.telemetry.metrics import Metrics
from tests.support.runs.manual_worker import Hand, events, leases_end, open_queue, submit
from tests.support.waiting import until


@pytest.fixture
async def queue(redis):
    return await open_queue(redis)


@pytest.fixture
async def hand(queue):
    return await Hand(queue, "w").join()


async def claimed(hand: Hand, count: int = 10) -> list[str]:
    return [run.run_id for run in await hand.claim(count)]


# -- threads


async def test_runs_of_one_thread_go_on_one_after_the_other_in_the_order_they_came(queue, hand):
    for n in range(4):
        await submit(queue, f"r{n}", thread_id="t")
    for n in range(4):
        (run,) = await hand.claim(10)
        assert run.run_id == f"r{n}"
        await hand.settle(hand.lease(run))
    assert await claimed(hand) == []


async def test_runs_that_come_in_one_millisecond_keep_their_order(queue, hand):
    """Fails if the order is that of the clock: names decide a tie then, and these run backwards."""
    names = [f"r{n:03}" for n in range(60, 0, -1)]
    await queue.submit_many([Submission(agent="echo", run_id=name, thread_id="t") for name in names])
    seen = []
    for _ in names:
        (run,) = await hand.claim(10)
        seen.append(run.run_id)
        await hand.settle(hand.lease(run))
    assert seen == names


@pytest.mark.parametrize("damage", ["nan", "99999999999999999999", None])
async def test_turns_that_were_overwritten_stop_no_queue(queue, hand, damage):
    turns = queue.keys.turns
    await (queue.redis.lpush(turns, "x") if damage is None else queue.redis.set(turns, damage))
    await submit(queue, "r1", thread_id="t")
    await submit(queue, "r2", thread_id="t")
    (first,) = await hand.claim(10)
    await hand.settle(hand.lease(first))
    (second,) = await hand.claim(10)
    assert (first.run_id, second.run_id) == ("r1", "r2")
    assert 0 < first.generation < second.generation


async def test_a_run_that_waits_for_its_thread_is_parked_and_holds_no_place_in_the_queue(queue, hand):
    await submit(queue, "r1", thread_id="t")
    await submit(queue, "r2", thread_id="t")
    assert (await queue.depth()).depth == 1
    run = await queue.get("r2")
    assert (run.status, run.parked, run.entry) == (Status.QUEUED, "thread:t", "")
    await hand.settle(await hand.claim_one())
    assert await events(queue, "r2") == ["submitted", "parked", "unparked"]
    assert (await queue.get("r2")).parked == ""


async def test_other_threads_are_not_held_up(queue, hand):
    for thread in "ab":
        for n in range(2):
            await submit(queue, f"{thread}{n}", thread_id=thread)
    assert sorted(await claimed(hand)) == ["a0", "b0"]


async def test_a_busy_thread_refuses_who_says_reject(queue, hand):
    await submit(queue, "r1", thread_id="t")
    with pytest.raises(Conflict, match="thread 't' is busy with run r1"):
        await submit(queue, "r2", thread_id="t", multitask=Multitask.REJECT)
    await hand.settle(await hand.claim_one())
    await submit(queue, "r2", thread_id="t", multitask=Multitask.REJECT)
    assert await claimed(hand) == ["r2"]


async def test_who_interrupts_stops_the_running_one_and_goes_before_those_that_wait(queue, hand):
    await submit(queue, "r1", thread_id="t")
    lease = await hand.claim_one()
    await submit(queue, "r2", thread_id="t")
    await submit(queue, "r3", thread_id="t", multitask=Multitask.INTERRUPT)
    assert await hand.renew(lease) == "stop"
    await hand.settle(lease, Status.CANCELLED)
    assert await claimed(hand) == ["r3"]


async def test_who_interrupts_one_that_has_not_started_starts_at_once(queue, hand):
    await submit(queue, "r1", thread_id="t")
    await submit(queue, "r2", thread_id="t", multitask=Multitask.INTERRUPT)
    assert (await queue.get("r1")).status is Status.CANCELLED
    assert await claimed(hand) == ["r2"]


async def test_who_rolls_back_is_told_whose_state_to_undo(queue, hand):
    await submit(queue, "r1", thread_id="t")
    lease = await hand.claim_one()
    await submit(queue, "r2", thread_id="t", multitask=Multitask.ROLLBACK)
    await hand.settle(lease, Status.CANCELLED)
    (run,) = await hand.claim()
    first = await queue.get("r1")
    assert (run.run_id, run.rollback) == ("r2", (f"r1 {first.submitted_at * 1000:.0f}",))


async def test_a_rollback_is_owed_by_the_thread_if_the_one_that_wanted_it_is_stopped(queue, hand):
    """Fails if the debt is written to the run that rolls back: the next one would see what is to be undone."""
    await submit(queue, "r1", thread_id="t")
    lease = await hand.claim_one()
    await submit(queue, "r2", thread_id="t", multitask=Multitask.ROLLBACK)
    await submit(queue, "r3", thread_id="t", multitask=Multitask.INTERRUPT)
    await hand.settle(lease, Status.CANCELLED)
    (run,) = await hand.claim(10)
    assert (run.run_id, [debt.split()[0] for debt in run.rollback]) == ("r3", ["r1"])
    assert (await queue.get("r2")).status is Status.CANCELLED


async def due(hand: Hand) -> None:
    """Wait until one delayed run has been promoted."""
    await until(hand.promote)


async def test_a_delayed_run_that_interrupts_stops_the_running_one_when_it_is_due(queue, hand):
    """Fails if promotion forgets what the run was submitted for: it waits like any other."""
    await submit(queue, "r1", thread_id="t")
    lease = await hand.claim_one()
    await submit(queue, "r2", thread_id="t")
    await submit(queue, "r3", thread_id="t", multitask=Multitask.INTERRUPT, delay_seconds=0.001)
    await due(hand)
    assert await hand.renew(lease) == "stop"
    assert (await queue.get("r3")).parked == "thread:t"
    await hand.settle(lease, Status.CANCELLED)
    assert await claimed(hand) == ["r3"]
    assert await events(queue, "r3") == ["submitted", "queued", "parked", "unparked", "started"]


async def test_a_delayed_run_that_interrupts_disturbs_nobody_before_it_is_due(queue, hand):
    await submit(queue, "r1", thread_id="t")
    lease = await hand.claim_one()
    await submit(queue, "r2", thread_id="t", multitask=Multitask.INTERRUPT, delay_seconds=60)
    assert await hand.promote() == 0
    assert await hand.renew(lease) == "kept"


async def test_a_delayed_run_that_rolls_back_is_told_whose_state_to_undo(queue, hand):
    await submit(queue, "r1", thread_id="t")
    lease = await hand.claim_one()
    await submit(queue, "r2", thread_id="t", multitask=Multitask.ROLLBACK, delay_seconds=0.001)
    await due(hand)
    await hand.settle(lease, Status.CANCELLED)
    (run,) = await hand.claim()
    assert (run.run_id, [debt.split()[0] for debt in run.rollback]) == ("r2", ["r1"])


async def test_a_delayed_run_pushes_once_and_not_again_when_it_is_retried(queue, hand, redis):
    await submit(queue, "r1", thread_id="t", multitask=Multitask.INTERRUPT, delay_seconds=0.001)
    await due(hand)
    assert await redis.hexists(queue.keys.run("r1"), "multitask") is False
    lease = await hand.claim_one()
    await submit(queue, "r2", thread_id="t", multitask=Multitask.INTERRUPT)
    await hand.settle(lease, Status.DELAYED, 1)
    assert (await queue.get("r1")).status is Status.CANCELLED
    assert await claimed(hand) == ["r2"]


async def test_parked_runs_count_when_a_queue_is_full(redis):
    queue = await open_queue(redis, max_depth=3)
    for n in range(3):
        await submit(queue, f"r{n}", thread_id="t")
    with pytest.raises(QueueFull):
        await submit(queue, "r3", thread_id="t")


async def test_a_parked_run_does_not_keep_other_permits_from_those_that_could_use_them(redis):
    queue = await open_queue(redis, tenant_concurrency=2)
    hand = await Hand(queue, "w", {"writer": 1}).join()
    await submit(queue, "other", agent="writer", tenant="bolt")
    await submit(queue, "w1", agent="writer", tenant="acme")
    await submit(queue, "w2", agent="writer", tenant="acme")
    await submit(queue, "reader", agent="reader", tenant="acme")
    assert await claimed(hand) == ["other", "reader"]


async def test_a_foreign_entry_of_a_thread_waits_for_it_too(queue, hand, redis):
    for n in range(2):
        message = f'{{"input": {n}, "thread_id": "t", "tenant": "acme"}}'
        fields = {"message_data": message, "agent_id": "echo", "correlation_id": f"r{n}"}
        await redis.xadd(queue.keys.stream, fields)
    assert await claimed(hand) == ["r0"]
    assert (await queue.get("r1")).parked == "thread:t"
    await hand.settle(RunLease("r0", "w", 1))
    assert await claimed(hand) == ["r1"]


async def test_a_retried_run_keeps_its_thread(queue, hand):
    await submit(queue, "r1", thread_id="t")
    await submit(queue, "r2", thread_id="t")
    await hand.settle(await hand.claim_one(), Status.DELAYED, 1)
    await due(hand)
    assert await claimed(hand) == ["r1"]


async def test_a_dead_workers_run_keeps_its_thread_and_nobody_is_lost(queue, hand, redis):
    other = await Hand(queue, "other").join()
    await submit(queue, "r1", thread_id="t")
    await submit(queue, "r2", thread_id="t")
    await hand.claim_one()
    await leases_end(queue)
    await other.reclaim_all()
    assert await claimed(other) == ["r1"]
    await other.settle(RunLease("r1", "other", 3))
    assert await claimed(other) == ["r2"]


@pytest.mark.parametrize("state", ["parked", "queued", "delayed"])
async def test_a_cancelled_run_lets_the_next_one_go_on(queue, hand, state):
    await submit(queue, "first", thread_id="t")
    await submit(queue, "second", thread_id="t")
    await submit(queue, "third", thread_id="t")
    if state == "delayed":
        await hand.settle(await hand.claim_one(), Status.DELAYED, 60_000)
    await queue.cancel("second" if state == "parked" else "first")
    expected = {"parked": "first", "queued": "second", "delayed": "second"}[state]
    assert await claimed(hand) == [expected]
    await hand.settle(RunLease(expected, "w", 1))
    assert await claimed(hand) == ["third"]


async def test_a_permit_of_a_run_whose_record_was_deleted_is_freed(queue, hand, redis):
    await submit(queue, "r1", thread_id="t")
    await submit(queue, "r2", thread_id="t")
    await hand.claim_one()
    await redis.delete(queue.keys.run("r1"))
    swept = await Retention(queue, Metrics(), ttl_seconds=0.0).run_once()
    assert swept.freed == 1
    assert await claimed(hand) == ["r2"]


async def test_a_parked_run_is_not_taken_for_a_lost_one(queue, hand):
    await submit(queue, "r1", thread_id="t")
    await submit(queue, "r2", thread_id="t")
    assert (await Retention(queue, Metrics(), ttl_seconds=0.0).run_once()).restored == []
    assert (await queue.get("r2")).parked == "thread:t"


# -- names of a tenant


async def test_a_thread_of_a_tenant_is_shown_by_the_name_it_was_given(queue, hand, redis):
    await submit(queue, "r1", thread_id="t", tenant="ac/me%")
    await submit(queue, "r2", thread_id="t", tenant="ac/me%")
    run = await queue.get("r2")
    assert (run.thread_id, run.parked) == ("t", "thread:t")
    assert [each.thread_id for each in (await queue.list()).runs] == ["t", "t"]
    await hand.settle(await hand.claim_one())
    told = [fields[b"data"] for _, fields in await redis.xrange(queue.keys.feed("r2"))]
    assert told == [b"{}", b'{"limit":"thread:t"}', b'{"limit":"thread:t"}']


async def test_no_tenant_reaches_anothers_thread_by_a_slash_in_its_name(queue, hand):
    """Fails if a tenant's name is not escaped: both are a/b/c then, and one waits for the other."""
    await submit(queue, "r1", thread_id="b/c", tenant="a")
    await submit(queue, "r2", thread_id="c", tenant="a/b")
    assert await claimed(hand) == ["r1", "r2"]


async def test_the_same_idempotency_key_of_two_tenants_is_two_runs(queue):
    first = await submit(queue, thread_id="t", tenant="acme", idempotency_key="k")
    assert await submit(queue, thread_id="t", tenant="acme", idempotency_key="k") == first
    assert await submit(queue, thread_id="t", tenant="bolt", idempotency_key="k") != first
