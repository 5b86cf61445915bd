"""The keeper: leases are kept while the process lives, and a body ends before its lease can be another's."""

from __future__ import annotations

import asyncio
import threading
import time

import msgspec
import pytest

from holdfast.clock import boot_time
from holdfast.config import LeaseSettings, RedisSettings
from holdfast.errors import LeaseLost
from holdfast.leases.keeper import Keeper
from holdfast.leases.leadership import Leadership
from holdfast.leases.lease import Lease, RenewalReply
from holdfast.leases.sortedsets import SortedSetLeases
from holdfast.leases.trust import Trust
from holdfast.redis.client import connect
from holdfast.redis.library import RedisConnectionError
from holdfast.telemetry.metrics import Metrics
from tests.support.leases.granting import GrantingLeases
from tests.support.outages import outage_lines, reporters_that_fail
from tests.support.waiting import stays, until

# A process without CPU for half of it loses its leases, and is right to.
TTL = 6.0


@pytest.fixture
def settings() -> LeaseSettings:
    return LeaseSettings(ttl_seconds=TTL)


def leases(owner: str, ttl: float = TTL) -> GrantingLeases:
    return GrantingLeases(owner, ttl)


def keeper_on(
    settings: LeaseSettings, redis_settings: RedisSettings, metrics: Metrics | None = None
) -> Keeper:
    short = msgspec.structs.replace(redis_settings, socket_timeout_seconds=settings.renew_every_seconds)
    return Keeper(settings, lambda: connect(short), metrics or Metrics())


async def granted(redis, owner: str = "me", key: str = "thing", ttl: float = TTL) -> tuple[Lease, float]:
    asked = boot_time()
    lease = (await leases(owner, ttl).grant(redis, [key]))[0]
    assert lease is not None
    return lease, asked


async def freed(redis, key: str = "thing") -> None:
    """Return when the lease on ``key`` could be another's."""

    async def is_free() -> bool:
        await leases("other").reclaim(redis)
        return await redis.zscore("{t}:leases", key) is None

    await until(is_free, what=f"the end of the lease on {key}")


async def test_a_body_may_take_longer_than_the_ttl(redis, redis_settings, settings):
    async with keeper_on(settings, redis_settings) as keeper:
        lease, asked = await granted(redis)
        hold = keeper.hold(leases("me"), lease, granted_at=asked)
        async with hold:
            await stays(lambda: not hold.lost, seconds=1.5 * TTL)
        assert await leases("me").renew(redis, [lease]) == [RenewalReply.KEPT]


async def test_a_lost_lease_ends_the_body_within_a_beat(redis, redis_settings, settings):
    """By the answer to its next renewal, not by the end of the time for which it is trusted."""

    class Counting(SortedSetLeases):
        async def renew(self, redis, held):
            standings = await super().renew(redis, held)
            answers.extend(standings)
            return standings

    answers: list[RenewalReply] = []
    store = Counting("{t}:leases", "{t}:record:", kind="thing", owner="me", ttl_ms=int(TTL * 1000))
    async with keeper_on(settings, redis_settings) as keeper:
        lease, asked = await granted(redis)
        with pytest.raises(LeaseLost, match="thing"):
            async with keeper.hold(store, lease, granted_at=asked):
                await redis.hset("{t}:record:thing", "owner", "thief")
                await asyncio.Event().wait()
        assert answers[-1] is RenewalReply.LOST
        assert answers.count(RenewalReply.LOST) == 1
        assert not keeper._holds


async def test_a_hung_redis_stops_the_body_before_the_lease_can_move(redis, fault_proxy, proxied_settings):
    """Without the trust window (deadline moved from the answer, or not at all) the body outlives its lease."""
    ttl = 8.0  # a quarter of it lies between the end of the trust and that of the lease
    async with keeper_on(LeaseSettings(ttl_seconds=ttl), proxied_settings) as keeper:
        lease, asked = await granted(redis, ttl=ttl)
        free = asyncio.create_task(freed(redis))
        with pytest.raises(LeaseLost):
            async with keeper.hold(leases("me", ttl), lease, granted_at=asked):
                await asyncio.sleep(ttl / 2)
                fault_proxy.stall()
                await asyncio.shield(free)
        assert not free.done(), "the lease was another's while the body still ran"
        await free
        fault_proxy.heal()


async def test_a_renewal_is_trusted_from_when_it_was_asked(redis, redis_settings, settings):
    """Counted from the answer, a slow answer would stretch the trust beyond the lease itself."""

    class Slow(SortedSetLeases):
        async def renew(self, redis, held):
            standings = await super().renew(redis, held)
            await asyncio.sleep(0.2)  # the answer travels slowly
            renewed.append(time.monotonic())
            return standings

    renewed: list[float] = []
    store = Slow("{t}:leases", "{t}:record:", kind="thing", owner="me", ttl_ms=int(TTL * 1000))
    async with keeper_on(settings, redis_settings) as keeper:
        lease, asked = await granted(redis)
        hold = keeper.hold(store, lease, granted_at=asked)
        granted_until = hold.until
        async with hold:
            await until(lambda: hold.until > granted_until)
            assert hold.until <= renewed[-1] - 0.2 + settings.trust_seconds


