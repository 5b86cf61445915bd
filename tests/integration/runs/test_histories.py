"""Random histories of everything that can happen to runs: whatever comes after whatever, none is lost and none is doubled."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from holdfast.errors import Conflict, NotFound, QueuePaused
from holdfast.leases.lease import Lease
from holdfast.redis.client import Redis
from holdfast.runs.deadletter import DeadLetters
from holdfast.runs.execution.settle import SettleReply
from holdfast.runs.queue import RunQueue
from holdfast.runs.retention import Retention
from holdfast.runs.run import Priority, Status
from holdfast.telemetry.metrics import Metrics
from tests.support.runs.manual_worker import Hand, expiry_without_retention, next_ms, open_queue, submit

RUNS, HANDS = 6, 3
ENDS = (Status.SUCCEEDED, Status.FAILED, Status.TIMED_OUT, Status.CANCELLED, Status.DELAYED)


class World:
    """A queue, three workers worked by hand, and what is remembered of all that was seen."""

    def __init__(self, redis: Redis, queue: RunQueue, hands: list[Hand]) -> None:
        self.redis, self.queue, self.hands = redis, queue, hands
        self.dead = DeadLetters(queue)
        self.expiry = expiry_without_retention(queue)
        self.accepted: set[str] = set()
        self.expired: set[str] = set()
        self.anonymous = 0
        self.woken: dict[str, list[Any]] = {hand.name: [] for hand in hands}
        self.leases: list[tuple[Hand, Lease]] = []
        self.settled: Counter[tuple[str, int]] = Counter()
        self.claimed: Counter[tuple[str, int]] = Counter()
        self.fences: dict[str, int] = {}

    @classmethod
    async def begin(cls, redis: Redis, **options: Any) -> World:
        await redis.flushall()
        queue = await open_queue(redis, **options)
        return cls(redis, queue, [await Hand(queue, f"w{n}").join() for n in range(HANDS)])

    async def do(self, step: tuple[str, int, int]) -> None:
        name, a, b = step
        with contextlib.suppress(Conflict, NotFound, QueuePaused):
            await getattr(self, name)(a, b)
        await self._look_at_fences()

    async def _look_at_fences(self) -> None:
        for run_id in await self.run_ids():
            fence = int(await self.redis.hget(self.queue.keys.run(run_id), "fence") or 0)
            assert fence >= self.fences.get(run_id, 0), f"the fence of {run_id} went back"
            self.fences[run_id] = fence

    async def run_ids(self) -> list[str]:
        prefix = self.queue.keys.run_prefix
        keys = [key.decode() for key in await self.redis.keys(f"{prefix}*")]
        return [key.removeprefix(prefix) for key in keys if not key.endswith(":events")]

    # -- what producers and operators do

    async def submit(self, a: int, b: int) -> None:
        run_id = f"r{a % RUNS}"
        if run_id in self.accepted:
            return  # an expired run's id may be used again, for another run
        await submit(
            self.queue, run_id, priority=list(Priority)[b % 3], delay_seconds=0.001 if b % 4 == 3 else 0
        )
        self.accepted.add(run_id)

    async def foreign(self, a: int, b: int) -> None:
        lane = self.queue.keys.lanes[1 + b % 3]
        run_id = f"f{a % RUNS}"
        if run_id in self.expired:
            return  # as above
        await self.redis.xadd(lane, {"correlation_id": run_id, "message_data": "1", "agent_id": "echo"})
        self.accepted.add(run_id)

    async def anonymous_entry(self, a: int, b: int) -> None:
        """An entry without an id that can name a run; one pretends to be another run's feed."""
        names = ({}, {"correlation_id": "a b"}, {"task_id": f"r{a % RUNS}:events"})[b % 3]
        await self.redis.xadd(self.queue.keys.stream, {**names, "kind": "anonymous"})
        self.anonymous += 1

    async def cancel(self, a: int, b: int) -> None:
        await self.queue.cancel(f"r{a % RUNS}")

    async def replay(self, a: int, b: int) -> None:
        await self.queue.replay(f"r{a % RUNS}")

    async def replay_letter(self, a: int, b: int) -> None:
        letters = (await self.dead.list()).letters
        if letters:
            await self.dead.replay(letters[a % len(letters)].id)

    async def expire(self, a: int, b: int) -> None:
        """The retention of a failed run passes; its letter stays. A second entry of its would be another run then."""
        entries = [fields for lane in self.queue.keys.lanes for _, fields in await self.redis.xrange(lane)]
        queued = {fields.get(b"correlation_id", b"").decode() for fields in entries}
        for letter in (await self.dead.list(limit=1)).letters:
            if letter.run_id in queued:
                return
            self.expired.add(letter.run_id)
            await self.redis.zadd(self.queue.keys.ended, {letter.run_id: 0})
            await self.redis.delete(self.queue.keys.unarchived)
            await self.expiry.run_once()

    async def pause(self, a: int, b: int) -> None:
        await (self.queue.pause() if b % 3 == 0 else self.queue.resume())

    # -- what workers do

    async def claim(self, a: int, b: int) -> None:
        hand = self.hands[a % HANDS]
        woken, self.woken[hand.name] = self.woken[hand.name], []
        for run in await hand.claim(1 + b % 3, woken):
            self.claimed[run.run_id, run.fence] += 1
            self.leases.append((hand, hand.lease(run)))

    async def wake(self, a: int, b: int) -> None:
        hand = self.hands[a % HANDS]
        self.woken[hand.name] += await hand.wake()

    def _some_lease(self, a: int) -> tuple[Hand, Lease] | None:
        """Any lease ever granted: most of them are stale."""
        return self.leases[-1 - a % min(len(self.leases), 8)] if self.leases else None

    async def settle(self, a: int, b: int) -> None:
        if some := self._some_lease(a):
            hand, lease = some
            if await hand.settle(lease, ENDS[b % len(ENDS)], "") is SettleReply.SETTLED:
                self.settled[lease.key, lease.fence] += 1

    async def hand_back(self, a: int, b: int) -> None:
        if some := self._some_lease(a):
            await some[0].hand_back(some[1])

    async def renew(self, a: int, b: int) -> None:
        if some := self._some_lease(a):
            await some[0].renew(some[1])

    async def promote(self, a: int, b: int) -> None:
        await self.hands[0].promote()

    async def reclaim(self, a: int, b: int) -> None:
        await self.hands[0].reclaim_all()

    async def evict(self, a: int, b: int) -> None:
        await self.hands[0].evict(self.hands[a % HANDS].name)

    async def leave(self, a: int, b: int) -> None:
        await self.hands[a % HANDS].leases.leave(self.redis)

    async def sweep(self, a: int, b: int) -> None:
        await Retention(self.queue, Metrics(), ttl_seconds=0).run_once()

    # -- what nobody should do

    async def delete_entry(self, a: int, b: int) -> None:
        lane = self.queue.keys.lanes[b % 4]
        if entries := await self.redis.xrange(lane):
            await self.redis.xdel(lane, entries[a % len(entries)][0])

    async def ack_entry(self, a: int, b: int) -> None:
        lane = self.queue.keys.lanes[b % 4]
        if pending := await self._pending(lane):
            await self.redis.xack(lane, self.queue.settings.group, list(pending)[a % len(pending)])

    async def delete_consumer(self, a: int, b: int) -> None:
        for lane in self.queue.keys.lanes:
            await self.redis.xgroup_delconsumer(lane, self.queue.settings.group, self.hands[a % HANDS].name)

    async def forget_delayed(self, a: int, b: int) -> None:
        await self.redis.delete(self.queue.keys.delayed)

    # -- what must be true afterwards

    async def _pending(self, lane: str) -> dict[bytes, bytes]:
        rows = await self.redis.xpending_range(lane, self.queue.settings.group, "-", "+", 1000)
        return {row["message_id"]: row["consumer"] for row in rows}

    async def check(self) -> None:
        deletes = self.queue.settings.delete_after_ack
        waiting: set[tuple[str, bytes]] = set()
        held: dict[tuple[str, bytes], bytes] = {}
        unnamed: set[tuple[str, bytes]] = set()
        for lane in self.queue.keys.lanes:
            pending, (group,) = await self._pending(lane), await self.redis.xinfo_groups(lane)
            entries = dict(await self.redis.xrange(lane))
            undelivered = {e for e in entries if stream_id(e) > stream_id(group["last-delivered-id"])}
            waiting |= {(lane, entry) for entry in undelivered}
            held |= {(lane, entry): owner for entry, owner in pending.items()}
            assert pending.keys() <= entries.keys(), "a pending entry is not in the stream"
            if deletes:
                assert len(entries) == len(undelivered) + len(pending), "XLEN = undelivered + pending"
            unnamed |= {
                (lane, e)
                for e in undelivered | pending.keys()
                if b"anonymous" in b"".join(entries[e].values())
            }
        await self._check_runs(waiting, held)
        there = [run_id for run_id in await self.run_ids() if run_id.startswith("entry-")]
        adopted = [await self.queue.get(run_id) for run_id in there]
        gone = [run_id for run_id in self.expired if run_id.startswith("entry-") and run_id not in there]
        unnamed -= {(run.lane, run.entry.encode()) for run in adopted}
        assert len(adopted) + len(unnamed) + len(gone) == self.anonymous, (
            "an entry without a name was lost or doubled"
        )
        assert all(count == 1 for count in self.settled.values()), "settled twice under one fence"
        assert all(count == 1 for count in self.claimed.values()), "claimed twice under one fence"

    async def _check_runs(
        self, waiting: set[tuple[str, bytes]], held: dict[tuple[str, bytes], bytes]
    ) -> None:
        letters = (await self.dead.list(limit=1000)).letters
        delayed = {run_id.decode() for run_id in await self.redis.zrange(self.queue.keys.delayed, 0, -1)}
        runs = await self.run_ids()
        for run_id in {*runs, *(run for run in self.accepted if run.startswith("r"))}:
            of_run = [letter.id for letter in letters if letter.run_id == run_id]
            if run_id not in runs:
                assert len(of_run) == 1, f"{run_id} is nowhere"
                continue
            have = await self.redis.hgetall(self.queue.keys.run(run_id))
            status, place = (
                Status(have[b"status"].decode()),
                (have[b"lane"].decode(), have.get(b"entry", b"")),
            )
            told = f"{run_id} {status} {place} letters={of_run}"
            assert (run_id in delayed) == (status is Status.DELAYED), told
            assert of_run == (
                [have[b"dead"].decode()] if status in {Status.FAILED, Status.TIMED_OUT} else []
            ), told
            match status:
                case Status.QUEUED:
                    assert (place in waiting) != (place in held), told
                case Status.RUNNING:
                    assert held.get(place) == have[b"owner"] != b"", told
                case Status.CANCELLED if place in waiting or place in held:
                    continue  # a tombstone: whoever reads it drops it and notes the end
                case _:
                    assert place not in waiting, told
                    assert place not in held, told
            noted = await self.redis.zscore(self.queue.keys.ended, run_id) is not None
            assert noted == status.ended, f"noted end of {told}"

    async def finish(self) -> None:
        """Let one worker do all that is left: everything ends."""
        await self.queue.resume()
        await self.hands[0].reclaim_all()
        for _ in range(200):
            await self.hands[0].promote()
            for run in await self.hands[0].claim(10):
                assert await self.hands[0].settle(self.hands[0].lease(run)) is SettleReply.SETTLED
            depth = await self.queue.depth()
            if depth.undelivered + depth.pending + depth.delayed == 0:
                break
        for run_id in await self.run_ids():
            assert (await self.queue.get(run_id)).status.ended, f"{run_id} never ends"
        await self.check()


