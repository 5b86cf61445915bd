"""Fences: whatever a former holder of a run still tries to write is refused."""

from __future__ import annotations

import asyncio
import json

import pytest

from holdfast.config import QueueSettings
from holdfast.errors import LeaseLost
from holdfast.leases.lease import Lease, RenewalReply
from holdfast.leases.streams import StreamLeases
from holdfast.runs.execution.claim import Claimer, RunLease
from holdfast.runs.execution.emit import Emitter
from holdfast.runs.execution.settle import Settler, SettleReply
from holdfast.runs.execution.settlement import Settlement
from holdfast.runs.queue import RunQueue
from holdfast.runs.run import Status, Submission
from holdfast.telemetry.metrics import Metrics
from tests.support.runs.manual_worker import now_ms
from tests.support.waiting import until


class Holder:
    """One worker's hands on the queue, without its loops."""

    def __init__(self, queue: RunQueue, owner: str) -> None:
        self.owner = owner
        self.queue = queue
        self.leases = StreamLeases(queue.keys, group=queue.settings.group, owner=owner, ttl_ms=1, turn_ms=0)
        self.claimer = Claimer(queue, owner, queue.redis)
        self.settler = Settler(queue, self.leases, owner, Metrics())
        self.emitter = Emitter(queue, owner, Metrics())
        self.run = None

    async def claim(self) -> bool:
        claims = await self.claimer.claim(1, [])
        self.run = claims.runs[0] if claims.runs else None
        return self.run is not None

    @property
    def lease(self) -> Lease:
        return self.run.lease(self.owner)

    async def settle(self, status: Status = Status.SUCCEEDED, value: bytes = b"1") -> SettleReply:
        field = "result" if status is Status.SUCCEEDED else "error"
        (verdict,) = await self.settler._settle([Settlement(self.lease, status, field, value)])
        return verdict


@pytest.fixture
async def queue(redis) -> RunQueue:
    queue = RunQueue(QueueSettings(), redis)
    await queue.ensure()
    return queue


@pytest.fixture
async def taken_over(queue) -> tuple[Holder, Holder]:
    """A run that was claimed by one worker, reclaimed and claimed by another."""
    await queue.submit(Submission(agent="a", run_id="r"))
    old, new = Holder(queue, "old"), Holder(queue, "new")
    assert await old.claim()
    await until(lambda: new.leases.reclaim(queue.redis))
    assert await new.claim()
    return old, new


async def test_a_stale_settlement_is_refused_and_changes_nothing(queue, taken_over):
    old, new = taken_over
    assert await old.settle(value=b'"old"') is SettleReply.STALE
    assert (await queue.get("r")).status is Status.RUNNING
    assert (await queue.depth()).pending == 1, "a zombie's ack would have removed the new owner's entry"
    assert await new.settle(value=b'"new"') is SettleReply.SETTLED
    assert await old.settle(value=b'"old"') is SettleReply.STALE
    assert (await queue.get("r")).result == "new"


@pytest.mark.parametrize("status", [Status.FAILED, Status.TIMED_OUT, Status.CANCELLED, Status.DELAYED])
async def test_no_kind_of_stale_settlement_is_taken(queue, taken_over, status):
    old, _ = taken_over
    verdict = (await old.settler._settle([Settlement(old.lease, status, value=b"{}", delay_ms=5)]))[0]
    assert verdict is SettleReply.STALE
    depth = await queue.depth()
    assert (depth.pending, depth.dead, depth.delayed) == (1, 0, 0)


async def test_a_stale_event_is_refused(queue, taken_over):
    old, new = taken_over
    with pytest.raises(LeaseLost, match="has a newer fence"):
        await old.emitter.for_run(old.run)("late", 1)
    await new.emitter.for_run(new.run)("fine", 1)
    kinds = [fields[b"type"] for _, fields in await queue.redis.xrange(queue.keys.feed("r"))]
    assert b"late" not in kinds
    assert b"fine" in kinds


async def test_a_stale_hand_back_is_refused(queue, taken_over):
    old, _ = taken_over
    assert await old.leases.release(queue.redis, [old.lease]) == [False]
    assert (await queue.depth()).pending == 1