async def test_an_outage_is_logged_once_with_a_summary_at_its_end(
    redis, patient_settings, fault_proxy, settings, log_lines
):
    """Fails if each failed renewal is a line: an outage filled the log with hundreds of them."""
    metrics = Metrics()
    async with keeper_on(settings, patient_settings, metrics) as keeper:
        for owner in ("a", "b", "c"):  # a store each
            lease, asked = await granted(redis, owner, key=owner)
            keeper.hold(leases(owner), lease, granted_at=asked)
        fault_proxy.refuse()
        failures = metrics.lease_renewal_failures.labels("thing")
        await until(lambda: next(iter(failures.collect())).samples[0].value >= 9, what="several failed beats")
        fault_proxy.heal()
        began, ended = await until(lambda: outage_lines(log_lines()), lambda lines: len(lines) == 2)
        assert (began["event"], began["held_up"]) == ("Redis unavailable", "lease renewals")
        assert (ended["event"], ended["delayed"]) == ("Redis available again", ["lease renewals"])
        assert ended["failures"] >= 9


async def test_the_answers_of_one_store_end_no_outage_of_another(redis, redis_settings, settings, log_lines):
    """Two servers of a cluster. Fails if they share a reporter: the outage seems over while leases of one end."""

    class Hung(SortedSetLeases):
        async def renew(self, redis, held):
            raise RedisConnectionError("it hangs")

    hung = Hung("{t}:leases", "{t}:record:", kind="hung", owner="me", ttl_ms=int(TTL * 1000))
    async with keeper_on(settings, redis_settings) as keeper:
        lease, asked = await granted(redis)
        keeper.hold(hung, lease, granted_at=asked)
        other, asked = await granted(redis, "other", key="other")
        answered = keeper.hold(leases("other"), other, granted_at=asked)
        await until(lambda: outage_lines(log_lines()))
        granted_until = answered.until
        await until(lambda: answered.until > granted_until)
        assert reporters_that_fail() == 1


async def test_a_blocked_event_loop_does_not_lose_its_lease(redis, redis_settings, settings):
    """Renewed by a task on the same loop, the lease would be another's after the first ttl."""
    async with keeper_on(settings, redis_settings) as keeper:
        lease, asked = await granted(redis)
        async with keeper.hold(leases("me"), lease, granted_at=asked):
            time.sleep(1.5 * TTL)  # agent code that blocks the loop
            assert await leases("other").grant(redis, ["thing"]) == [None]
        assert await leases("me").renew(redis, [lease]) == [RenewalReply.KEPT]


async def test_a_slow_loser_does_not_hurt_the_other_leases(redis, redis_settings, settings):
    """A body that takes long to unwind must not keep the keeper from renewing what is still held."""
    async with keeper_on(settings, redis_settings) as keeper:
        loser, asked = await granted(redis, key="loser")
        winner, _ = await granted(redis, key="winner")
        unwinding = asyncio.Event()

        async def lose() -> None:
            with pytest.raises(LeaseLost):
                async with keeper.hold(leases("me"), loser, granted_at=asked):
                    try:
                        await redis.hset("{t}:record:loser", "owner", "thief")
                        await asyncio.Event().wait()
                    finally:
                        unwinding.set()
                        await asyncio.sleep(1.5 * TTL)

        async def win() -> None:
            hold = keeper.hold(leases("me"), winner, granted_at=asked)
            async with hold:
                await unwinding.wait()
                await stays(lambda: not hold.lost, seconds=1.5 * TTL)

        await asyncio.gather(lose(), win())


async def test_a_store_that_hangs_costs_only_its_own_leases(redis, redis_settings, settings):
    """Renewed one after the other, four hung stores would use up the trust of a healthy one."""

    class Hung(SortedSetLeases):
        async def renew(self, redis, held):
            await asyncio.Event().wait()

    async with keeper_on(settings, redis_settings) as keeper:
        for number in range(4):
            lease, asked = await granted(redis, key=f"hung-{number}")
            store = Hung("{t}:leases", "{t}:record:", kind="thing", owner="me", ttl_ms=int(TTL * 1000))
            keeper.hold(store, lease, granted_at=asked)
        lease, asked = await granted(redis)
        hold = keeper.hold(leases("me"), lease, granted_at=asked)
        async with hold:
            await stays(lambda: not hold.lost, seconds=1.5 * TTL)


async def test_a_lease_lost_before_its_body_starts_ends_it_at_once(redis, redis_settings, settings):
    async with keeper_on(settings, redis_settings) as keeper:
        lease, asked = await granted(redis)
        hold = keeper.hold(leases("me"), lease, granted_at=asked)
        await redis.hset("{t}:record:thing", "owner", "thief")
        await until(lambda: hold.lost)
        with pytest.raises(LeaseLost):
            async with hold:
                await asyncio.Event().wait()


