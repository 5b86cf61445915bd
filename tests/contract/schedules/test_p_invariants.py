"""P: whatever comes after whatever, the sets are disjoint, none is lost, none has two holders under one fence."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from holdfast.config.scheduling import KEPT_TURNS
from holdfast.leases.lease import RenewalReply
from holdfast.redis.client import Redis
from holdfast.schedules.acquisition import Acquired, Look
from holdfast.schedules.entries import ScheduleState
from holdfast.schedules.parallel import ParallelFirings
from holdfast.schedules.replies import ChangeReply, Ended, PlaceReply, Registered
from holdfast.schedules.schedule import Schedule, family
from holdfast.schedules.trigger import Every
from holdfast.telemetry.metrics import Metrics
from tests.support.schedules.manual_scheduler import Board, Pod, redis_now, registration

NAMES = [f"s{n}" for n in range(6)]
PODS = 3
AFTER = (-1.0, 0.0, 60.0, 600.0, None)


class World:
    """Three pods worked by hand, and what is remembered of all that was seen."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.board = Board(redis)
        self.pods = [self.board.pod(f"pod{n}") for n in range(PODS)]
        self.registered: set[str] = set()
        self.runs: list[tuple[Pod, Acquired]] = []
        self.acquired: Counter[tuple[str, int]] = Counter()
        self.ended: Counter[tuple[str, int]] = Counter()
        self.fences: dict[str, int] = {}

    @classmethod
    async def begin(cls, redis: Redis) -> World:
        await redis.flushall()
        world = cls(redis)
        for n in range(3):
            await world.register(n, n)
        return world

    async def do(self, step: tuple[str, int, int]) -> None:
        name, a, b = step
        await getattr(self, name)(a, b)

    # -- what operators do

    async def register(self, a: int, b: int) -> None:
        name = NAMES[a % len(NAMES)]
        now = await redis_now(self.redis)
        wanted = registration(
            name,
            trigger=f"every {b % 3}",
            spec=f"spec {b}".encode(),
            first=None if b % 7 == 6 else now - 1 + (b % 2) * 60,
            priority=5 - b % 3,
        )
        (word,) = await self.board.registry.put([wanted])
        assert (word is Registered.CREATED) == (name not in self.registered)
        self.registered.add(name)

    async def remove(self, a: int, b: int) -> None:
        name = NAMES[a % len(NAMES)]
        (word,) = await self.board.registry.remove([name], stop="stop" if b % 2 else "")
        assert (word is ChangeReply.REMOVED) == (name in self.registered)
        self.registered = {one for one in self.registered if family(one) != name}

    async def pause(self, a: int, b: int) -> None:
        await self.board.registry.pause([NAMES[a % len(NAMES)]], "reason")

    async def resume(self, a: int, b: int) -> None:
        await self.board.registry.resume([NAMES[a % len(NAMES)]])

    async def trigger(self, a: int, b: int) -> None:
        await self.board.registry.trigger([NAMES[a % len(NAMES)]])

    async def stop(self, a: int, b: int) -> None:
        await self.board.registry.stop([NAMES[a % len(NAMES)]], "reason")

    async def repopulate(self, a: int, b: int) -> None:
        now = await redis_now(self.redis)
        await self.board.registry.repopulate(
            lambda lost: registration(lost.name, spec=lost.spec, first=now + 5)
        )

    # -- what schedulers do

    async def acquire(self, a: int, b: int) -> None:
        pod = self.pods[a % PODS]
        self._remember(pod, await pod.acquire(1 + b % 4))

    async def acquire_some(self, a: int, b: int) -> None:
        pod = self.pods[a % PODS]
        self._remember(pod, await pod.acquire(3, accept=lambda name, _: name in NAMES[b % 2 :: 2]))

    async def acquire_named(self, a: int, b: int) -> None:
        pod = self.pods[a % PODS]
        look = Look([NAMES[b % len(NAMES)], "nobody"], at=0.0)
        self._remember(pod, (await pod.acquirer.take(2, look)).schedules)

    def _remember(self, pod: Pod, runs: list[Acquired]) -> None:
        for run in runs:
            assert run.name in self.registered, f"{run.name} was removed and runs"
            assert run.ready <= run.acquired_at, f"{run.name} runs early"
            assert run.fence > self.fences.get(run.name, 0), f"{run.name} has a fence that was seen before"
            self.acquired[run.name, run.fence] += 1
            self.fences[run.name] = run.fence
            self.runs.append((pod, run))

    async def place(self, a: int, b: int) -> None:
        """The next turn runs beside some run, if that is still on."""
        if some := self._some_run(a):
            pod, run = some
            schedule = Schedule(
                name=run.name, agent="work", trigger=Every(seconds=60), overlap_most=1 + b % 4
            )
            overlaps = ParallelFirings(self.redis, self.board.keys, Metrics(), owner=pod.owner)
            word = await overlaps.place(run, schedule, await redis_now(self.redis))
            known = {name.decode() for name in await self.redis.hkeys(self.board.keys.definitions)}
            assert len(known - self.registered) == (word is PlaceReply.PLACED)
            assert sum(family(name) == run.name for name in known) <= 4
            if word is PlaceReply.PLACED:
                assert run.fence == self.fences[run.name], "an old holder placed a turn beside its own"
            self.registered |= known

    def _some_run(self, a: int) -> tuple[Pod, Acquired] | None:
        """Any run ever acquired: most of them are stale."""
        return self.runs[-1 - a % min(len(self.runs), 8)] if self.runs else None

    async def complete(self, a: int, b: int) -> None:
        if some := self._some_run(a):
            pod, run = some
            bad = {"outcome": "failed", "pause_after": 1} if b == 11 else {}
            word = await pod.complete(run, after=AFTER[b % len(AFTER)], streak=b, **bad)
            self.ended[run.name, run.fence] += word in {Ended.COMPLETED, Ended.PAUSED, Ended.REMOVED}
            if word in {Ended.COMPLETED, Ended.PAUSED} and family(run.name) != run.name:
                self.registered.discard(run.name)
            if word is Ended.REMOVED:  # also said again, of one that is gone
                self.ended[run.name, run.fence] = 1

    async def give_back(self, a: int, b: int) -> None:
        if some := self._some_run(a):
            word = await some[0].give_back(some[1], None if b % 2 else 0.0)
            self.ended[some[1].name, some[1].fence] += word is Ended.RETURNED

    async def renew(self, a: int, b: int) -> None:
        if some := self._some_run(a):
            pod, run = some
            if await pod.renew(run) is not RenewalReply.LOST:
                assert run.fence == self.fences[run.name], "an old holder was told that it still holds"
                assert not self.ended[run.name, run.fence], "what has ended is still held"

    async def reclaim(self, a: int, b: int) -> None:
        await self.pods[a % PODS].orphans.reclaim()

    async def sweep(self, a: int, b: int) -> None:
        await self.pods[a % PODS].orphans.sweep()

    # -- what time does

    async def time_passes(self, a: int, b: int) -> None:
        await self.board.make_due()

    async def lease_expires(self, a: int, b: int) -> None:
        await self.board.expire(*sorted(await self.board.leased())[: 1 + b % 2])

    # -- what nobody should do

    async def forget_waiting(self, a: int, b: int) -> None:
        await self.redis.zrem(self.board.keys.waiting, NAMES[a % len(NAMES)])

    async def forget_working(self, a: int, b: int) -> None:
        await self.redis.zrem(self.board.keys.working, NAMES[a % len(NAMES)])

    async def forget_lease(self, a: int, b: int) -> None:
        await self.redis.zrem(self.board.keys.leases, NAMES[a % len(NAMES)])

    async def forget_record(self, a: int, b: int) -> None:
        await self.redis.delete(self.board.keys.record(NAMES[a % len(NAMES)]))

    async def overwrite_record(self, a: int, b: int) -> None:
        record = self.board.keys.record(NAMES[a % len(NAMES)])
        if await self.redis.exists(record):
            await self.redis.set(record, "overwritten")

    async def put_into_waiting(self, a: int, b: int) -> None:
        name = [*NAMES, "17", "nobody"][a % (len(NAMES) + 2)]
        await self.redis.zadd(self.board.keys.waiting, {name: (1, float("inf"), float("-inf"))[b % 3]})

    async def put_into_working(self, a: int, b: int) -> None:
        await self.redis.zadd(self.board.keys.working, {[*NAMES, "17", "nobody"][a % (len(NAMES) + 2)]: 1})

    async def remove_remains(self) -> None:
        """Remove of what nobody has registered what a sweep leaves: what is too fresh for it, and records in no set."""
        keys, leased = self.board.keys, await self.board.leased()
        for name in (
            {*await self.board.waiting(), *await self.board.working(), *NAMES} - self.registered - leased
        ):
            await self.redis.zrem(keys.waiting, name)
            await self.redis.zrem(keys.working, name)
            await self.redis.delete(keys.record(name))

    # -- what must be true afterwards

    async def check(self) -> None:
        waiting, working = set(await self.board.waiting()), set(await self.board.working())
        assert not waiting & working, "the sets overlap"
        assert working == await self.board.leased(), "who works has a lease"
        assert waiting <= self.registered, "something waits that nobody registered"
        entries = {entry.name: entry for entry in (await self.board.entries.list()).entries}
        assert entries.keys() == self.registered
        for entry in entries.values():
            assert entry.state is not ScheduleState.MISSING, f"{entry.name} is nowhere"
            assert bool(entry.owner) == (entry.state is ScheduleState.RUNNING), f"{entry}"
            if entry.fence:  # 0 where somebody deleted the record: the next one is higher all the same
                assert entry.fence >= self.fences.get(entry.name, 0), f"the fence of {entry.name} went back"
        turns = {name.decode() for name in await self.redis.smembers(self.board.keys.turns)}
        assert turns == {name for name in self.registered if family(name) != name}
        await self._check_histories()
        for key in await self.redis.keys(self.board.keys.record("[^#]*")):
            if key.endswith(b"#history"):
                continue
            name = key.decode().partition(":")[2]
            passing = await self.redis.pttl(key) > 0 and await self.redis.hkeys(key) == [b"revision"]
            assert passing or name in self.registered | working, f"the record of {name} was left behind"
        assert all(count == 1 for count in self.acquired.values()), "acquired twice under one fence"
        assert all(count <= 1 for count in self.ended.values()), "ended twice under one fence"

    async def _check_histories(self) -> None:
        for key in await self.redis.keys(self.board.keys.history("*")):
            name = key.decode().partition(":")[2].removesuffix("#history")
            assert name in self.registered, f"the history of {name} was left behind"
            past = await self.board.history.turns(name, 1000)
            assert len(past) <= KEPT_TURNS * 5 / 4
            # Turns beside each other that are acquired in one call have the same fence, each on its own lease.
            acquired = Counter(fence for of, fence in self.acquired if family(of) == name)
            listed = Counter(turn.fence for turn in past)
            assert listed <= acquired, "a turn is listed twice under one fence, or none was acquired"

    async def finish(self) -> None:
        """One pod does all that is left: everything that is not done or paused runs, and ends."""
        await self.board.expire()
        await self.pods[0].orphans.reclaim()
        await self.board.registry.resume(sorted(self.registered))
        await self.board.make_due()
        pod = self.pods[0]
        for _ in range(3):
            for run in await pod.acquire():
                self._remember(pod, [run])
                assert await pod.complete(run, after=600) is Ended.COMPLETED
                if family(run.name) != run.name:
                    self.registered.discard(run.name)
            await self.check()
        for name in self.registered:
            assert (await self.board.entry(name)).state in {ScheduleState.WAITING, ScheduleState.DONE}
        assert await pod.acquire() == []


