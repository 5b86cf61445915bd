"""Somebody writes something else under a run's keys: that run suffers, and nobody waits behind it."""

from __future__ import annotations

import asyncio

import pytest
from redis.exceptions import ResponseError

from holdfast.errors import LeaseLost, RedisUnavailable
from holdfast.leases.lease import RenewalReply
from holdfast.runs.archive import Archive
from holdfast.runs.execution.emit import Emitter
from holdfast.runs.execution.settle import SettleReply
from holdfast.runs.execution.settlement import Settlement
from holdfast.runs.retention import Retention
from holdfast.runs.run import Multitask, Status, Submission
from holdfast.store.lazy import LazyStore
from holdfast.telemetry.metrics import Metrics
from tests.support.redis.key_ttls import noted_ends
from tests.support.runs.manual_worker import (
    Hand,
    events,
    expiry_without_retention,
    leases_end,
    next_ms,
    open_queue,
    submit,
)
from tests.support.runs.system import System
from tests.support.waiting import until


@pytest.fixture
async def queue(redis):
    return await open_queue(redis)


@pytest.fixture
async def hand(queue):
    return await Hand(queue, "w").join()


async def damage(queue, run_id: str, *, key: str = "run") -> None:
    name = getattr(queue.keys, key)(run_id)
    await queue.redis.delete(name)
    await queue.redis.set(name, "not what it was")


async def test_delayed_runs_behind_it_become_due(queue, hand):
    """Fails if the promoter stops at the record that it can't read: it comes there first every time."""
    await submit(queue, "a", delay_seconds=0.001)
    await submit(queue, "b", delay_seconds=0.002)
    await damage(queue, "a")

    async def entries() -> int:
        await hand.promote()
        return await queue.redis.xlen(queue.keys.stream)

    await until(entries)
    assert [run.run_id for run in await hand.claim(5)] == ["b"]
    assert await queue.redis.zcard(queue.keys.delayed) == 0


@pytest.mark.parametrize("what", ["record", "entry", "lane"])
async def test_the_others_of_a_batch_are_settled_whole(queue, hand, what):
    """Fails if the batch ends there: the runs before it would have their result, but never leave the stream."""
    for name in "abc":
        await submit(queue, name, thread_id="t" if name == "b" else "")
    leases = [hand.lease(run) for run in await hand.claim(3)]
    if what == "record":
        await damage(queue, "b")
    else:
        await queue.redis.hset(queue.keys.run("b"), what, "nowhere")
    batch = [Settlement(lease, Status.SUCCEEDED, "result", b"1", b"{}") for lease in leases]
    assert await hand._settler._settle(batch) == [SettleReply.SETTLED, SettleReply.STALE, SettleReply.SETTLED]
    assert await queue.redis.xlen(queue.keys.stream) == 1
    unarchived = await queue.redis.lrange(queue.keys.unarchived, 0, -1)
    assert [note.split()[1:] for note in unarchived] == [[b"a", b"c"]]
    assert await noted_ends(queue.redis, queue.keys.ended) == {"a", "c"}
    assert (await events(queue, "b")).count("succeeded") == 0


async def test_a_limit_that_was_overwritten_costs_the_others_of_a_batch_nothing(queue, hand):
    """Fails if the batch ends at the run whose permit can't be given back: the others would never end."""
    for name in "abc":
        await submit(queue, name, thread_id="t" if name == "b" else "")
    leases = [hand.lease(run) for run in await hand.claim(3)]
    (holding,) = await queue.redis.keys("*holding:thread:t")
    await queue.redis.set(holding, "not what it was")
    batch = [Settlement(lease, Status.SUCCEEDED, "result", b"1", b"{}") for lease in leases]
    assert await hand._settler._settle(batch) == [SettleReply.SETTLED, SettleReply.STALE, SettleReply.SETTLED]
    assert {"a", "c"} <= await noted_ends(queue.redis, queue.keys.ended)
    assert await queue.redis.xlen(queue.keys.stream) == 1