async def test_a_renewal_after_an_operators_xclaim_is_lost(queue, redis):
    """XCLAIM by a former owner silently steals the entry back: renewal must ask who owns the entry now."""
    await queue.submit(Submission(agent="a", run_id="r"))
    holder = Holder(queue, "me")
    assert await holder.claim()
    ((entry, *_),) = [
        (p["message_id"],)
        for p in await redis.xpending_range(queue.keys.stream, queue.settings.group, "-", "+", 1)
    ]
    await redis.xclaim(queue.keys.stream, queue.settings.group, "operator", 0, [entry])
    assert await holder.leases.renew(redis, [holder.lease]) == [RenewalReply.LOST]
    (pending,) = await redis.xpending_range(queue.keys.stream, queue.settings.group, "-", "+", 1)
    assert pending["consumer"] == b"operator"


async def test_a_settlement_sent_twice_says_already(queue):
    await queue.submit(Submission(agent="a", run_id="r"))
    holder = Holder(queue, "me")
    await holder.claim()
    assert await holder.settle() is SettleReply.SETTLED
    assert await holder.settle() is SettleReply.ALREADY
    kinds = [fields[b"type"] for _, fields in await queue.redis.xrange(queue.keys.feed("r"))]
    assert kinds == [b"submitted", b"started", b"succeeded"]


@pytest.mark.parametrize("lane", ["its own", "another"])
async def test_another_entry_of_a_run_that_has_not_begun_is_not_the_run(queue, redis, lane):
    """Fails if a run that begins for the first time is claimed by any entry that names it."""
    await queue.submit(Submission(agent="a", run_id="r"))
    ((entry, fields),) = await redis.xrange(queue.keys.stream)
    if lane == "its own":
        await redis.xadd(queue.keys.stream, fields)
    else:  # which is read first, and where an entry may have the same id
        await redis.xadd(queue.keys.lanes[1], fields, id=entry)
    holder = Holder(queue, "me")
    claims = await holder.claimer.claim(5, [])
    assert [(run.run_id, run.lane, run.entry, run.fence) for run in claims.runs] == [("r", 3, entry, 1)]
    assert claims.dropped == 1


async def test_an_entry_that_its_settlement_does_not_name_brings_no_second_start(queue, redis):
    """Redis has lost that the entry moved on: the run is ours by owner and fence, but lies elsewhere."""
    await queue.submit(Submission(agent="a", run_id="r"))
    holder = Holder(queue, "me")
    await holder.claim()
    ((_, fields),) = await redis.xrange(queue.keys.stream)
    entry = await redis.xadd(queue.keys.returned, fields)
    await redis.hset(queue.keys.run("r"), mapping={"lane": queue.keys.returned, "entry": entry})
    assert await holder.settle() is SettleReply.SETTLED
    assert not await holder.claim()
    assert (await queue.get("r")).status is Status.SUCCEEDED
    depth = await queue.depth()
    assert (depth.undelivered, depth.pending) == (0, 0), "what nobody needs any more is dropped"


async def test_each_of_a_mixed_batch_gets_its_own_verdict(queue):
    """Fails if what is said once for those that end alike is taken for the next ones too."""
    holder = Holder(queue, "me")
    for run_id in "abcdef":
        await queue.submit(Submission(agent="a", run_id=run_id))
    runs = (await holder.claimer.claim(6, [])).runs
    leases = [run.lease("me") for run in runs]
    late = RunLease("b", "me", 7, leases[1].lane, leases[1].entry)
    error = b'{"kind":"server"}'
    batch = [
        Settlement(leases[0], Status.SUCCEEDED, "result", b"1"),
        Settlement(late, Status.SUCCEEDED, "result", b"2"),
        Settlement(leases[2], Status.DELAYED, value=error, delay_ms=60_000),
        Settlement(leases[3], Status.FAILED, value=error, reason="server"),
        Settlement(leases[4], Status.SUCCEEDED, "result", b"5"),
        Settlement(leases[4], Status.SUCCEEDED, "result", b"6"),
        Settlement(leases[5], Status.FAILED, value=error, reason="other"),
    ]
    settled = SettleReply.SETTLED
    assert await holder.settler._settle(batch) == [
        settled,
        SettleReply.STALE,
        settled,
        settled,
        settled,
        SettleReply.ALREADY,
        settled,
    ]
    ended = [await queue.get(run_id) for run_id in "abcdef"]
    assert [(run.status.value, run.result) for run in ended] == [
        ("succeeded", 1),
        ("running", None),
        ("delayed", None),
        ("failed", None),
        ("succeeded", 5),
        ("failed", None),
    ]
    letters = await queue.redis.xrange(queue.keys.deadletter)
    assert [(letter[b"run_id"], letter[b"reason"]) for _, letter in letters] == [
        (b"d", b"server"),
        (b"f", b"other"),
    ]
    assert (await queue.depth()).pending == 1


