"""Streams of KEDA: told at once of work, for any number of them on one blocked connection."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from typing import cast

import grpc
import msgspec
import pytest
from grpc import aio

from holdfast.config import QueueSettings, RedisSettings
from holdfast.redis.client import Redis, connect
from holdfast.runs.queue import RunQueue
from holdfast.runs.run import Priority, Submission
from holdfast.scaling import waking
from holdfast.scaling.trigger import Trigger
from holdfast.scaling.waking import Listener, QueueWatch
from tests.support.redis.fault_proxy import FaultProxy
from tests.support.redis.valkey_process import ValkeyProcess
from tests.support.scaling.scalers import (
    OTHER,
    QUEUE,
    Caller,
    calling,
    children,
    heard,
    queue_of,
    serving,
    settings_of,
    submit,
)
from tests.support.waiting import stays, until

RARELY = 3600.0
"""A poll that never comes: what is told then, the wake-up has told."""


async def clients(redis: Redis) -> list[dict[str, str]]:
    listed = (await redis.execute_command("CLIENT", "LIST")).decode()
    return [dict(pair.split("=", 1) for pair in line.split()) for line in listed.splitlines()]


async def connections(redis: Redis) -> set[str]:
    return {row["id"] for row in await clients(redis)}


async def blocked(redis: Redis) -> list[dict[str, str]]:
    """The connections that wait in a blocking read."""
    return [row for row in await clients(redis) if row["cmd"] == "xread" and "b" in row["flags"]]


async def one_is_blocked(redis: Redis) -> dict[str, str]:
    """Wait until one connection waits in a blocking read, and return it."""
    (found,) = await until(lambda: blocked(redis), lambda rows: len(rows) == 1)
    return found


async def taken(redis: Redis, queue: RunQueue) -> None:
    """Do away with all work, as a worker that is done does."""
    for lane in queue.keys.lanes:
        await redis.execute_command("DEL", lane)


async def test_a_stream_says_how_it_is_and_every_change(redis: Redis, redis_settings: RedisSettings):
    async with calling(settings_of(redis_settings)) as caller:
        stream = caller.stream()
        assert await heard(stream) is False
        queue = await submit(redis)
        assert await heard(stream) is True
        await submit(redis, 3)
        await taken(redis, queue)
        assert await heard(stream) is False, "more of it was no news"
        later = caller.stream()
        assert await heard(later) is False


async def test_a_submit_wakes_a_stream_without_any_poll(redis: Redis, redis_settings: RedisSettings):
    """Fails if only polls tell: there is none within the hour."""
    async with calling(settings_of(redis_settings, poll_seconds=RARELY)) as caller:
        stream, other = caller.stream(), caller.stream(OTHER)
        assert (await heard(stream), await heard(other)) == (False, False)
        await one_is_blocked(redis)
        await submit(redis, priority=Priority.LOW)
        assert await heard(stream) is True
        await submit(redis, name=OTHER)
        assert await heard(other) is True


async def test_any_producer_wakes_a_stream(redis: Redis, redis_settings: RedisSettings):
    async with calling(settings_of(redis_settings, poll_seconds=RARELY)) as caller:
        stream = caller.stream()
        assert await heard(stream) is False
        await one_is_blocked(redis)
        await redis.execute_command("XADD", QUEUE, "*", "message_data", "{}")
        assert await heard(stream) is True


async def test_what_comes_between_the_look_and_the_block_is_not_missed(
    redis: Redis, redis_settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
):
    """Fails if the reader begins at the end of the lanes as they are when it begins."""
    async with serving(settings_of(redis_settings, poll_seconds=RARELY)) as service:
        caller = Caller(service.port)
        looked, go_on = asyncio.Event(), asyncio.Event()
        read = QueueWatch._read

        async def late(watch, lanes):
            looked.set()
            await go_on.wait()
            return await read(watch, lanes)

        monkeypatch.setattr(QueueWatch, "_read", late)
        stream = caller.stream()
        assert await heard(stream) is False
        await asyncio.wait_for(looked.wait(), 30)
        await submit(redis)
        go_on.set()
        assert await heard(stream) is True
        await caller.channel.close()


async def test_lanes_whose_ends_could_not_be_told_are_watched_soon(
    redis: Redis, redis_settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
):
    """Fails if one answer that comes late leaves a stream without a wake-up until the next poll."""
    async with serving(settings_of(redis_settings, poll_seconds=RARELY)) as service:
        caller = Caller(service.port)
        ends, late = QueueWatch._ends, [True]

        async def once_late(watch):
            return {} if late and late.pop() else await ends(watch)

        monkeypatch.setattr(QueueWatch, "_ends", once_late)
        stream = caller.stream()
        assert await heard(stream) is False
        assert not late
        await submit(redis)
        assert await heard(stream) is True
        await caller.channel.close()


async def test_a_delayed_run_that_gets_due_is_told(redis: Redis, redis_settings: RedisSettings):
    """Without a worker nobody promotes it, so no entry comes: the poll finds it."""
    async with calling(settings_of(redis_settings)) as caller:
        stream = caller.stream()
        assert await heard(stream) is False
        await submit(redis, delay_seconds=0.3)
        assert await heard(stream) is True


async def test_work_of_a_queue_that_opens_again_is_told(redis: Redis, redis_settings: RedisSettings):
    queue = await submit(redis, 2)
    await queue.pause("upgrade")
    async with calling(settings_of(redis_settings)) as caller:
        stream = caller.stream()
        assert await heard(stream) is False
        await queue.resume()
        assert await heard(stream) is True


async def test_a_hundred_streams_are_one_blocked_connection(redis: Redis, redis_settings: RedisSettings):
    before = await connections(redis)  # others may have some there, and close them late
    async with calling(settings_of(redis_settings, poll_seconds=RARELY)) as caller:
        streams = [caller.stream(QUEUE if number % 2 else OTHER) for number in range(100)]
        assert set(await asyncio.gather(*map(heard, streams))) == {False}
        await one_is_blocked(redis)
        assert len(await connections(redis) - before) < 10
        await submit(redis)
        await submit(redis, name=OTHER)
        assert set(await asyncio.gather(*map(heard, streams))) == {True}

        async def nobody_waits() -> bool:
            return await blocked(redis) == []

        await until(nobody_waits)
        await stays(nobody_waits, seconds=1.0, what="all of them have work: nothing is waited for")


async def test_a_stream_that_joins_is_watched_at_once(redis: Redis, redis_settings: RedisSettings):
    """Fails if the blocked reader learns of a new queue only when its block ends."""
    async with calling(settings_of(redis_settings, poll_seconds=RARELY)) as caller:
        first = caller.stream()
        assert await heard(first) is False
        await one_is_blocked(redis)
        second = caller.stream(OTHER)
        assert await heard(second) is False
        await submit(redis, name=OTHER)
        assert await heard(second) is True


async def test_a_stream_may_join_while_the_wake_up_connects_again(
    redis: Redis, redis_settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
):
    """Fails if the wait that has failed is still moved: streams come back just when Redis does."""
    monkeypatch.setattr(waking, "_RETRY_SECONDS", 1.0)
    # Without polls the reader stays blocked, so that it is a wait which fails and not a look.
    async with serving(settings_of(redis_settings, poll_seconds=RARELY)) as service:
        caller = Caller(service.port)
        first = caller.stream()
        assert await heard(first) is False
        waits = await one_is_blocked(redis)
        await redis.execute_command("CLIENT", "KILL", "ID", waits["id"])
        (watch,) = service._watches._watches.values()
        await until(lambda: watch._reader is None)
        second = caller.stream(OTHER)
        assert await heard(second) is False
        await submit(redis)
        assert await heard(first) is True
        await caller.channel.close()


async def test_streams_that_leave_are_forgotten(redis: Redis, redis_settings: RedisSettings):
    async with serving(settings_of(redis_settings)) as service:
        caller = Caller(service.port)
        gone, stays = caller.stream(), caller.stream()
        assert (await heard(gone), await heard(stays)) == (False, False)
        gone.cancel()
        hasty = Caller(service.port)
        assert await heard(hasty.stream()) is False
        await hasty.channel.close()
        (watch,) = service._watches._watches.values()
        await until(lambda: len(watch._listeners) == 1)
        await submit(redis)
        assert await heard(stays) is True
        stays.cancel()
        await until(lambda: not service._watches._watches)
        await until(lambda: blocked(redis), lambda rows: not rows)
        assert await heard(caller.stream()) is True, "one that comes later is watched again"
        await caller.channel.close()


async def test_a_stream_that_is_not_read_costs_nothing_and_hears_how_it_is(
    redis: Redis, redis_settings: RedisSettings
):
    async with calling(settings_of(redis_settings)) as caller:
        slow, quick = caller.stream(), caller.stream()
        assert await heard(quick) is False
        for _ in range(3):
            queue = await submit(redis)
            assert await heard(quick) is True
            await taken(redis, queue)
            assert await heard(quick) is False
        await submit(redis)
        assert await heard(quick) is True
        said = [await heard(slow)]
        while said[-1] is not True or len(said) < 2:
            said.append(await heard(slow))
        assert all(one is not other for one, other in itertools.pairwise(said)), "only changes"


async def test_what_has_changed_there_and_back_is_not_told_again():
    listener = Listener(cast("Trigger", None))
    listener.tell(False)
    assert await listener.next() is False
    listener.tell(True)
    listener.tell(False)
    waits = asyncio.ensure_future(listener.next())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waits.done()
    listener.tell(True)
    assert await waits is True


async def test_work_below_the_activation_does_not_keep_us_busy(
    redis: Redis, fault_proxy: FaultProxy, patient_settings: RedisSettings
):
    """Fails if every entry that is no news is looked at."""
    async with calling(settings_of(patient_settings, poll_seconds=5.0)) as caller:
        stream = caller.stream(activation="100000")
        assert await heard(stream) is False
        await one_is_blocked(redis)
        queue = await submit(redis)
        before, began = fault_proxy.commands[b"XREAD"], time.monotonic()
        while time.monotonic() - began < 1.5:
            await queue.submit(Submission(agent="a"))
        assert fault_proxy.commands[b"XREAD"] - before < 20
        stream.cancel()


async def test_entries_that_stay_do_not_keep_us_busy(
    redis: Redis, fault_proxy: FaultProxy, patient_settings: RedisSettings
):
    """A paused queue has entries and wants nobody: they are waited past."""
    queue = await submit(redis, 50)
    await queue.pause()
    async with calling(settings_of(patient_settings, poll_seconds=RARELY)) as caller:
        stream = caller.stream()
        assert await heard(stream) is False
        await one_is_blocked(redis)
        assert fault_proxy.commands[b"XREAD"] == 1
        stream.cancel()


async def test_every_partition_wakes_a_stream(redis: Redis, redis_settings: RedisSettings):
    settings = settings_of(redis_settings, poll_seconds=RARELY)
    queue = queue_of(redis, partitions=3)
    await queue.ensure()
    spread = msgspec.structs.replace(settings, queue=QueueSettings(name=QUEUE, partitions=3))
    async with calling(spread) as caller:
        stream = caller.stream()
        assert await heard(stream) is False
        await one_is_blocked(redis)
        await redis.execute_command("XADD", queue.partitions[2].keys.high, "*", "message_data", "{}")
        assert await heard(stream) is True


# -- faults


async def unavailable(caller: Caller) -> str:
    """Wait until the scaler itself knows that Redis is away, and return what it says of it."""
    with pytest.raises(aio.AioRpcError) as caught:
        await caller.value()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    return caught.value.details() or ""


async def test_a_stream_outlives_an_outage_and_tells_what_came_meanwhile(
    redis: Redis, fault_proxy: FaultProxy, patient_settings: RedisSettings, caplog
):
    """Fails if it ends with an error: KEDA waits longer after each, up to a minute without any push."""
    caplog.set_level(logging.DEBUG, logger="holdfast.outages")

    def failures_of_streams() -> int:
        fields = [getattr(record, "fields", {}) for record in caplog.records]
        return sum(each.get("held_up") == "streams to KEDA" and "error" in each for each in fields)

    async with calling(settings_of(patient_settings)) as caller:
        stream, other = caller.stream(), caller.stream(OTHER)
        assert (await heard(stream), await heard(other)) == (False, False)
        fault_proxy.refuse()
        assert "does not answer" in await unavailable(caller)
        late = caller.stream()
        await until(failures_of_streams, lambda failures: failures > 1)  # what to wait for, and the depth
        await submit(redis)
        fault_proxy.heal()
        assert await heard(stream) is True
        assert await heard(late) is True, "also one that was opened meanwhile"
        await submit(redis, name=OTHER)
        assert await heard(other) is True, "and nothing in between: it was idle all the time"


async def test_a_reader_that_is_cut_off_is_not_the_end(
    redis: Redis, fault_proxy: FaultProxy, patient_settings: RedisSettings
):
    """Fails if a lost connection is taken for a lost Redis, or is not made again."""
    async with calling(settings_of(patient_settings, poll_seconds=RARELY)) as caller:
        stream = caller.stream()
        assert await heard(stream) is False
        reader = await one_is_blocked(redis)
        await redis.execute_command("CLIENT", "KILL", "ID", reader["id"])
        await one_is_blocked(redis)
        await submit(redis)
        assert await heard(stream) is True


async def test_a_damaged_queue_ends_its_own_streams_only(redis: Redis, redis_settings: RedisSettings):
    async with calling(settings_of(redis_settings)) as caller:
        fine, broken = caller.stream(), caller.stream(OTHER)
        assert (await heard(fine), await heard(broken)) == (False, False)
        await redis.execute_command("SET", OTHER, "no stream")
        with pytest.raises(aio.AioRpcError) as caught:
            await heard(broken)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        await submit(redis)
        assert await heard(fine) is True


async def test_a_redis_that_is_killed_and_comes_back(restartable_valkey: ValkeyProcess):
    server = restartable_valkey
    settings = settings_of(RedisSettings(url=server.url))
    async with calling(settings) as caller:
        stream = caller.stream()
        assert await heard(stream) is False
        server.kill()
        await unavailable(caller)
        server.start()
        async with connect(settings.redis) as redis:
            await submit(redis)
        assert await heard(stream) is True
        assert (await caller.value()).metricValue == 1


async def test_a_redis_that_hangs_is_away_too(restartable_valkey: ValkeyProcess):
    """Nothing is refused and nothing comes: only our own patience ends."""
    settings = settings_of(RedisSettings(url=restartable_valkey.url), answer_seconds=0.5)
    async with calling(settings) as caller:
        stream = caller.stream()
        assert await heard(stream) is False
        restartable_valkey.freeze()
        try:
            assert "has not answered within 0.5 s (scaler.answer_seconds)" in await unavailable(caller)
        finally:
            restartable_valkey.thaw()
        async with connect(settings.redis) as redis:
            await submit(redis)
        assert await heard(stream) is True


# -- processes


async def test_a_scaler_that_leaves_ends_its_streams_politely_and_exits_0(
    redis: Redis, redis_settings: RedisSettings
):
    """Politely: after an error KEDA waits longer each time, up to a minute."""
    async with children(settings_of(redis_settings), "one") as (child,):
        caller = Caller(child.port)
        stream = caller.stream()
        assert await heard(stream) is False
        (member,) = await until(lambda: redis.keys("member:scaler:*"))  # it beats beside its streams
        child.terminate()
        assert await heard(stream) is aio.EOF
        assert await child.exited() == 0
        assert not await redis.exists(member)
        await caller.channel.close()


async def test_two_scalers_say_the_same_and_one_may_be_killed(redis: Redis, redis_settings: RedisSettings):
    async with children(settings_of(redis_settings), "one", "two") as (one, two):
        first, second = Caller(one.port), Caller(two.port)
        streams = first.stream(), second.stream()
        assert [await heard(stream) for stream in streams] == [False, False]
        await submit(redis, 2)
        assert [await heard(stream) for stream in streams] == [True, True]
        one.kill()
        with pytest.raises(aio.AioRpcError) as caught:
            await heard(streams[0])
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await second.value()).metricValue == 2
        for caller in (first, second):
            await caller.channel.close()
        await until(lambda: redis.keys("member:scaler:*"), lambda keys: len(keys) == 1)