def stream_id(text: bytes) -> tuple[int, int]:
    ms, _, sequence = text.partition(b"-")
    return int(ms), int(sequence)


NUMBERS = st.integers(0, 11)
WORK = [
    "submit",
    "submit",
    "claim",
    "claim",
    "wake",
    "settle",
    "settle",
    "hand_back",
    "renew",
    "promote",
    "reclaim",
]
WORK += ["cancel", "replay", "sweep"]
LAWFUL = [
    *WORK,
    "foreign",
    "anonymous_entry",
    "replay_letter",
    "expire",
    "pause",
    "claim",
    "settle",
    "evict",
    "leave",
]
HARM = [*WORK, "delete_entry", "ack_entry", "delete_consumer", "forget_delayed"]


def histories(steps: list[str]) -> Any:
    return st.lists(st.tuples(st.sampled_from(steps), NUMBERS, NUMBERS), min_size=5, max_size=40)


quick = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)


@pytest.mark.parametrize("deletes", [True, False])
@settings(quick, max_examples=50)
@given(steps=histories(LAWFUL))
# Each of these found a fault once.
@example(steps=[("anonymous_entry", 0, 0), ("claim", 0, 0), ("reclaim", 0, 0), ("claim", 0, 0)])
@example(
    steps=[("submit", 0, 0), ("anonymous_entry", 0, 0), ("claim", 0, 1), ("settle", 0, 1), ("expire", 0, 0)]
)
@example(steps=[("anonymous_entry", 0, 0), ("claim", 0, 1), ("settle", 0, 1), ("expire", 0, 0)])
@example(steps=[("submit", 0, 0), ("anonymous_entry", 0, 2), ("claim", 0, 1)])
@example(
    steps=[("submit", 0, 0), ("claim", 0, 0), ("settle", 0, 1), ("expire", 0, 0), ("replay_letter", 0, 0)]
)
async def test_every_run_is_in_exactly_one_place_whatever_happened(redis, deletes, steps):
    world = await World.begin(redis, delete_after_ack=deletes)
    for step in steps:
        await world.do(step)
    await world.check()
    await world.finish()


@settings(quick, max_examples=60)
@given(steps=histories(HARM))
async def test_after_a_sweep_every_run_is_in_its_place_again_whatever_was_done_to_its_entry(redis, steps):
    world = await World.begin(redis)
    for step in steps:
        await world.do(step)
    await next_ms(world.queue)  # what is of this millisecond is too fresh to be judged
    await world.sweep(0, 0)
    for woken in world.woken.values():
        woken.clear()
    await world.reclaim(0, 0)
    await next_ms(world.queue)
    await world.sweep(0, 0)
    await world.check()
    await world.finish()
