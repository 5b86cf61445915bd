"""Retention: what is done leaves, work never does, and a run that got lost between two places is put back once."""

from __future__ import annotations

import asyncio

import pytest
from byhand import TTL_SECONDS, Hand, events, lane_of, next_ms, now_ms, open_queue, submit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.config import QueueSettings
from holdfast.runs.queue import RunQueue
from holdfast.runs.retention import Retention
from holdfast.runs.run import Priority, Status
from holdfast.runs.settle import Settlement, Verdict
from holdfast.telemetry.metrics import Metrics


@pytest.fixture
async def queue(redis) -> RunQueue:
    return await open_queue(redis)


@pytest.fixture
async def keeping(redis) -> RunQueue:
    """A queue that keeps acked entries, but whose retention is over at once."""
    return await open_queue(redis, delete_after_ack=False, retention_seconds=0)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def retention_of(queue, *, ttl: float = 0.0, pages: int = 250) -> Retention:
    return Retention(queue, Metrics(), ttl_seconds=ttl, pages=pages)


async def settle_next(hand: Hand, count: int = 1) -> None:
    """Let runs end, and be archived."""
    for run in await hand.claim(count):
        assert await hand.settle(hand.lease(run)) is Verdict.SETTLED
    await hand.queue.redis.delete(hand.queue.keys.unarchived)


# -- ended runs


async def test_an_ended_run_leaves_when_its_time_is_over_and_nothing_of_it_stays(queue, redis):
    for n in range(3):
        await submit(queue, f"r{n}")
    await settle_next(await Hand(queue, "w").join(), 2)
    await redis.zadd(queue.keys.ended, {"r0": 1})
    assert (await retention_of(queue).run_once(dry_run=True)).left == 1
    assert await redis.exists(queue.keys.run("r0"), queue.keys.feed("r0")) == 2
    assert (await retention_of(queue).run_once()).left == 1
    assert await redis.exists(queue.keys.run("r0"), queue.keys.feed("r0")) == 0
    assert await redis.zrange(queue.keys.runs, 0, -1) == [b"r1", b"r2"]
    assert await redis.zrange(queue.keys.ended, 0, -1) == [b"r1"]


async def test_a_live_run_under_the_id_of_an_ended_one_does_not_leave(queue, redis):
    """Somebody deleted the record by hand. Fails if the note alone decides."""
    await submit(queue, "r1")
    await settle_next(await Hand(queue, "w").join())
    await redis.delete(queue.keys.run("r1"))
    await submit(queue, "r1")
    await redis.zadd(queue.keys.ended, {"r1": 1})
    assert (await retention_of(queue).run_once()).left == 0
    assert (await queue.get("r1")).status is Status.QUEUED
    assert await redis.zcard(queue.keys.ended) == 0


async def test_more_than_a_page_leaves_in_one_pass(queue, redis, monkeypatch):
    monkeypatch.setattr("holdfast.runs.expiry._PAGE", 3)
    for n in range(10):
        await submit(queue, f"r{n}")
    await settle_next(await Hand(queue, "w").join(), 10)
    await redis.zadd(queue.keys.ended, {f"r{n}": 1 for n in range(10)})
    assert (await retention_of(queue).run_once()).left == 10
    assert [key for key in await redis.keys("*") if b":run:" in key] == []


async def succeed_together(hand: Hand, count: int) -> None:
    """Let runs end in one call, as a busy worker does, and be archived."""
    runs = await hand.claim(count)
    batch = [Settlement(hand.lease(run), Status.SUCCEEDED, "result", b"1") for run in runs]
    assert await hand._settler._settle(batch) == [Verdict.SETTLED] * count
    await hand.queue.redis.delete(hand.queue.keys.unarchived)


async def time_is_over(queue: RunQueue) -> None:
    """Make everything leave that is noted."""
    notes = await queue.redis.zrange(queue.keys.ended, 0, -1)
    await queue.redis.zadd(queue.keys.ended, dict.fromkeys(notes, 1))


