"""I: what is missing comes back, and ends that Redis was not there for are told later."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from holdfast import App
from holdfast.config import CircuitBreakerSettings
from holdfast.leases.lease import Lease
from holdfast.schedules.breakers import redis_breaker
from holdfast.schedules.completion import ATTEMPTS, Completion, CompletionQueue, FiringEnd
from holdfast.schedules.entries import ScheduleState
from holdfast.schedules.replies import Ended
from holdfast.telemetry.metrics import Metrics
from tests.support.schedules.manual_scheduler import redis_now
from tests.support.waiting import stays, until


def hourly_app(ran: list[int]) -> App:
    app = App("test")

    @app.schedule(every=3600)
    async def work() -> None:
        ran.append(1)

    return app


async def test_i1_after_a_flush_the_schedules_of_the_code_come_back(stage):
    ran: list[int] = []
    await stage.start(hourly_app(ran), refresh_period_seconds=0.1)
    await stage.entry("work", ScheduleState.WAITING, runs=1)
    await stage.board.redis.flushall()
    await until(lambda: len(ran) == 2)


async def test_i2_what_lost_its_place_comes_back(stage):
    ran: list[int] = []
    await stage.start(hourly_app(ran), refresh_period_seconds=0.1)
    await stage.entry("work", ScheduleState.WAITING, runs=1)
    await stage.board.redis.delete(stage.board.keys.waiting)
    await until(lambda: len(ran) == 2)


async def test_i3_reconciling_moves_no_turn(stage):
    ran: list[int] = []
    await stage.start(hourly_app(ran), refresh_period_seconds=0.02)
    await stage.entry("work", ScheduleState.WAITING, runs=1)
    before = await stage.board.waiting()

    async def is_unmoved() -> bool:
        return await stage.board.waiting() == before

    await stays(is_unmoved, seconds=0.3)  # a dozen passes
    assert before["work"] > await redis_now(stage.board.redis) + 3000


async def test_i4_new_ones_are_spread_and_known_ones_are_not(stage):
    app = App("test")
    for n in range(30):

        async def work() -> None: ...

        app.register(f"work-{n}", work)
        app.schedule(every=3600, name=f"s{n}")(app.agents[f"work-{n}"].call)
    now = await redis_now(stage.board.redis)
    await stage.start(app, jitter={"initial_registration_seconds": 600})
    await until(stage.board.waiting, lambda found: len(found) >= 25)
    scores = (await stage.board.waiting()).values()
    assert max(scores) - now > 120


class Flaky:
    """A completer whose Redis is away so many times."""

    def __init__(self, failures: int) -> None:
        self.failures, self.calls, self.times = failures, 0, []
        self.names: list[str] = []

    async def complete(self, runs: list[Completion]) -> list[Ended]:
        self.calls += 1
        self.times.append(time.monotonic())
        self.names += [run.name for run in runs]
        if self.calls <= self.failures:
            raise ConnectionError("away")
        return [Ended.COMPLETED for _ in runs]


def endings_of(completer: Flaky, *, threshold: int = 100, cycle: float = 0.1) -> CompletionQueue:
    breaker = redis_breaker(CircuitBreakerSettings(failure_threshold=threshold, cooldown_ms=60_000))
    return CompletionQueue(completer, breaker, Metrics(), cycle_seconds=cycle)


def counted(endings: CompletionQueue) -> dict[str, float]:
    counter = endings._metrics.schedule_recovery
    return {status: counter.labels(status)._value.get() for status in ("told", "failed", "given_up")}


async def told_by(endings: CompletionQueue, *, seconds: float = 30.0) -> list[Ended | None]:
    words: list[Ended | None] = []
    endings.add(FiringEnd(Lease("a", "pod", 1), Completion("a", 1, 9e9), words.append))
    sending = asyncio.create_task(endings.run())
    try:
        async with asyncio.timeout(seconds):
            await endings.flushed()
    except TimeoutError:
        pass
    finally:
        sending.cancel()
    return words


async def test_i5_an_end_that_failed_is_told_a_cycle_later():
    completer = Flaky(failures=2)
    assert await told_by(endings_of(completer)) == [Ended.COMPLETED]
    assert completer.calls == 3


async def test_i6_after_three_further_tries_it_is_given_up_and_its_lease_let_go():
    completer = Flaky(failures=100)
    endings = endings_of(completer)
    assert await told_by(endings) == [None]
    assert completer.calls == 1 + ATTEMPTS
    assert counted(endings) == {"told": 0, "failed": ATTEMPTS, "given_up": 1}


async def test_i8_each_further_try_is_counted_by_how_it_ended():
    """Fails if only ends are counted that are told or given up in the end."""
    endings = endings_of(Flaky(failures=2))
    assert await told_by(endings) == [Ended.COMPLETED]
    assert counted(endings) == {"told": 1, "failed": 1, "given_up": 0}


async def test_r10_the_first_further_try_comes_a_cycle_after_the_failure():
    """Fails if the failed one is tried again at once: two tries would be gone in the first moment of an outage."""
    completer = Flaky(failures=100)
    assert await told_by(endings_of(completer, cycle=3600), seconds=0.5) == []
    assert completer.calls == 1


async def test_r10_one_that_fails_just_before_a_cycle_waits_for_the_next():
    """Fails if it is tried again with what has waited for a cycle: a moment after its failure."""
    completer = Flaky(failures=100)
    endings = endings_of(completer, cycle=3600)
    sending = asyncio.create_task(endings.run())
    endings.add(FiringEnd(Lease("a", "pod", 1), Completion("a", 1, 9e9), lambda _: None))
    await until(lambda: endings.depth == 1)
    endings._cycle = 0.0  # the next one begins now
    endings.add(FiringEnd(Lease("b", "pod", 1), Completion("b", 1, 9e9), lambda _: None))
    await until(lambda: endings.depth == 2)
    await stays(lambda: completer.names == ["a", "b"], seconds=0.3)
    sending.cancel()


async def test_r10_one_try_per_cycle():
    """All tries in one pass would be used up within a moment of an outage."""
    completer = Flaky(failures=100)
    await told_by(endings_of(completer, cycle=0.3))
    gaps = [later - earlier for earlier, later in itertools.pairwise(completer.times)]
    assert len(gaps) == ATTEMPTS
    assert min(gaps) > 0.25


async def test_i7_while_the_breaker_is_open_no_try_is_used_up():
    completer = Flaky(failures=100)
    endings = endings_of(completer, threshold=3, cycle=0.01)
    breaker = endings._breaker
    for _ in range(3):
        with pytest.raises(ConnectionError), breaker.guard():
            raise ConnectionError
    assert await told_by(endings, seconds=0.3) == []
    assert (completer.calls, endings.depth) == (0, 1)


async def test_r11_a_failed_completion_does_not_wait_for_the_orphan_threshold(stage_of_short_leases):
    """Its lease is let go: any scheduler brings it back within about a ttl."""
    stage = stage_of_short_leases
    app, ran = App("test"), []

    @app.schedule(every=3600)
    async def work() -> None:
        ran.append(1)

    running = await stage.start(app, breaker={"failure_threshold": 1000})
    await stage.entry("work", ScheduleState.WAITING, runs=1)
    running.scheduler.firings.completer.complete = Flaky(failures=1 + ATTEMPTS).complete
    await stage.board.make_due("work")
    running.scheduler.wake()
    await until(lambda: len(ran) >= 3)  # the threshold is 600 s