WORK = ["register", "acquire", "acquire", "acquire_some", "acquire_named", "complete", "complete", "complete"]
WORK += [
    "place",
    "place",
    "give_back",
    "renew",
    "time_passes",
    "time_passes",
    "lease_expires",
    "reclaim",
    "remove",
    "pause",
]
WORK += ["resume", "trigger", "stop", "sweep", "repopulate"]
HARM = [*WORK, "forget_waiting", "forget_working", "forget_lease", "forget_record", "overwrite_record"]
HARM += ["put_into_waiting", "put_into_working"]
NUMBERS = st.integers(0, 11)


def histories(steps: list[str]) -> Any:
    return st.lists(st.tuples(st.sampled_from(steps), NUMBERS, NUMBERS), min_size=5, max_size=40)


quick = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
)


@settings(quick, max_examples=80)
@given(steps=histories(WORK))
@example(steps=[("acquire", 0, 3), ("register", 0, 1)])
@example(
    steps=[("acquire", 0, 3), ("remove", 0, 0), ("register", 0, 1), ("complete", 0, 2), ("complete", 1, 2)]
)
@example(
    steps=[("trigger", 1, 0), ("acquire", 0, 3), ("pause", 1, 0), ("lease_expires", 0, 1), ("reclaim", 0, 0)]
)
@example(steps=[("acquire", 0, 3), ("trigger", 0, 0), ("pause", 0, 0), ("complete", 0, 4), ("resume", 0, 0)])
@example(
    steps=[
        *[("acquire", 0, 0), ("place", 0, 3), ("acquire", 1, 3), ("lease_expires", 0, 1), ("reclaim", 0, 0)],
        *[("place", 1, 3), ("remove", 0, 0), ("complete", 0, 0), ("complete", 1, 0)],
    ]
)
async def test_p1_after_every_step_each_schedule_is_in_exactly_one_place(redis, steps):
    world = await World.begin(redis)
    for step in steps:
        await world.do(step)
        await world.check()
    await world.finish()


