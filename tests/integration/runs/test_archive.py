"""Ended runs are copied to the store, where they are found when Redis has let them go."""

from __future__ import annotations

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.runs.archive import Archive, Filed
from holdfast.runs.execution.settlement import Settlement
from holdfast.runs.run import Status
from holdfast.store.lazy import LazyStore
from holdfast.telemetry.metrics import Metrics
from tests.support.runs.manual_worker import Hand, bury, expiry_without_retention, next_ms, submit
from tests.support.runs.system import System


@pytest.fixture
async def system(redis, redis_settings):
    async with System(redis_settings) as system:
        yield system


@pytest.fixture
async def store(system):
    door = LazyStore(system.settings.database)
    yield door
    await door.aclose()


@pytest.fixture
async def hand(system):
    return await Hand(system.queue, "w").join()


async def test_an_ended_run_is_archived_with_all_that_is_known_of_it(system, store, hand):
    await submit(system.queue, "r1", thread_id="t", tenant="acme", metadata={"k": 1})
    await hand.settle(await hand.claim_one())
    assert (await Archive(system.queue, store, Metrics()).run_once()).archived == 1
    kept = await (await store.get()).archived("r1")
    assert (kept.status, kept.thread_id, kept.tenant, kept.agent) == ("succeeded", "t", "acme", "echo")
    assert (kept.input, kept.result, kept.metadata) == (b'{"n":1}', b"1", b'{"k":1}')
    assert kept.submitted_at <= kept.started_at <= kept.finished_at
    assert (await Archive(system.queue, store, Metrics()).run_once()).archived == 0


async def test_failed_cancelled_and_replayed_runs(system, store, hand):
    archive = Archive(system.queue, store, Metrics())
    await bury(hand, "failed")
    await bury(hand, "again")
    await submit(system.queue, "cancelled")
    await system.queue.cancel("cancelled")
    await system.queue.replay("again")
    assert (await archive.run_once()).archived == 2
    opened = await store.get()
    assert (await opened.archived("failed")).status == "failed"
    assert (await opened.archived("cancelled")).status == "cancelled"
    assert await opened.archived("again") is None
    (run,) = await hand.claim(2)
    await hand.settle(hand.lease(run), Status.SUCCEEDED)
    await archive.run_once()
    assert (await opened.archived("again")).status == "succeeded"


async def test_a_store_that_is_away_costs_no_run(system, hand):
    class Away:
        async def get(self):
            raise StoreUnavailable("away", retry_after=1.0)

    await submit(system.queue, "r1")
    await hand.settle(await hand.claim_one())
    with pytest.raises(StoreUnavailable):
        await Archive(system.queue, Away(), Metrics()).run_once()
    (waiting,) = await system.queue.redis.lrange(system.queue.keys.unarchived, 0, -1)
    assert waiting.endswith(b" r1")
    await system.queue.redis.zadd(system.queue.keys.ended, {"r1": 1})
    assert await expiry_without_retention(system.queue).run_once() == 0  # it waits for the store
    assert (await system.queue.get("r1")).status is Status.SUCCEEDED


async def test_what_is_archived_leaves_while_later_ones_wait_for_the_store(system, store, hand):
    redis, keys = system.queue.redis, system.queue.keys
    await submit(system.queue, "r1")
    await hand.settle(await hand.claim_one())
    await Archive(system.queue, store, Metrics()).run_once()
    await next_ms(system.queue)
    await submit(system.queue, "r2")
    await hand.settle(await hand.claim_one())
    await redis.zadd(keys.ended, {"r1": 1, "r2": 1})
    assert await expiry_without_retention(system.queue).run_once() == 1
    assert await redis.exists(keys.run("r1"), keys.run("r2")) == 1
    await redis.hset(keys.run("r2"), "finished_at", 1)  # ended long ago, and no store took it
    await redis.zadd(keys.ended, {"r2": 1})
    assert await expiry_without_retention(system.queue).run_once() == 1