async def test_those_that_succeeded_together_leave_together(queue, redis, monkeypatch):
    monkeypatch.setattr("holdfast.runs.expiry._PAGE", 3)
    for n in range(12):
        await submit(queue, f"r{n}")
    hand = await Hand(queue, "w").join()
    await succeed_together(hand, 5)
    await succeed_together(hand, 5)
    await settle_next(hand)
    assert await redis.zcard(queue.keys.ended) == 3
    leaves = await redis.zscore(queue.keys.ended, (await redis.zrange(queue.keys.ended, 0, 0))[0])
    assert 0 < leaves - await now_ms(redis) <= 86_400_000
    swept = await retention_of(queue).run_once()
    assert (swept.left, swept.expiring, swept.forgotten) == (0, 0, 0), "they have their time to leave"
    await time_is_over(queue)
    assert (await retention_of(queue).run_once(dry_run=True)).left == 11
    assert (await retention_of(queue).run_once()).left == 11
    assert await redis.zrange(queue.keys.runs, 0, -1) == [b"r11"]
    assert [key for key in await redis.keys("*") if b":run:" in key and b":run:r11" not in key] == []
    assert await redis.zcard(queue.keys.ended) == 0


async def test_of_those_that_succeeded_together_one_that_came_again_stays(queue, redis):
    """Somebody deleted records by hand. Fails if the first end's note is taken for the second's, or for a live run."""
    for name in "abc":
        await submit(queue, name)
    hand = await Hand(queue, "w").join()
    await succeed_together(hand, 3)
    await time_is_over(queue)
    await redis.delete(queue.keys.run("a"), queue.keys.run("b"))
    await next_ms(queue)
    await submit(queue, "a")
    await settle_next(hand)
    await submit(queue, "b")
    assert (await retention_of(queue).run_once()).left == 1
    assert (await queue.get("a")).status is Status.SUCCEEDED
    assert (await queue.get("b")).status is Status.QUEUED
    assert await redis.exists(queue.keys.run("c")) == 0
    assert await redis.zrange(queue.keys.ended, 0, -1) == [b"a"]


async def test_of_those_that_succeeded_together_one_that_still_goes_outside_stays_alone(redis):
    queue = RunQueue(QueueSettings(), redis, outside=True)
    await queue.ensure()
    for name in "abc":
        await submit(queue, name)
    await succeed_together(await Hand(queue, "w").join(), 3)
    await redis.zrem(queue.keys.outbox, "a", "c")
    await time_is_over(queue)
    assert (await retention_of(queue).run_once()).left == 2
    assert (await queue.get("b")).status is Status.SUCCEEDED
    assert await redis.zrange(queue.keys.ended, 0, -1) == [b"b"]
    await redis.zrem(queue.keys.outbox, "b")
    await time_is_over(queue)
    assert (await retention_of(queue).run_once()).left == 1


async def test_a_succeeded_run_whose_note_is_gone_leaves_in_the_end(queue, redis):
    await submit(queue, "r1")
    await settle_next(await Hand(queue, "w").join())
    await redis.delete(queue.keys.ended)
    assert (await retention_of(queue).run_once()).expiring == 0, "it may be noted with others"
    await redis.hset(queue.keys.run("r1"), "finished_at", int(await now_ms(redis)) - 2 * 86_400_000 - 1)
    assert (await retention_of(queue).run_once()).expiring == 1
    assert await redis.zscore(queue.keys.ended, "r1") > 0


# -- the index


async def test_a_run_without_a_record_leaves_the_index_and_a_live_one_stays(queue, redis):
    for n in range(5):
        await submit(queue, f"r{n}")
    await redis.delete(*(queue.keys.run(f"r{n}") for n in (0, 2, 3)))
    swept = await retention_of(queue).run_once()
    assert (swept.forgotten, swept.whole) == (3, True)
    assert await redis.zrange(queue.keys.runs, 0, -1) == [b"r1", b"r4"]


async def test_a_pass_is_bounded_says_so_and_the_next_one_goes_on(queue, redis, monkeypatch):
    monkeypatch.setattr("holdfast.runs.retention._PAGE", 3)
    for n in range(10):
        await submit(queue, f"r{n}")
        if n % 2:
            await redis.delete(queue.keys.run(f"r{n}"))
    retention = retention_of(queue, pages=2)
    passes = [await retention.run_once() for _ in range(2)]
    assert [swept.whole for swept in passes] == [False, True]
    assert sum(swept.forgotten for swept in passes) == 5
    assert await redis.zcard(queue.keys.runs) == 5


