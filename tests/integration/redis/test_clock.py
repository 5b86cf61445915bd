"""Redis's clock, seen from here."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import RedisSettings
from holdfast.redis.client import Redis, connect
from holdfast.redis.clock import RedisClock
from tests.support.redis.fault_proxy import FaultProxy


class Scripted:
    """Answers TIME from a list, and moves the local clock by the round trip."""

    def __init__(self, times: list[float], round_trips: list[float]) -> None:
        self.local = 50.0
        self._answers = list(zip(times, round_trips, strict=True))

    async def execute_command(self, *_: object) -> tuple[int, int]:
        answer, round_trip = self._answers.pop(0)
        self.local += round_trip
        return int(answer), round((answer % 1) * 1_000_000)


def clock_of(server: Scripted) -> RedisClock:
    return RedisClock(server, monotonic=lambda: server.local)  # type: ignore[arg-type]


async def server_time(redis: Redis) -> float:
    seconds, microseconds = await redis.execute_command("TIME")
    return seconds + microseconds / 1e6


async def test_it_tells_the_time_of_redis(redis: Redis):
    clock = RedisClock(redis)
    error = await clock.refresh()
    before, now, after = await server_time(redis), clock.now(), await server_time(redis)
    assert error > 0
    assert before - error <= now <= after + error


async def test_before_the_first_refresh_it_tells_the_local_time(redis: Redis):
    before, now, after = time.time(), RedisClock(redis).now(), time.time()
    assert before - 0.01 <= now <= after + 0.01


async def test_half_of_the_round_trip_is_added():
    """The mistake: taking the answer as the time of its arrival, which is late by the way back."""
    server = Scripted([1000.0] * 3, [0.4, 0.4, 0.4])
    clock = clock_of(server)
    assert abs(await clock.refresh() - 0.2) < 1e-9
    assert abs(clock.now() - 1000.2) < 1e-3


async def test_the_quickest_answer_counts():
    server = Scripted([900.0, 1000.0, 1100.0], [3.0, 0.2, 5.0])
    clock = clock_of(server)
    assert abs(await clock.refresh() - 0.1) < 1e-9
    assert abs(clock.now() - 1005.1) < 1e-3


async def test_a_slow_network_is_corrected_for(
    redis: Redis, patient_settings: RedisSettings, fault_proxy: FaultProxy
):
    client = connect(patient_settings)
    await client.execute_command("PING")
    fault_proxy.delay(0.1)
    clock = RedisClock(client)
    asked = time.monotonic()
    error = await clock.refresh()
    took = time.monotonic() - asked
    before, now, after = await server_time(redis), clock.now(), await server_time(redis)
    await client.aclose()
    assert before - error <= now <= after + error
    assert 0.05 <= error < took


async def test_a_clock_of_redis_that_is_set_back_stands_still_here():
    server = Scripted([1000.0] * 3 + [400.0] * 3, [0.0] * 6)
    clock = clock_of(server)
    await clock.refresh()
    assert clock.now() == 1000.0
    await clock.refresh()
    assert clock.now() == 1000.0
    server.local += 599.0
    assert clock.now() == 1000.0
    server.local += 2.0
    assert clock.now() == 1001.0


@given(st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 10), st.floats(0, 10)), max_size=20))
async def test_it_never_goes_backwards(story: list[tuple[float, float, float]]):
    server = Scripted([t for t, _, _ in story for _ in range(3)], [r for _, r, _ in story for _ in range(3)])
    clock = clock_of(server)
    latest = clock.now()
    for _, _, pause in story:
        await clock.refresh()
        for _ in range(2):
            now = clock.now()
            assert now >= latest
            latest = now
            server.local += pause