async def test_two_that_archive_at_once_lose_no_run(system, store, hand, monkeypatch):
    """Fails if whoever is second cuts the list by what it has read, and not by what is still there."""
    monkeypatch.setattr("holdfast.runs.archive._BATCH", 2)
    for number in range(4):
        await submit(system.queue, f"r{number}")
        await hand.settle(await hand.claim_one())
    opened, other, met = await store.get(), Archive(system.queue, store, Metrics()), []

    class Overtaken:
        """Another janitor archives the same while this one writes."""

        async def archive(self, rows):
            met.append([row.id for row in rows])
            if len(met) == 1:
                monkeypatch.setattr("holdfast.runs.archive._BATCHES", 1)
                await other.run_once()
                monkeypatch.setattr("holdfast.runs.archive._BATCHES", 50)
            await opened.archive(rows)

    class Door:
        async def get(self):
            return Overtaken()

    await Archive(system.queue, Door(), Metrics()).run_once()
    assert met == [["r0", "r1"], ["r2", "r3"]]
    assert [(await opened.archived(f"r{number}")).status for number in range(4)] == ["succeeded"] * 4


async def test_those_that_ended_together_are_archived_together(system, store, hand, monkeypatch):
    """One note names them all. Fails if it is taken for one run, or if the page is taken off for one batch of it."""
    monkeypatch.setattr("holdfast.runs.archive._BATCH", 3)
    redis, keys = system.queue.redis, system.queue.keys
    names = [f"r{number}" for number in range(10)]
    for name in names:
        await submit(system.queue, name)
    for count in (4, 1, 5):
        runs = await hand.claim(count)
        ends = [
            Settlement(hand.lease(run), Status.FAILED, "error", b'{"kind":"server"}', reason="server")
            if run.run_id == "r6"
            else Settlement(hand.lease(run), Status.SUCCEEDED, "result", b"1", b"")
            for run in runs
        ]
        await hand._settler._settle(ends)
    assert await redis.llen(keys.unarchived) == 3
    archive = Archive(system.queue, store, Metrics())
    assert (await archive.run_once(dry_run=True)).archived == 10
    assert await archive.run_once() == Filed(10)
    assert await redis.llen(keys.unarchived) == 0
    archived = [await (await store.get()).archived(name) for name in names]
    assert [run.status for run in archived if run.id != "r6"] == ["succeeded"] * 9
    assert archived[6].status == "failed"


async def test_a_run_that_ended_twice_does_not_let_the_others_leave(system, hand):
    """Fails if the first in line is dated by its last end: the others ended before that, and are not archived."""
    redis, keys = system.queue.redis, system.queue.keys
    await bury(hand, "again")
    for number in range(3):
        await next_ms(system.queue)
        await submit(system.queue, f"r{number}")
        await hand.settle(await hand.claim_one())
    await next_ms(system.queue)
    await system.queue.replay("again")
    await hand.settle(await hand.claim_one())
    await redis.zadd(keys.ended, {f"r{number}": 1 for number in range(3)})
    assert await expiry_without_retention(system.queue).run_once() == 0


async def test_a_janitor_that_was_frozen_does_not_take_off_what_ended_again(system, store, hand):
    """Fails if the list names only the run: what the frozen one has read is there again, and is another end."""
    opened, other = await store.get(), Archive(system.queue, store, Metrics())

    class Frozen:
        async def archive(self, rows):
            await opened.archive(rows)
            await other.run_once()
            await system.queue.replay("again")
            await next_ms(system.queue)
            await hand.settle(await hand.claim_one())

    class Door:
        calls = 0

        async def get(self):
            self.calls += 1
            return Frozen() if self.calls == 1 else opened

    await bury(hand, "again")
    await Archive(system.queue, Door(), Metrics()).run_once()
    await other.run_once()
    assert (await opened.archived("again")).status == "succeeded"
