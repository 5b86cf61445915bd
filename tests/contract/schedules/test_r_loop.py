"""R: the known mistakes that a loop can make; `test_loop_mistakes.py` puts each of them back."""

from __future__ import annotations

import asyncio
import threading
import time

import msgspec
import pytest

from holdfast import App
from holdfast.config import CircuitBreakerSettings, RedisSettings
from holdfast.leases.lease import Lease
from holdfast.redis.client import connect
from holdfast.schedules.breakers import redis_breaker
from holdfast.schedules.clock import RedisClock
from holdfast.schedules.completion import CompletionQueue, FiringEnd
from holdfast.schedules.entries import ScheduleState
from holdfast.schedules.orphans import Orphans
from holdfast.schedules.replies import Ended
from holdfast.schedules.schedule import Schedule, encoded
from holdfast.schedules.trigger import Cron, Every
from holdfast.telemetry.metrics import Metrics
from tests.support.schedules.manual_scheduler import Board
from tests.support.schedules.schedulers import stage_of
from tests.support.waiting import until

NAMES = [f"work-{n}" for n in range(20)]
TTL_SECONDS = 6.0
BLOCKED_SECONDS = 7.0  # longer than the lease, shorter than a read waits for its reply
READ_SECONDS = 30.0


class FailsOnce:
    """A call whose first try finds Redis away."""

    def __init__(self, call) -> None:
        self.call, self.failed = call, False

    async def __call__(self, *args, **options):
        if not self.failed:
            self.failed = True
            raise ConnectionError("away")
        return await self.call(*args, **options)


async def test_r1_what_a_failed_batch_had_tried_is_tried_again(redis):
    board = Board(redis)
    await board.add(*NAMES)
    pod = board.pod()
    pod.acquirer._call = FailsOnce(pod.acquirer._call)
    with pytest.raises(ConnectionError):
        await pod.acquire(accept=lambda *_: True)
    assert sorted(run.name for run in await pod.acquire(accept=lambda *_: True)) == sorted(NAMES)


async def test_r1_in_the_loop_too(stage):
    app, ran = App("test"), []

    async def work() -> None:
        ran.append(1)

    app.register("work", work)
    running = await stage.start(app, agent={"enabled_pattern": "work-.*"})
    running.scheduler._acquirer._call = FailsOnce(running.scheduler._acquirer._call)
    schedules = [Schedule(name=name, agent="work", trigger=Every(seconds=3600)) for name in NAMES]
    await stage.board.registry.register(schedules)
    await until(lambda: len(ran) == len(NAMES))
    assert running.count("schedule_acquire_failures_total") == 1
    await until(lambda: running.scheduler.permits.taken == 0)


def test_r8_the_time_is_that_of_redis_however_wrong_this_machine_is():
    loop_time = [100.0]
    clock = RedisClock(10.0, local=lambda: loop_time[0], wall=lambda: 5.0)
    assert clock.now() == 5.0, "before Redis has answered there is no better one"
    clock.synchronize(1000.0, asked_at=100.0)
    loop_time[0] += 7
    assert clock.now() == pytest.approx(1007.0)
    assert clock.until(1010.0) == pytest.approx(3.0)


async def test_r8_the_scan_asks_the_clock_of_redis(stage):
    """Redis is an hour ahead: what is overdue there is overdue, whatever this machine's clock shows."""
    app, free, began = App("test"), asyncio.Event(), []

    @app.schedule(every=3600, timeout=60)
    async def stubborn() -> None:
        began.append(1)
        await free.wait()

    running = await stage.start(app, zombies={"threshold_ms": 0, "interval_ms": 50})
    await until(lambda: began)
    running.scheduler.clock.now = lambda: time.time() + 3600
    try:
        assert (await stage.entry("stubborn", runs=1)).last_outcome == "timed_out"
    finally:
        free.set()


class Words:
    """A completer that answers each giving back by whose it is."""

    async def give_back(
        self, leases: list[Lease], after: list[float] | None = None, history: list[bytes] | None = None
    ) -> list[Ended]:
        return [Ended.STALE if lease.key.startswith("stale") else Ended.RETURNED for lease in leases]