async def test_a_dry_run_changes_nothing(queue, redis):
    await submit(queue, "r1")
    await submit(queue, "r2")
    await redis.delete(queue.keys.run("r1"))
    await redis.xtrim(queue.keys.stream, maxlen=0, approximate=False)
    await next_ms(queue)
    before = {key: await redis.dump(key) for key in await redis.keys("*")}
    swept = await retention_of(queue).run_once(dry_run=True)
    assert (swept.forgotten, swept.restored) == (1, ["r2"])
    assert {key: await redis.dump(key) for key in await redis.keys("*")} == before


# -- acked entries


async def test_acked_entries_are_trimmed_when_their_time_is_over(keeping, redis):
    hand = await Hand(keeping, "w").join()
    for n in range(5):
        await submit(keeping, f"r{n}")
    await settle_next(hand, 5)
    await next_ms(keeping)
    assert await redis.xlen(keeping.keys.stream) == 5
    assert (await retention_of(keeping).run_once()).trimmed == 5
    assert await redis.xlen(keeping.keys.stream) == 0
    assert (await keeping.depth()).depth == 0


async def test_acked_entries_stay_until_their_time_is_over(redis):
    queue = await open_queue(redis, delete_after_ack=False, retention_seconds=3600)
    hand = await Hand(queue, "w").join()
    await submit(queue, "r1")
    await settle_next(hand)
    assert (await retention_of(queue).run_once()).trimmed == 0
    assert await redis.xlen(queue.keys.stream) == 1


async def test_nothing_is_trimmed_from_the_oldest_pending_entry_on(keeping):
    """Fails if trim.lua does not ask for the oldest pending entry: the run that r1's worker is doing loses its entry."""
    hand = await Hand(keeping, "w").join()
    for n in range(4):
        await submit(keeping, f"r{n}")
    runs = await hand.claim(4)
    for n in (0, 2, 3):
        await hand.settle(hand.lease(runs[n]))
    await next_ms(keeping)
    assert (await retention_of(keeping).run_once()).trimmed == 1
    assert await lane_of(keeping, keeping.keys.stream) == ["r1", "r2", "r3"]
    assert await hand.hand_back(hand.lease(runs[1]))
    assert await lane_of(keeping, keeping.keys.returned) == ["r1"]


async def test_nothing_is_trimmed_that_no_worker_has_been_given(keeping):
    """Fails if trim.lua does not ask for the group's last delivered id: runs vanish that nobody ever saw."""
    hand = await Hand(keeping, "w").join()
    for n in range(4):
        await submit(keeping, f"r{n}")
    await settle_next(hand, 2)
    await next_ms(keeping)
    assert (await retention_of(keeping).run_once()).trimmed == 2
    assert await lane_of(keeping, keeping.keys.stream) == ["r2", "r3"]
    assert [run.run_id for run in await hand.claim(5)] == ["r2", "r3"]


async def test_another_group_on_the_stream_keeps_what_it_has_not_read(keeping, redis):
    """Fails if only our own group is asked."""
    hand = await Hand(keeping, "w").join()
    await redis.xgroup_create(keeping.keys.stream, "audit", id="0")
    await submit(keeping, "r1")
    await settle_next(hand)
    await next_ms(keeping)
    assert (await retention_of(keeping).run_once()).trimmed == 0


async def test_a_lane_whose_group_is_gone_is_left_alone(keeping, redis):
    await submit(keeping, "r1")
    await redis.xgroup_destroy(keeping.keys.stream, keeping.settings.group)
    await next_ms(keeping)
    assert (await retention_of(keeping).run_once()).trimmed == 0
    assert await redis.xlen(keeping.keys.stream) == 1


async def test_what_was_kept_before_the_setting_changed_leaves_too(redis):
    """Else the depth of a queue that deletes after ack, which is XLEN, would count it for ever."""
    keeping = await open_queue(redis, delete_after_ack=False, retention_seconds=0)
    hand = await Hand(keeping, "w").join()
    await submit(keeping, "r1")
    await settle_next(hand)
    deleting = await open_queue(redis, delete_after_ack=True, retention_seconds=0)
    assert (await deleting.depth()).depth == 1
    await next_ms(deleting)
    assert (await retention_of(deleting).run_once()).trimmed == 1
    assert (await deleting.depth()).depth == 0