@settings(quick, max_examples=80)
@given(steps=histories(HARM))
@example(steps=[("acquire", 0, 1), ("forget_working", 0, 0), ("forget_lease", 0, 0)])
@example(steps=[("acquire", 0, 1), ("remove", 0, 0), ("forget_working", 0, 0), ("forget_lease", 0, 0)])
@example(steps=[("acquire", 0, 1), ("remove", 0, 0), ("forget_lease", 0, 0)])
async def test_p2_after_a_repair_each_schedule_is_in_its_place_again_whatever_was_done_to_it(redis, steps):
    world = await World.begin(redis)
    for step in steps:
        await world.do(step)
    await world.sweep(0, 0)
    await world.board.expire()
    await world.reclaim(0, 0)
    await world.redis.zremrangebyscore(world.board.keys.waiting, "inf", "inf")
    await world.sweep(0, 0)
    await world.repopulate(0, 0)
    await world.remove_remains()
    await world.check()
    await world.finish()


async def test_p3_many_pods_that_crash_at_random_lose_nothing_and_double_nothing(redis):
    """Eight pods at once for a while; every third run is dropped as if its pod had died there."""
    board = Board(redis)
    names = [f"s{n}" for n in range(60)]
    await board.add(*names)
    running: Counter[str] = Counter()
    ran: Counter[str] = Counter()
    fences: set[tuple[str, int]] = set()
    dice = random.Random(4)

    async def live(pod: Pod) -> None:
        for _ in range(25):
            for run in await pod.acquire(dice.randint(1, 8)):
                assert (run.name, run.fence) not in fences
                fences.add((run.name, run.fence))
                running[run.name] += 1
                await asyncio.sleep(0)
                fate = dice.randint(0, 5)
                if fate < 2:
                    await board.expire(run.name)  # it crashed: nothing more is heard of it
                elif fate == 2:
                    assert await pod.give_back(run) is Ended.RETURNED
                else:
                    assert await pod.complete(run, after=-1) is Ended.COMPLETED
                    ran[run.name] += 1
            await pod.orphans.reclaim()

    await asyncio.gather(*(live(board.pod(f"pod{n}")) for n in range(8)))
    await board.expire()
    await board.pod().orphans.reclaim()
    assert sorted(await board.waiting()) == sorted(names)
    assert (await board.working(), await board.leased()) == ({}, set())
    for name in names:
        assert (await board.entry(name)).runs == ran[name]


@pytest.mark.parametrize("count", [1, 7])
async def test_p4_as_many_holders_as_schedules_and_never_more(redis, count):
    board = Board(redis)
    await board.add(*(f"s{n}" for n in range(count)))
    got = await asyncio.gather(*(board.pod(f"pod{n}").acquire(count) for n in range(12)))
    assert sum(len(runs) for runs in got) == count
