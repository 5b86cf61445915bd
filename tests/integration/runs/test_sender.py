"""A sender waits for nobody else's calls, and tries again by its three settings until its breaker opens.

The settings say how often, after how long, and how much longer each time.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from holdfast.config import BreakerSettings, RedisSettings, load
from holdfast.errors import RedisUnavailable
from holdfast.runs.queue import RunQueue
from holdfast.runs.run import Submission
from holdfast.services.connections import Connections
from tests.support.runs.system import System
from tests.support.waiting import until

ENVIRON = {
    "REDIS_SEND_MESSAGE_MAX_RETRIES": "3",
    "REDIS_SEND_MESSAGE_RETRY_DELAY": "0.25",
    "REDIS_SEND_MESSAGE_RETRY_BACKOFF": "3",
}


class FakeSleep:
    """Notes how long everybody wants to wait, and lets none of them; ``at`` says what happens in which wait."""

    def __init__(self, monkeypatch) -> None:
        self.waits: list[float] = []
        self.at = {}
        self._real = asyncio.sleep
        monkeypatch.setattr(asyncio, "sleep", self)

    async def __call__(self, seconds: float, result=None):
        if seconds:
            self.waits.append(seconds)
            self.at.get(len(self.waits), lambda: None)()
        return await self._real(0, result)


@pytest.fixture
async def queue(restartable_valkey):
    """A queue whose sender has the settings above, on a Redis that is away."""
    breaker = BreakerSettings(failure_threshold=5, cooldown_seconds=3600)
    redis = RedisSettings(url=restartable_valkey.tcp_url, breaker=breaker)
    async with System(redis) as system:
        sender = load(environ=ENVIRON).settings.sender
        settings = msgspec.structs.replace(system.settings, sender=sender)
        async with Connections(settings) as connections:
            restartable_valkey.kill()
            yield connections.sender(settings.queue)


async def test_every_wait_is_longer_than_the_one_before_by_the_backoff(queue: RunQueue, monkeypatch):
    clock = FakeSleep(monkeypatch)
    with pytest.raises(RedisUnavailable, match="in 4 tries"):
        await queue.submit(Submission(agent="work"))
    assert clock.waits == [0.25, 0.75, 2.25]


async def test_the_try_after_redis_is_back_is_the_last(queue: RunQueue, restartable_valkey, monkeypatch):
    clock = FakeSleep(monkeypatch)
    clock.at[2] = restartable_valkey.start
    ticket = await queue.submit(Submission(agent="work"))
    assert ticket.fresh
    assert clock.waits == [0.25, 0.75]
    assert await queue.redis.xlen(queue.keys.stream) == 1


async def test_a_redis_that_stays_away_is_not_asked_by_every_submission(queue: RunQueue, monkeypatch):
    """Fails if a sender has no breaker: each submission would try again, and its producer wait, for seconds."""
    clock = FakeSleep(monkeypatch)
    for _ in range(2):  # four tries, and the fifth
        with pytest.raises(RedisUnavailable):
            await queue.submit(Submission(agent="work"))
    waited = list(clock.waits)
    with pytest.raises(RedisUnavailable, match="the next try is in") as refused:
        await queue.submit(Submission(agent="work"))
    assert clock.waits == waited, "it is refused at once"
    assert 3000 < refused.value.retry_after <= 3600


async def test_a_flood_of_reads_does_not_delay_a_submission(redis, redis_settings):
    """Fails if a sender shares the pool of its process: it would wait until one of the reads has ended."""
    few = msgspec.structs.replace(redis_settings, max_connections=2, socket_timeout_seconds=60.0)
    async with System(few) as system, Connections(system.settings) as connections:
        queue = connections.sender(system.settings.queue)
        reads = [asyncio.create_task(connections.redis.blpop("nothing")) for _ in range(2)]
        try:
            async with asyncio.timeout(30):  # the reads end after 60 s
                await until(
                    lambda: redis.info("clients"), lambda found: found["blocked_clients"] >= len(reads)
                )
                ticket = await queue.submit(Submission(agent="work"))
            assert ticket.fresh
            assert not any(read.done() for read in reads)
        finally:
            await redis.rpush("nothing", *range(len(reads)))
            await asyncio.gather(*reads)