async def test_a_listener_hears_every_kind_of_event_as_it_is(queue, redis):
    await queue.submit(Submission(agent="a", run_id="r"))
    holder = Holder(queue, "me")
    await holder.claim()
    async with redis.pubsub(ignore_subscribe_messages=True) as channel:
        await channel.subscribe(queue.keys.live("r"))
        emit = holder.emitter.for_run(holder.run)
        await asyncio.gather(emit("word", 1), emit('say "so"', 2), emit("word", 3))
        await holder.settle()
        heard = [await _next(channel) for _ in range(4)]
    ids = [entry.decode() for entry, _ in await redis.xrange(queue.keys.feed("r"))][2:]
    assert heard == [
        {"id": ids[0], "type": "word", "data": 1},
        {"id": ids[1], "type": 'say "so"', "data": 2},
        {"id": ids[2], "type": "word", "data": 3},
        {"id": ids[3], "type": "succeeded", "data": {}},
    ]


async def _next(channel):
    message = await until(lambda: channel.get_message(timeout=1), lambda message: message is not None)
    return json.loads(message["data"])


async def test_a_run_handed_back_keeps_its_attempt_and_gets_a_higher_fence(queue):
    await queue.submit(Submission(agent="a", run_id="r"))
    first, second = Holder(queue, "one"), Holder(queue, "two")
    await first.claim()
    assert await first.leases.release(queue.redis, [first.lease]) == [True]
    await second.claim()
    assert (second.run.attempt, second.run.fence) == (1, 3)


async def test_a_reclaimed_run_goes_before_what_waits(queue):
    await queue.submit_many([Submission(agent="a", run_id=f"r{n}") for n in range(3)])
    first, second = Holder(queue, "one"), Holder(queue, "two")
    await first.claim()
    await until(lambda: second.leases.reclaim(queue.redis))
    await second.claim()
    assert second.run.run_id == "r0"


async def test_all_of_a_dead_workers_runs_are_reclaimed_in_one_turn(queue):
    await queue.submit_many([Submission(agent="a") for _ in range(350)])
    dead, other = Holder(queue, "dead"), Holder(queue, "other")
    await dead.claimer.claim(350, [])
    taken = await until(lambda: other.leases.reclaim(queue.redis))
    assert len(taken) == 350


async def test_an_entry_that_woke_us_is_fresh_from_its_claim_on(queue, redis):
    """Delivered by the blocking read, claimed later: counted from the delivery, the lease would end too soon."""
    await queue.submit(Submission(agent="a", run_id="r"))
    holder = Holder(queue, "me")
    woken = await holder.claimer.wait(100)

    async def idle_ms() -> int:
        (pending,) = await redis.xpending_range(queue.keys.stream, queue.settings.group, "-", "+", 1)
        return pending["time_since_delivered"]

    await until(idle_ms, lambda idle: idle > 100)
    asked = await now_ms(redis)
    claims = await holder.claimer.claim(1, woken)
    assert [run.run_id for run in claims.runs] == ["r"]
    idle = await idle_ms()
    assert await now_ms(redis) - idle >= asked - 1


async def test_an_entry_that_woke_us_and_was_taken_away_is_not_claimed(queue, redis):
    await queue.submit(Submission(agent="a", run_id="r"))
    slow, quick = Holder(queue, "slow"), Holder(queue, "quick")
    woken = await slow.claimer.wait(100)
    (entry,) = [entry for _, entry in woken]
    await redis.xclaim(queue.keys.stream, queue.settings.group, "operator", 0, [entry])
    assert (await slow.claimer.claim(1, woken)).runs == []
    await until(lambda: quick.leases.reclaim(redis))
    assert await quick.claim()
    assert (await slow.claimer.claim(1, woken)).runs == []


async def test_leaving_returns_what_was_delivered_but_never_started(queue, redis):
    """A blocking read cancelled in flight leaves an entry with our consumer that nobody knows of."""
    await queue.submit(Submission(agent="a", run_id="r"))
    holder = Holder(queue, "me")
    await redis.xreadgroup(queue.settings.group, "me", {queue.keys.stream: ">"}, count=1)
    evicted = await holder.leases.leave(redis)
    assert evicted.entries == 1
    other = Holder(queue, "other")
    assert await other.claim()
    assert other.run.attempt == 1