@pytest.mark.parametrize("what", ["ended", "unarchived"])
async def test_what_ended_is_noted_in_the_list_that_is_left(queue, hand, log_lines, what):
    """Fails if the second note waits for the first: the runs would never be archived, or never leave."""
    for name in "abc":
        await submit(queue, name)
    leases = [hand.lease(run) for run in await hand.claim(3)]
    await queue.redis.set(getattr(queue.keys, what), "not what it was")
    batch = [Settlement(lease, Status.SUCCEEDED, "result", b"1") for lease in leases]
    verdicts = await hand._settler._until_answered(batch, hand._settler._settle)
    assert verdicts == [SettleReply.ALREADY] * 3
    assert any("WRONGTYPE" in line.get("error", "") for line in log_lines())
    assert await queue.redis.xlen(queue.keys.stream) == 0
    if what == "ended":
        (note,) = await queue.redis.lrange(queue.keys.unarchived, 0, -1)
        assert note.split()[1:] == [b"a", b"b", b"c"]
    else:
        assert await noted_ends(queue.redis, queue.keys.ended) == {"a", "b", "c"}


async def test_the_others_keep_their_leases(queue, hand):
    """Fails if the renewal stops at it: a worker would lose all that it holds."""
    for name in "abc":
        await submit(queue, name)
    leases = [hand.lease(run) for run in await hand.claim(3)]
    await damage(queue, "b")
    standings = await hand.leases.renew(queue.redis, leases)
    assert standings == [RenewalReply.KEPT, RenewalReply.LOST, RenewalReply.KEPT]


async def test_the_others_are_handed_back(queue, hand):
    """Fails if the batch ends there: what went back before it would be called refused when it is sent again."""
    for name in "abc":
        await submit(queue, name)
    leases = [hand.lease(run) for run in await hand.claim(3)]
    await damage(queue, "b")
    assert await hand.leases.release(queue.redis, leases) == [True, False, True]


async def test_the_others_tell_what_happens(queue, hand):
    """Fails if events that are sent together end there: an agent would fail for another's record."""
    for name in "abc":
        await submit(queue, name)
    runs = await hand.claim(3)
    emitter = Emitter(queue, "w", Metrics())
    await damage(queue, "b")
    said = await asyncio.gather(*(emitter.for_run(run)("said", 1) for run in runs), return_exceptions=True)
    assert [isinstance(one, LeaseLost) for one in said] == [False, True, False]
    for name in "ac":
        assert await events(queue, name) == ["submitted", "started", "said"]


async def test_the_line_behind_it_goes_on(queue, hand):
    """Fails if who lets the next one in stops at it: a run that has ended would run again."""
    for name in "abc":
        await submit(queue, name, thread_id="t")
    (first,) = await hand.claim(3)
    await damage(queue, "b")
    assert await hand.settle(hand.lease(first)) is SettleReply.SETTLED
    (last,) = await hand.claim(3)
    assert (first.run_id, last.run_id) == ("a", "c")
    assert await hand.settle(hand.lease(last)) is SettleReply.SETTLED


async def test_whoever_lists_runs_sees_the_others(queue, hand):
    for name in "abc":
        await submit(queue, name)
    await damage(queue, "b")
    assert {run.id for run in (await queue.list()).runs} == {"a", "c"}


async def test_who_pushes_it_off_its_thread_is_accepted(queue, hand):
    """Fails if the submission stops at what it rolls back: others are in the same call."""
    await submit(queue, "a", thread_id="t")
    await hand.claim_one()
    await damage(queue, "a")
    assert await submit(queue, "b", thread_id="t", multitask=Multitask.ROLLBACK) == "b"


async def damage_feed(queue, run_id: str, how: str) -> None:
    if how == "overwritten":
        await damage(queue, run_id, key="feed")
    else:  # no id is left for its next event
        await queue.redis.xadd(queue.keys.feed(run_id), {"type": "last"}, id=f"{2**64 - 1}-{2**64 - 1}")


@pytest.mark.parametrize("how", ["overwritten", "used up"])
@pytest.mark.parametrize("when", ["queued", "running", "dead"])
async def test_a_feed_that_is_none_any_more_stops_nobody(queue, hand, when, how):
    """Fails if the feed is trusted to be one: claim, settle or reclaim raise, and no run of the queue goes on."""
    for name in "abc":
        await submit(queue, name)
    if when == "queued":
        await damage_feed(queue, "b", how)
    runs = await hand.claim(3)
    assert [run.run_id for run in runs] == ["a", "b", "c"]
    if when != "queued":
        await damage_feed(queue, "b", how)
    if when == "dead":
        await leases_end(queue)
        hand = await Hand(queue, "other").join()
        await hand.reclaim_all()
        runs = await hand.claim(3)
    if when == "queued":
        assert await events(queue, "b") == ["started"]
    for run in runs:
        assert await hand.settle(hand.lease(run)) is SettleReply.SETTLED
    assert "succeeded" in await events(queue, "b")


