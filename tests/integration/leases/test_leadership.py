"""What only the leader does: one process at a time, and never longer than its term is trusted."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.config import LeaseSettings
from holdfast.errors import LeaseLost
from holdfast.leases.keeper import Keeper
from holdfast.leases.leadership import LeaderRecord, Leadership, LeaderTask
from holdfast.redis.client import connect
from holdfast.telemetry.metrics import Metrics
from tests.support.waiting import until


@pytest.fixture
async def keeper(redis_settings):
    """It renews every 15 seconds, and trusts a lease of its own settings for 45."""
    async with Keeper(LeaseSettings(ttl_seconds=60.0), lambda: connect(redis_settings), Metrics()) as keeper:
        yield keeper


@pytest.fixture(params=list(LeaderRecord))
def record(request) -> LeaderRecord:
    return request.param


async def test_a_task_ends_before_its_short_term_though_the_keeper_trusts_longer(redis, keeper, record):
    """Fails if the trust window is that of the keeper: another process leads while this one goes on."""
    short = Leadership("leader", owner="a", ttl_ms=2000, record=record)
    other = Leadership("leader", owner="b", ttl_ms=60_000, record=record)
    task = LeaderTask(redis, short, longest_seconds=60.0).perform(keeper, asyncio.Event().wait)
    leading = asyncio.create_task(task)
    await until(lambda: redis.exists("leader"))
    term = await until(lambda: other.campaign(redis), lambda term: term is not None)
    assert leading.done()
    with pytest.raises(LeaseLost):
        await leading
    assert await other.resign(redis, term)


async def test_a_leader_whose_reply_was_lost_begins_another_term(redis, record):
    """Fails if it has to wait for the end of a term that it does not know of."""
    leadership = Leadership("leader", owner="a", ttl_ms=60_000, record=record)
    first, second = await leadership.campaign(redis), await leadership.campaign(redis)
    assert second.fence > first.fence
    assert not await leadership.resign(redis, first)
    assert await leadership.resign(redis, second)


async def test_a_term_is_stored_as_it_always_was(redis):
    """Processes of another version read and write the same records."""
    for record, kind in ((LeaderRecord.HASH, "hash"), (LeaderRecord.STRING, "string")):
        term = await Leadership(kind, owner="pod 1", ttl_ms=60_000, record=record).campaign(redis)
        assert (await redis.type(kind)).decode() == kind
        assert 0 < await redis.pttl(kind) <= 60_000
        if record is LeaderRecord.HASH:
            assert await redis.hgetall(kind) == {b"owner": b"pod 1", b"fence": str(term.fence).encode()}
        else:
            assert await redis.get(kind) == f"pod 1 {term.fence}".encode()
