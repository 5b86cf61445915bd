"""One contract for every lease store: what a holder may do, what a former holder may not."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from holdfast.leases.lease import Lease, RenewalReply
from tests.support.leases.lease_stores import HARNESSES
from tests.support.waiting import until

LONG_MS = 60_000
SHORT_MS = 40


@pytest.fixture(params=list(HARNESSES))
def harness(request):
    return HARNESSES[request.param]


async def expired(redis, harness, lease) -> None:
    """Wait until another owner can have the lease: reclaim what is due, again and again."""
    other = harness("other", SHORT_MS)

    async def owner() -> str:
        await other.reclaim(redis)
        return await other.owner_of(redis)

    await until(owner, lambda owner: owner != lease.owner, what="the end of the lease")


async def test_a_free_thing_is_granted(redis, harness):
    lease = await harness("me", LONG_MS).grant(redis)
    assert lease is not None
    assert lease.owner == "me"
    assert lease.fence > 0


async def test_a_held_thing_is_not_granted_to_another(redis, harness):
    assert await harness("me", LONG_MS).grant(redis)
    assert await harness("other", LONG_MS).grant(redis) is None


async def test_the_holder_renews(redis, harness):
    mine = harness("me", LONG_MS)
    lease = await mine.grant(redis)
    assert await mine.store.renew(redis, [lease]) == [RenewalReply.KEPT]


async def test_renewing_keeps_a_lease_from_being_reclaimed(redis, harness):
    ttl = 1.0
    mine, other = harness("me", int(ttl * 1000)), harness("other", int(ttl * 1000))
    lease, began, renewed = None, 0.0, 0.0
    while lease is None or time.monotonic() - began < 1.3 * ttl:
        if lease is None:
            began = renewed = time.monotonic()
            lease = await mine.grant(redis)
        asked = time.monotonic()
        standings, taken = await mine.store.renew(redis, [lease]), await other.reclaim(redis)
        if time.monotonic() - renewed > 0.9 * ttl:  # we were too slow to keep it: begin anew
            await redis.flushall()
            lease = None
            continue
        assert (standings, list(taken)) == ([RenewalReply.KEPT], [])
        renewed = asked
        await asyncio.sleep(0.01)


async def test_a_lease_that_is_not_renewed_can_be_granted_again_with_a_higher_fence(redis, harness):
    lease = await harness("me", SHORT_MS).grant(redis)
    await expired(redis, harness, lease)
    again = await harness("other", LONG_MS).grant(redis)
    assert again is not None
    assert again.fence > lease.fence


async def test_a_stale_holders_renewal_is_refused_and_changes_nothing(redis, harness):
    """Without the owner and fence check in the renew scripts the old holder takes the lease back."""
    lease = await harness("me", SHORT_MS).grant(redis)
    await expired(redis, harness, lease)
    new = await harness("other", LONG_MS).grant(redis)
    assert await harness("me", LONG_MS).store.renew(redis, [lease]) == [RenewalReply.LOST]
    assert await harness("other", LONG_MS).store.renew(redis, [new]) == [RenewalReply.KEPT]


async def test_a_stale_holders_release_is_refused(redis, harness):
    """Without the check a late release frees somebody else's lease, and a third one gets it."""
    lease = await harness("me", SHORT_MS).grant(redis)
    await expired(redis, harness, lease)
    new = await harness("other", LONG_MS).grant(redis)
    assert not await harness("me", LONG_MS).release(redis, lease)
    assert await harness("third", LONG_MS).grant(redis) is None
    assert await harness("other", LONG_MS).store.renew(redis, [new]) == [RenewalReply.KEPT]


async def test_the_same_owner_under_an_old_fence_is_stale_too(redis, harness):
    """The owner's name alone proves nothing: a restarted pod has the name of its predecessor."""
    old = await harness("me", SHORT_MS).grant(redis)
    await expired(redis, harness, old)
    new = await harness("me", LONG_MS).grant(redis)
    mine = harness("me", LONG_MS)
    assert await mine.store.renew(redis, [old]) == [RenewalReply.LOST]
    assert not await mine.release(redis, old)
    assert await mine.store.renew(redis, [new]) == [RenewalReply.KEPT]


async def test_a_forged_fence_is_refused(redis, harness):
    lease = await harness("me", LONG_MS).grant(redis)
    forged = msgspec.structs.replace(lease, fence=lease.fence + 1)
    (standing,) = await harness("me", LONG_MS).store.renew(redis, [forged])
    assert not standing.is_kept
    assert not await harness("me", LONG_MS).release(redis, forged)


async def test_a_released_lease_is_free_at_once(redis, harness):
    mine = harness("me", LONG_MS)
    lease = await mine.grant(redis)
    assert await mine.release(redis, lease)
    again = await harness("other", LONG_MS).grant(redis)
    assert again is not None
    assert again.fence >= lease.fence


async def test_a_lease_is_released_once(redis, harness):
    mine = harness("me", LONG_MS)
    lease = await mine.grant(redis)
    assert await mine.release(redis, lease)
    assert not await mine.release(redis, lease)


async def test_many_leases_are_judged_one_by_one(redis, harness):
    mine = harness("me", LONG_MS)
    lease = await mine.grant(redis)
    ghost = Lease("nothing", "me", 7)
    if harness in {HARNESSES["leader"], HARNESSES["leader as a string"]}:
        ghost = msgspec.structs.replace(lease, fence=7)
    standings = await mine.store.renew(redis, [ghost, lease, ghost])
    assert [standing.is_kept for standing in standings] == [False, True, False]


async def test_nothing_held_renews_to_nothing(redis, harness):
    mine = harness("me", LONG_MS)
    assert await mine.grant(redis)
    assert list(await mine.store.renew(redis, [])) == []


@pytest.mark.parametrize("harness", ["schedules", "agents"], indirect=True)
async def test_a_record_that_was_overwritten_costs_only_its_own_lease(redis, harness):
    """One WRONGTYPE must not fail the renewal of everything that a process holds."""
    mine = harness("me", LONG_MS)
    leases = [await mine.grant(redis, key) for key in ("a", "damaged", "c")]
    await redis.delete(mine.record("damaged"))
    await redis.set(mine.record("damaged"), "overwritten")
    assert await mine.store.renew(redis, leases) == [RenewalReply.KEPT, RenewalReply.LOST, RenewalReply.KEPT]


@pytest.mark.parametrize("harness", ["leader", "leader as a string"], indirect=True)
async def test_a_leaders_key_that_was_overwritten_is_nobodys_term(redis, harness):
    mine = harness("me", LONG_MS)
    lease = await mine.grant(redis)
    await redis.delete("leader")
    await redis.zadd("leader", {"overwritten": 1})
    assert await mine.store.renew(redis, [lease]) == [RenewalReply.LOST]
    assert not await mine.release(redis, lease)