async def test_r9_each_end_is_told_its_own_word_in_whatever_order_they_are_sent():
    """Those with a delay go in another call than those without: the answers must not change places."""
    breaker = redis_breaker(CircuitBreakerSettings())
    endings = CompletionQueue(Words(), breaker, Metrics(), cycle_seconds=1.0)
    told: dict[str, list[Ended | None]] = {}
    names = ["stale-a", "b", "c", "stale-d", "e", "stale-f"]
    for n, name in enumerate(names):
        told[name] = []
        after = None if n % 2 else float(n)
        endings.add(FiringEnd(Lease(name, "pod", 1), None, told[name].append, after))
    sending = asyncio.create_task(endings.run())
    async with asyncio.timeout(30):
        await endings.flushed()
    sending.cancel()
    assert told == {name: [Ended.STALE if name.startswith("stale") else Ended.RETURNED] for name in names}


class Rival(threading.Thread):
    """Another scheduler's reclaiming, on a thread and loop of its own."""

    def __init__(self, settings: RedisSettings, keys) -> None:
        super().__init__(daemon=True)
        self.settings, self.keys, self.found, self.over = settings, keys, [], threading.Event()

    def run(self) -> None:
        asyncio.run(self.reclaim())

    async def reclaim(self) -> None:
        redis = connect(self.settings)
        while not self.over.wait(0.05):
            self.found += await Orphans(redis, self.keys).reclaim()
        await redis.aclose()


async def test_r15_an_agent_that_blocks_the_event_loop_keeps_its_lease(redis_settings):
    app, began = App("test"), []
    patient = msgspec.structs.replace(redis_settings, socket_timeout_seconds=READ_SECONDS)

    @app.schedule(every=3600, timeout=60)
    async def rude() -> None:
        began.append(1)
        time.sleep(BLOCKED_SECONDS)

    async with connect(patient) as redis, stage_of(redis, patient, ttl=TTL_SECONDS) as stage:
        rival = Rival(redis_settings, stage.board.keys)
        rival.start()
        try:
            await stage.start(app)
            entry = await stage.entry("rude", ScheduleState.WAITING, runs=1)
        finally:
            rival.over.set()
            await asyncio.to_thread(rival.join)
    assert (rival.found, len(began)) == ([], 1)
    assert (entry.last_outcome, entry.reclaimed) == ("succeeded", 0)


async def test_r16_an_agent_that_never_ends_does_not_end_its_schedule(stage_of_short_leases):
    """Its scheduler vanishes in the middle of a turn, and so did everybody who could have planned the next."""
    stage = stage_of_short_leases
    app, began = App("test"), []

    @app.schedule(every=3600)
    async def work() -> None:
        began.append(1)
        if len(began) == 1:
            await asyncio.Event().wait()

    first = await stage.start(app, "first")
    await until(lambda: began)
    await first.vanish()
    await stage.start(app, "second")
    assert (await stage.entry("work", ScheduleState.WAITING, runs=1)).last_outcome == "succeeded"


@pytest.mark.parametrize("misfire", ["skip", "coalesce"])
async def test_r17_a_stored_zone_of_the_machine_is_run_as_before(stage, misfire):
    """It was registered before such zones were refused."""
    app = App("test")

    @app.agent
    async def work() -> None: ...

    old = Schedule(
        name="old",
        agent="work",
        trigger=Cron(expression="0 0 1 1 *", zone="localtime"),
        misfire=misfire,
    )
    await stage.board.registry.register([old])
    await stage.board.make_due("old")
    running = await stage.start(app)
    assert (await stage.entry("old", ScheduleState.WAITING, runs=1)).last_outcome == "succeeded"
    assert not running.task.done()


@pytest.mark.parametrize("misfire", ["skip", "coalesce"])
async def test_r18_a_stored_zone_that_is_not_known_here_fails_its_turn_and_nothing_else(stage, misfire):
    """Fails if such a definition ends the scheduler, or keeps its lease for ever."""
    app = App("test")

    @app.schedule(every=3600)
    async def work() -> None: ...

    cron = Cron(expression="0 * * * *", zone="Mars/Base")
    lost = Schedule(name="lost", agent="work", trigger=cron, misfire=misfire)
    await stage.board.add("lost", spec=encoded(lost), due=-7200)
    running = await stage.start(app)
    entry = await stage.entry("lost", ScheduleState.WAITING, runs=1)
    assert (entry.last_outcome, "Mars/Base" in entry.last_error) == ("failed", True)
    await stage.entry("work", runs=1)
    assert not running.task.done()
    assert await until(lambda: running.scheduler.permits.free == running.scheduler.permits.limit)