async def test_a_long_lane_is_trimmed_in_bounded_calls(keeping, redis, monkeypatch):
    monkeypatch.setattr("holdfast.runs.retention._TRIM_PAGE", 200)
    hand = await Hand(keeping, "w").join()
    for _ in range(1234):
        await redis.xadd(keeping.keys.stream, {"a": "b"})
    await redis.xreadgroup(keeping.settings.group, hand.name, streams={keeping.keys.stream: ">"}, count=2000)
    pending = await redis.xpending_range(keeping.keys.stream, keeping.settings.group, "-", "+", 2000)
    await redis.xack(keeping.keys.stream, keeping.settings.group, *(row["message_id"] for row in pending))
    await next_ms(keeping)
    retention = retention_of(keeping, pages=3)
    first = await retention.run_once()
    assert not first.whole
    assert 0 < first.trimmed <= 600  # whole nodes only, so a page may be a little less
    passes = 1
    while not (await retention.run_once()).whole:
        passes += 1
    assert passes >= 2
    assert await redis.xlen(keeping.keys.stream) == 0


async def test_depth_counts_what_waits_though_redis_lost_count(redis):
    """Deleting the entry that was delivered last makes `lag` nil. Fails if depth.lua takes nil for none."""
    queue = await open_queue(redis, delete_after_ack=False)
    hand = await Hand(queue, "w").join()
    for n in range(5):
        await submit(queue, f"r{n}")
    await settle_next(hand)
    await hand.settle(await hand.claim_one(), Status.DELAYED, 60_000)
    group = (await redis.xinfo_groups(queue.keys.stream))[0]
    assert group["lag"] is None
    assert (await queue.depth()).undelivered == 3


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ends=st.lists(st.booleans(), min_size=1, max_size=12), unread=st.integers(0, 5))
async def test_whatever_was_acked_in_whatever_order_no_work_is_trimmed(redis, ends, unread):
    await redis.flushall()
    queue = await open_queue(redis, delete_after_ack=False, retention_seconds=0)
    hand = await Hand(queue, "w").join()
    ids = [await submit(queue, f"r{n}") for n in range(len(ends) + unread)]
    runs = await hand.claim(len(ends))
    for run, done in zip(runs, ends, strict=True):
        if done:
            await hand.settle(hand.lease(run))
    await next_ms(queue)
    await retention_of(queue).run_once()
    left = await lane_of(queue, queue.keys.stream)
    held = [run.run_id for run, done in zip(runs, ends, strict=True) if not done]
    assert set(held) | set(ids[len(ends) :]) <= set(left)
    assert (await queue.depth()).depth == len(held) + unread


# -- runs that are nowhere


async def test_a_waiting_run_whose_entry_was_deleted_is_queued_again(queue, redis):
    await submit(queue, "r1", priority=Priority.HIGH)
    await redis.xdel(queue.keys.high, (await queue.get("r1")).entry)
    await next_ms(queue)
    assert (await retention_of(queue).run_once()).restored == ["r1"]
    run = await queue.get("r1")
    assert (run.status, run.fence, run.input) == (Status.QUEUED, 1, {"n": 1})
    (claimed,) = await (await Hand(queue, "w").join()).claim()
    assert (claimed.run_id, claimed.fence, claimed.agent) == ("r1", 2, "echo")
    assert await events(queue, "r1") == ["submitted", "restored", "started"]


async def test_a_run_is_restored_once(queue, redis):
    await submit(queue, "r1")
    await redis.xtrim(queue.keys.stream, maxlen=0, approximate=False)
    await next_ms(queue)
    passes = await asyncio.gather(*(retention_of(queue).run_once() for _ in range(4)))
    assert [swept.restored for swept in passes if swept.restored] == [["r1"]]
    assert await lane_of(queue, queue.keys.returned) == ["r1"]