async def test_a_lease_that_was_over_is_not_trusted_again(redis, redis_settings, settings):
    """After a freeze the keeper's thread may renew a lease after its end was noticed, before its body is ended."""

    async def renew() -> None:
        other = connect(redis_settings)
        try:
            assert await keeper._renew(other, leases("me"), [hold])
        finally:
            await other.aclose()

    keeper = keeper_on(settings, redis_settings)
    lease, asked = await granted(redis)
    hold = keeper.hold(leases("me"), lease, granted_at=asked - settings.trust_seconds)
    trust = Trust(hold.trusted_until)
    thread = threading.Thread(target=lambda: asyncio.run(renew()))
    with pytest.raises(LeaseLost):
        async with hold:
            thread.start()
            thread.join()  # on the event loop: the timer that ends this body is due, and can't run
            assert not trust.holds()
            await asyncio.Event().wait()


async def test_a_lease_that_ended_while_the_machine_was_suspended_is_not_trusted(
    redis, redis_settings, settings, monkeypatch
):
    """time.monotonic() and the event loop's timers stand still meanwhile; Redis's clock does not."""
    async with keeper_on(settings, redis_settings) as keeper:
        lease, asked = await granted(redis)
        hold = keeper.hold(leases("me"), lease, granted_at=asked)
        trust, read = Trust(hold.trusted_until), time.clock_gettime
        async with hold:
            assert trust.holds()
            monkeypatch.setattr(time, "clock_gettime", lambda clock: read(clock) + 300)
            assert not trust.holds()
            monkeypatch.undo()


async def test_a_cancellation_from_outside_is_not_taken_for_a_lost_lease(redis, redis_settings, settings):
    async with keeper_on(settings, redis_settings) as keeper:
        lease, asked = await granted(redis)

        async def body() -> None:
            async with keeper.hold(leases("me"), lease, granted_at=asked):
                await asyncio.Event().wait()

        task = asyncio.create_task(body())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_timeout_of_the_bodys_own_is_not_taken_for_a_lost_lease(redis, redis_settings, settings):
    async with keeper_on(settings, redis_settings) as keeper:
        lease, asked = await granted(redis)
        with pytest.raises(TimeoutError):
            async with keeper.hold(leases("me"), lease, granted_at=asked):
                raise TimeoutError("mine")


async def test_the_holder_hears_once_that_it_should_stop(redis, redis_settings, settings):
    async with keeper_on(settings, redis_settings) as keeper:
        lease, asked = await granted(redis)
        asked_to_stop: list[str] = []
        hold = keeper.hold(
            leases("me"), lease, granted_at=asked, on_stop=lambda: asked_to_stop.append("stop")
        )
        await redis.hset("{t}:record:thing", "cancel", "please")
        async with hold:
            await until(lambda: asked_to_stop)
            await stays(lambda: asked_to_stop == ["stop"], seconds=TTL)


async def test_a_thousand_leases_are_kept_by_one_call_per_beat(redis, redis_settings, settings):
    keys = [f"k{n}" for n in range(1000)]
    async with keeper_on(settings, redis_settings) as keeper:
        asked = boot_time()
        held = await leases("me").grant(redis, keys)
        await redis.config_resetstat()
        store, began = leases("me"), time.monotonic()
        for lease in held:
            keeper.hold(store, lease, granted_at=asked)

        async def calls() -> int:
            return (await redis.info("commandstats")).get("cmdstat_evalsha", {}).get("calls", 0)

        found = await until(calls, lambda calls: calls >= 3)
        assert found <= (time.monotonic() - began) / settings.renew_every_seconds + 2
        assert await leases("me").renew(redis, held) == [RenewalReply.KEPT] * 1000


async def test_a_keeper_that_dies_says_so_and_loses_everything(redis, redis_settings, settings):
    class Broken(SortedSetLeases):
        async def renew(self, redis, held):
            raise RuntimeError("a bug")

    store = Broken("{t}:leases", "{t}:record:", kind="thing", owner="me", ttl_ms=1000)
    async with keeper_on(settings, redis_settings) as keeper:
        lease, asked = await granted(redis)
        hold = keeper.hold(store, lease, granted_at=asked)
        with pytest.raises(RuntimeError, match="a bug"):
            await asyncio.wait_for(keeper.watch(), 30)
        assert hold.lost


async def test_a_leader_that_did_not_hear_of_its_term_begins_another(redis):
    """Its own lost reply must not lock it out; what it does under the old fence is refused all the same."""
    office = Leadership("leader", owner="one", ttl_ms=60_000)
    first, second = await office.campaign(redis), await office.campaign(redis)
    assert second.fence > first.fence
    assert await office.renew(redis, [first, second]) == [RenewalReply.LOST, RenewalReply.KEPT]
    assert await Leadership("leader", owner="two", ttl_ms=60_000).campaign(redis) is None