async def test_a_foreign_entry_whose_adoption_was_cut_short_is_read_by_its_names(queue, hand):
    """Fails if a record without a fence is taken as a sign that the entry is one of ours."""
    names = {"timestamp": "1.0", "message_data": '{"a":1}', "task_id": "t", "agent_id": "good"}
    await queue.redis.xadd(queue.keys.stream, {**names, "correlation_id": "r"})
    await queue.redis.set(queue.keys.runs, "not what it was")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await hand.claim()
    await queue.redis.delete(queue.keys.runs)
    assert (await hand._claimer.tidy([])).entries == 1
    (run,) = await hand.claim()
    assert (run.agent, run.message) == ("good", b'{"a":1}')


async def test_of_a_run_that_is_named_twice_the_first_one_counts(queue, hand):
    """Fails if the one whose feed has to be made anew is settled after its double."""
    await submit(queue, "a")
    (run,) = await hand.claim(1)
    await damage(queue, "a", key="feed")
    batch = [Settlement(hand.lease(run), Status.SUCCEEDED, "result", value) for value in (b"1", b"2")]
    assert await hand._settler._settle(batch) == [SettleReply.SETTLED, SettleReply.ALREADY]
    assert (await queue.get("a")).result == 1


async def test_the_archive_and_the_expiry_go_on_behind_it(redis, redis_settings):
    async with System(redis_settings) as system:
        queue = system.queue
        hand = await Hand(queue, "w").join()
        for name in "abcd":
            await submit(queue, name)
        for run in await hand.claim(4):
            await hand.settle(hand.lease(run))
        await damage(queue, "a")
        await queue.redis.hset(queue.keys.run("b"), "attempt", "many")
        door = LazyStore(system.settings.database)
        assert (await Archive(queue, door, Metrics()).run_once()).archived == 3
        assert await queue.redis.llen(queue.keys.unarchived) == 0
        await damage(queue, "c")
        await queue.redis.zadd(queue.keys.ended, dict.fromkeys("abcd", 1))
        assert await expiry_without_retention(queue).run_once() == 4
        await door.aclose()


async def test_a_sweep_passes_over_it(queue, hand):
    for name in "ab":
        await submit(queue, name)
    await damage(queue, "a")
    await queue.redis.xtrim(queue.keys.stream, maxlen=0, approximate=False)
    await next_ms(queue)
    retention = Retention(queue, Metrics(), ttl_seconds=0.0)
    for _ in range(3):
        await retention.run_once()
    assert [run.run_id for run in await hand.claim(5)] == ["b"]


async def test_a_cancelled_run_is_not_ended_again_by_who_held_it(queue, hand):
    """The group was made anew while it ran and was cancelled: it is claimed again, and dropped."""
    await submit(queue, "a")
    lease = await hand.claim_one()
    await queue.cancel("a", "enough")
    await queue.redis.xgroup_destroy(queue.keys.stream, queue.settings.group)
    await queue.ensure()
    await queue.redis.execute_command("XGROUP", "SETID", queue.keys.stream, queue.settings.group, "0")
    assert await (await Hand(queue, "other").join()).claim(5) == []
    assert await hand.settle(lease) is SettleReply.STALE
    assert (await queue.get("a")).status is Status.CANCELLED


async def test_what_was_accepted_before_redis_went_is_told(redis, redis_settings, monkeypatch):
    """Fails if the whole call raises: whoever sends all of it again would run the first ones twice."""
    monkeypatch.setattr("holdfast.runs.submit._BATCH", 2)
    async with System(redis_settings) as system:
        submitter = system.queue.partitions[0]._submitter
        sent, send = [], submitter._sending

        async def going_away(call):
            sent.append(call)
            if len(sent) > 2:
                raise RedisUnavailable("gone", retry_after=1.0)
            return await send(call)

        monkeypatch.setattr(submitter, "_sending", going_away)
        told = await system.queue.submit_many([Submission(agent="echo", input=n) for n in range(9)])
        assert [type(one).__name__ for one in told] == ["Ticket"] * 4 + ["RedisUnavailable"] * 5
        assert len(sent) == 3, "nobody is asked again who is known to be away"
        assert await redis.xlen(system.queue.keys.stream) == 4
        with pytest.raises(RedisUnavailable):
            await system.queue.submit_many([Submission(agent="echo")])