async def test_a_run_whose_consumer_was_deleted_by_hand_is_queued_again(queue, redis):
    """What XGROUP DELCONSUMER destroys: the entry is still in the lane, but nobody will ever be given it."""
    hand = await Hand(queue, "w").join()
    await submit(queue, "r1")
    await hand.wake()
    await redis.xgroup_delconsumer(queue.keys.stream, queue.settings.group, "w")
    await next_ms(queue)
    assert (await retention_of(queue).run_once()).restored == ["r1"]
    depth = await queue.depth()
    assert (depth.undelivered, depth.pending) == (1, 0)
    assert await lane_of(queue, queue.keys.returned) == ["r1"]


@pytest.mark.parametrize("harm", ["deleted", "acked", "consumer deleted"])
async def test_a_running_run_that_lost_its_entry_starts_again_only_when_its_worker_has_let_go(
    queue, redis, harm
):
    """Fails if restore.lua queues it at once: two workers do it at the same time."""
    hand = await Hand(queue, "w").join()
    await submit(queue, "r1")
    lease = await hand.claim_one()
    lane, group, entry = queue.keys.stream, queue.settings.group, (await queue.get("r1")).entry
    if harm == "deleted":
        await redis.xdel(lane, entry)
        assert (
            await hand.renew(lease) == "kept"
        )  # the renewal that finds out, and makes Redis forget the entry
    elif harm == "acked":
        await redis.xack(lane, group, entry)
    else:
        await redis.xgroup_delconsumer(lane, group, "w")
    await next_ms(queue)
    before = await now_ms(redis)
    retention = retention_of(queue, ttl=TTL_SECONDS)
    while not (swept := await retention.run_once()).restored:
        assert swept.young == 1
        await asyncio.sleep(0.01)
    run = await queue.get("r1")
    assert (run.status, run.fence, run.owner) == (Status.DELAYED, lease.fence + 1, "")
    assert run.due_at * 1000 >= before + TTL_SECONDS * 1000
    assert await hand.renew(lease) == "lost"
    assert await hand.settle(lease) is Verdict.STALE
    assert (await queue.depth()).pending == 0
    while not await hand.promote():
        await asyncio.sleep(0.01)
    (again,) = await hand.claim()
    assert (again.run_id, again.attempt) == ("r1", 2)
    assert again.fence > lease.fence


async def test_a_run_whose_deleted_entry_is_still_renewed_is_left_to_its_worker(queue, redis):
    """Fails if restore.lua judges by the stream alone, without the pending list."""
    hand = await Hand(queue, "w").join()
    await submit(queue, "r1")
    lease = await hand.claim_one()
    entry = (await queue.get("r1")).entry
    while await now_ms(redis) < int(entry.partition("-")[0]) + 2000 * TTL_SECONDS:
        await asyncio.sleep(0.01)
    assert await hand.renew(lease) == "kept"
    await redis.xdel(queue.keys.stream, entry)
    swept = await retention_of(queue, ttl=TTL_SECONDS).run_once()
    assert (swept.restored, swept.young) == ([], 0)
    assert await hand.settle(lease) is Verdict.SETTLED
    assert (await queue.get("r1")).status is Status.SUCCEEDED


async def test_a_fresh_entry_is_not_judged(queue, redis):
    await submit(queue, "r1")
    await redis.xtrim(queue.keys.stream, maxlen=0, approximate=False)
    swept = await retention_of(queue, ttl=60).run_once()
    assert (swept.restored, swept.young) == ([], 1)


async def test_a_delayed_run_that_left_the_delayed_set_waits_again_until_it_is_due(queue, redis):
    await submit(queue, "r1", delay_seconds=60)
    due = await redis.zscore(queue.keys.delayed, "r1")
    await redis.delete(queue.keys.delayed)
    assert (await retention_of(queue).run_once()).restored == ["r1"]
    assert await redis.zscore(queue.keys.delayed, "r1") == due


async def test_a_cancelled_run_whose_entry_is_gone_gets_its_time_to_leave(queue, redis):
    await submit(queue, "r1")
    await queue.cancel("r1")
    assert (
        await retention_of(queue).run_once()
    ).expiring == 0  # a worker will drop the entry and note the end
    await redis.xtrim(queue.keys.stream, maxlen=0, approximate=False)
    await next_ms(queue)
    assert (await retention_of(queue).run_once()).expiring == 1
    assert await redis.zscore(queue.keys.ended, "r1") > 0


async def test_a_state_we_do_not_know_is_left_alone(queue, redis):
    """A newer version's run, say one that waits for a person. Fails if everything not live counts as ended."""
    await submit(queue, "r1")
    await redis.hset(queue.keys.run("r1"), mapping={"status": "interrupted", "entry": ""})
    swept = await retention_of(queue).run_once()
    assert (swept.restored, swept.expiring) == ([], 0)
    assert await redis.zscore(queue.keys.ended, "r1") is None


MOVES = ("claim", "hand_back", "settle", "retry", "promote", "reclaim", "wake", "cancel")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=st.lists(st.sampled_from(MOVES), max_size=10))
async def test_a_run_that_is_somewhere_is_never_restored_whatever_comes_between(redis, moves):
    """The pass between any two steps of a worker. Fails if restore.lua takes a claimed entry for a lost one."""
    await redis.flushall()
    queue = await open_queue(redis)
    hand, retention = await Hand(queue, "w").join(), retention_of(queue)
    await submit(queue, "r1")
    lease, woken = None, []
    for move in moves:
        match move:
            case "claim":
                for run in await hand.claim(1, woken):
                    lease = hand.lease(run)
                woken = []
            case "hand_back" if lease:
                await hand.hand_back(lease)
            case "settle" if lease:
                await hand.settle(lease)
            case "retry" if lease:
                await hand.settle(lease, Status.DELAYED)
            case "promote":
                await hand.promote()
            case "reclaim":
                await hand.reclaim_all()
            case "wake":
                woken += await hand.wake()
            case "cancel" if not (await queue.get("r1")).status.ended:
                await queue.cancel("r1")
        assert (await retention.run_once()).restored == []
    assert (await queue.depth()).depth <= 1


async def test_a_pass_while_a_worker_claims_does_not_double_a_run(queue, redis):
    """Many claims and many passes at once: every run is claimed once. Fails with the same mistake."""
    hands = [await Hand(queue, f"w{n}").join() for n in range(4)]
    for n in range(200):
        await submit(queue, f"r{n}")
    await next_ms(queue)
    claimed: list[str] = []

    async def claim_all(hand: Hand) -> None:
        while runs := await hand.claim(3):
            claimed.extend(run.run_id for run in runs)

    async def sweep() -> list[str]:
        return [run for _ in range(20) for run in (await retention_of(queue).run_once()).restored]

    found = await asyncio.gather(sweep(), sweep(), *(claim_all(hand) for hand in hands))
    assert found[:2] == [[], []]
    assert sorted(claimed) == sorted(f"r{n}" for n in range(200))


async def test_what_was_done_is_counted(queue, redis, metrics):
    await submit(queue, "r1")
    await redis.delete(queue.keys.run("r1"))
    await Retention(queue, metrics, ttl_seconds=1).run_once()
    labels = {"queue": queue.name, "kind": "index"}
    assert metrics.registry.get_sample_value("holdfast_retention_removed_total", labels) == 1


async def test_a_queue_that_does_not_exist_is_clean(redis):
    queue = RunQueue(QueueSettings(name="nowhere"), redis)
    swept = await retention_of(queue).run_once()
    assert (swept.forgotten, swept.trimmed, swept.restored, swept.whole) == (0, 0, [], True)
    assert await redis.keys("*") == []


@pytest.mark.parametrize("place", ["outbox", "outbox:eventapi", "outbox:webhook", "outbox:push"])
async def test_an_ended_run_stays_until_its_events_have_reached_the_outside(redis, place):
    """Fails if the expiry does not look into the outbox."""
    queue = RunQueue(QueueSettings(), redis, outside=True)
    await queue.ensure()
    await submit(queue, "r1")
    await settle_next(await Hand(queue, "w").join())
    await redis.delete(queue.keys.outbox)
    await redis.zadd(queue.keys.outbox.removesuffix("outbox") + place, {"r1": 1})
    await redis.zadd(queue.keys.ended, {"r1": 1})
    assert (await retention_of(queue).run_once()).left == 0
    assert await redis.exists(queue.keys.run("r1"), queue.keys.feed("r1")) == 2
    await redis.delete(queue.keys.outbox.removesuffix("outbox") + place)
    await redis.zadd(queue.keys.ended, {"r1": 1})
    assert (await retention_of(queue).run_once()).left == 1
