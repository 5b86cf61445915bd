"""Definitions made at run time: SQL first, then Redis, and whatever happens in between is put right."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from holdfast.config import DatabaseSettings, SchedulerSettings
from holdfast.errors import Conflict, NotFound, RedisUnavailable
from holdfast.schedules.definitions import Definitions
from holdfast.schedules.entries import ScheduleState
from holdfast.schedules.reconcile import Reconcile
from holdfast.schedules.replies import ChangeReply
from holdfast.schedules.schedule import Schedule, decoded
from holdfast.schedules.sql_sync import WHOLE_EVERY, SqlSync
from holdfast.schedules.trigger import Every, Once
from holdfast.store.open import open_store
from tests.support.schedules.manual_scheduler import Board, redis_now

replace = msgspec.structs.replace


def schedule(name: str = "nightly", seconds: float = 3600.0, **options: Any) -> Schedule:
    return Schedule(name=name, agent="report", trigger=Every(seconds=seconds), **options)


class Desk:
    """One Redis, one database, and what is done to both."""

    def __init__(self, redis, store) -> None:
        self.redis, self.store = redis, store
        self.board = Board(redis)
        self.space = self.board.keys.definitions
        self.with_sql = self.definitions(store)
        self.without_sql = self.definitions(None)

    def definitions(self, store, registry=None) -> Definitions:
        async def found():
            return store

        return Definitions(registry or self.board.registry, self.board.entries, found, self.space)

    def sql_sync(self, **options: Any) -> SqlSync:
        async def found():
            return self.store

        return SqlSync(self.board.registry, self.board.entries, found, self.space, **options)

    async def heal(self) -> int:
        _, healed = await self.sql_sync().run_once()
        return healed

    def reconcile(self, *schedules: Schedule) -> Reconcile:
        return Reconcile(self.board.registry, schedules, SchedulerSettings(), self.sql_sync())

    async def flush(self) -> None:
        await self.redis.execute_command("FLUSHALL", "SYNC")

    async def row(self, name: str = "nightly"):
        return (await self.store.find_schedules(self.space, [name])).get(name)

    async def known(self, name: str = "nightly") -> Schedule:
        return decoded((await self.board.entry(name)).spec)


@pytest.fixture
async def desk(redis, tmp_path):
    async with await open_store(DatabaseSettings(path=str(tmp_path / "store.sqlite"))) as store:
        yield Desk(redis, store)


class Crashing:
    """A registry whose process dies before it has told Redis anything."""

    def __init__(self, registry) -> None:
        self._registry = registry

    async def count(self):
        return await self._registry.count()

    async def put(self, *_: Any, **__: Any):
        raise RedisUnavailable("gone")

    remove = pause = resume = put


@contextlib.asynccontextmanager
async def crash(desk: Desk):
    """Whatever is done by what this yields reaches SQL and no further."""
    with pytest.raises(RedisUnavailable):
        yield desk.definitions(desk.store, Crashing(desk.board.registry))


async def test_what_was_made_survives_a_flush_of_redis(desk):
    await desk.with_sql.create(schedule(input={"a": 1}, priority=2))
    made = await desk.board.entry("nightly")
    await desk.flush()
    assert await desk.heal() == 1
    entry = await desk.board.entry("nightly")
    assert (entry.spec, entry.revision, entry.priority) == (made.spec, made.revision, 2)
    assert entry.state is ScheduleState.WAITING
    assert await desk.heal() == 0


async def test_a_pause_and_its_reason_survive_a_flush_and_nothing_runs_meanwhile(desk):
    await desk.with_sql.create(schedule())
    assert await desk.with_sql.pause(["nightly"], "the database moves") == [ChangeReply.PAUSED]
    since = (await desk.board.entry("nightly")).paused_since
    await desk.flush()
    await desk.heal()
    entry = await desk.board.entry("nightly")
    assert (entry.state, entry.paused, entry.paused_since) == (
        ScheduleState.PAUSED,
        "the database moves",
        since,
    )
    assert await desk.board.waiting() == {}
    assert await desk.with_sql.resume(["nightly"]) == [ChangeReply.RESUMED]
    await desk.flush()
    await desk.heal()
    assert (await desk.board.entry("nightly")).state is ScheduleState.WAITING


async def test_a_pause_of_what_the_code_declares_survives_a_flush(desk):
    reconcile = desk.reconcile(schedule())
    await reconcile.run_once()
    await desk.with_sql.pause(["nightly"], "too loud")
    await desk.flush()
    await reconcile._register(float("inf"))
    assert await desk.board.waiting() == {}  # not even for a moment
    await reconcile.run_once()
    entry = await desk.board.entry("nightly")
    assert (entry.state, entry.paused) == (ScheduleState.PAUSED, "too loud")
    assert await desk.board.waiting() == {}
    await reconcile.run_once()
    assert await desk.with_sql.resume(["nightly"]) == [ChangeReply.RESUMED]
    await reconcile.run_once()
    assert (await desk.board.entry("nightly")).state is ScheduleState.WAITING


async def test_what_paused_itself_for_its_failures_is_kept_too(desk):
    await desk.with_sql.create(schedule(seconds=0.001))
    await desk.board.make_due("nightly")
    pod = desk.board.pod()
    await pod.complete(await pod.one(), outcome="failed", streak=3, pause_after=3)
    await desk.heal()
    await desk.flush()
    await desk.heal()
    entry = await desk.board.entry("nightly")
    assert (entry.state, entry.paused) == (ScheduleState.PAUSED, "3 failures in a row")


async def test_a_removed_one_does_not_come_back_with_a_flush(desk):
    await desk.with_sql.create(schedule())
    assert await desk.with_sql.remove(["nightly", "nobody"]) == [ChangeReply.REMOVED, ChangeReply.UNKNOWN]
    await desk.heal()
    await desk.flush()
    await desk.heal()
    with pytest.raises(NotFound):
        await desk.board.entry("nightly")


async def test_what_was_done_does_not_happen_again_after_a_flush(desk):
    at = await redis_now(desk.redis) - 1
    await desk.with_sql.create(Schedule(name="once", agent="report", trigger=Once(at=at)))
    pod = desk.board.pod()
    await pod.complete(await pod.one(), after=None)
    await desk.heal()
    await desk.flush()
    await desk.heal()
    assert (await desk.board.entry("once")).state is ScheduleState.DONE
    assert await desk.board.waiting() == {}


async def test_a_crash_after_sql_is_healed_towards_sql(desk):
    async with crash(desk) as dying:
        await dying.create(schedule())
    await desk.heal()
    assert (await desk.board.entry("nightly")).state is ScheduleState.WAITING

    async with crash(desk) as dying:
        await dying.change("nightly", lambda one: replace(one, input="changed"))
    await desk.heal()
    assert (await desk.known()).input == "changed"

    async with crash(desk) as dying:
        await dying.pause(["nightly"], "why")
    await desk.heal()
    assert (await desk.board.entry("nightly")).paused == "why"

    async with crash(desk) as dying:
        await dying.resume(["nightly"])
    await desk.heal()
    assert (await desk.board.entry("nightly")).state is ScheduleState.WAITING

    async with crash(desk) as dying:
        await dying.remove(["nightly"])
    await desk.heal()
    with pytest.raises(NotFound):
        await desk.board.entry("nightly")


async def test_asking_again_after_a_crash_does_what_was_asked(desk):
    async with crash(desk) as dying:
        await dying.create(schedule())
    assert await desk.with_sql.create(schedule())
    assert not await desk.with_sql.create(schedule())
    async with crash(desk) as dying:
        await dying.pause(["nightly"], "why")
    await desk.with_sql.pause(["nightly"], "why")
    assert (await desk.board.entry("nightly")).paused == "why"
    async with crash(desk) as dying:
        await dying.remove(["nightly"])
    assert await desk.with_sql.remove(["nightly"]) == [ChangeReply.REMOVED]
    assert await desk.with_sql.remove(["nightly"]) == [ChangeReply.UNKNOWN]


async def test_what_was_removed_may_be_made_anew_before_redis_has_heard_of_it(desk):
    await desk.with_sql.create(schedule(input="old"))
    async with crash(desk) as dying:
        await dying.remove(["nightly"])
    with pytest.raises(NotFound):
        await desk.with_sql.change("nightly", lambda one: one)
    assert await desk.with_sql.create(schedule(input="new"))
    await desk.heal()
    assert (await desk.known()).input == "new"


async def test_an_old_definition_never_overwrites_a_newer_one(desk):
    await desk.with_sql.create(schedule(input="first"))
    old = await desk.row()
    await desk.with_sql.change("nightly", lambda one: replace(one, input="second"))
    # A writer that was paused since before the change wakes up and tells Redis what it has in hand.
    late = decoded(old.spec)
    assert not await desk.with_sql._put(old, late, await redis_now(desk.redis))
    assert (await desk.known()).input == "second"
    assert await desk.board.registry.pause(["nightly"], revisions={"nightly": old.revision}) == [
        ChangeReply.STALE
    ]
    assert await desk.board.registry.remove(["nightly"], revisions={"nightly": old.revision}) == [
        ChangeReply.STALE
    ]
    assert (await desk.board.entry("nightly")).state is ScheduleState.WAITING


@pytest.mark.parametrize("busy", [False, True])
async def test_an_old_definition_does_not_bring_back_what_was_removed_since(desk, busy):
    await desk.with_sql.create(schedule())
    old, pod = await desk.row(), desk.board.pod()
    if busy:
        await desk.board.make_due("nightly")
        run = await pod.one()
    await desk.with_sql.remove(["nightly"])
    if busy:
        await pod.complete(run)
    # A reconcile that has read the row before the removal writes it after.
    assert await desk.sql_sync()._put([old]) == 0
    assert await desk.board.waiting() == {}
    assert 0 < await desk.redis.ttl(desk.board.keys.record("nightly")) <= 600
    assert await desk.with_sql.create(schedule()), "made anew it is there at once"
    assert (await desk.board.entry("nightly")).state is ScheduleState.WAITING
    assert await desk.redis.ttl(desk.board.keys.record("nightly")) == -1


async def test_another_reason_for_a_pause_is_written_without_resuming(desk):
    await desk.with_sql.create(schedule())
    await desk.with_sql.pause(["nightly"], "first")
    row = replace(await desk.row(), paused="second", paused_since=5.0)
    row = replace(row, revision=row.revision + 1)
    await desk.store.put_schedules(desk.space, [row], now=await redis_now(desk.redis))
    resumed = []

    async def resume(*names, **_):
        resumed.append(names)

    desk.board.registry.resume = resume
    await desk.heal()
    entry = await desk.board.entry("nightly")
    assert (entry.state, entry.paused, entry.paused_since) == (ScheduleState.PAUSED, "second", 5.0)
    assert (entry.revision, resumed) == (row.revision, [])
    # Under the revision that stands, asked for again by somebody else, the reason stays.
    await desk.with_sql.pause(["nightly"], "third")
    assert (await desk.board.entry("nightly")).paused == "second"


async def test_concurrent_changes_lose_none(desk):
    await desk.with_sql.create(schedule(metadata={}))

    def add(key: str):
        return lambda one: replace(one, metadata={**one.metadata, key: "1"})

    keys = [f"k{n}" for n in range(6)]
    for known in (desk.with_sql, desk.without_sql):
        await known.change("nightly", lambda one: replace(one, metadata={}))
        done = await asyncio.gather(
            *(known.change("nightly", add(key)) for key in keys), return_exceptions=True
        )
        changed = {key for key, word in zip(keys, done, strict=True) if not isinstance(word, Conflict)}
        assert changed
        assert set((await desk.known()).metadata) == changed


async def test_what_was_made_without_sql_is_adopted_by_it(desk):
    await desk.without_sql.create(schedule())
    await desk.without_sql.pause(["nightly"], "by hand")
    await desk.heal()
    await desk.flush()
    await desk.heal()
    assert (await desk.board.entry("nightly")).paused == "by hand"
    await desk.without_sql.resume(["nightly"])
    await desk.heal()
    assert (await desk.row()).paused_since == 0
    assert (await desk.board.entry("nightly")).state is ScheduleState.WAITING


async def test_the_code_wins_over_what_was_made_under_the_same_name(desk):
    await desk.with_sql.create(schedule(input="api"))
    reconcile = desk.reconcile(schedule(input="code"))
    for _ in range(WHOLE_EVERY + 1):
        await reconcile.run_once()
        assert (await desk.known()).input == "code"
    with pytest.raises(Conflict, match="declared in the code"):
        await desk.with_sql.change("nightly", lambda one: one)
    with pytest.raises(Conflict, match="declared in the code"):
        await desk.with_sql.create(schedule(input="api"))
    await desk.flush()
    await reconcile.run_once()
    assert (await desk.known()).input == "code"
    await desk.with_sql.remove(["nightly"])
    await reconcile.run_once()
    assert (await desk.known()).input == "code"


async def test_another_definition_of_a_name_is_refused(desk):
    await desk.with_sql.create(schedule(input=1))
    with pytest.raises(Conflict, match="change it, or remove it"):
        await desk.with_sql.create(schedule(input=2))
    await desk.flush()
    with pytest.raises(Conflict, match="change it, or remove it"):
        await desk.with_sql.create(schedule(input=2))


async def test_a_budget_ends_a_pass_after_a_page_and_the_next_one_goes_on(desk, monkeypatch):
    monkeypatch.setattr("holdfast.schedules.sql_sync.BATCH", 2)
    for number in range(3):
        await desk.with_sql.create(schedule(f"s{number}"))
    await desk.flush()
    sync = desk.sql_sync()
    assert await sync.run_once(ends=0.0) == (False, 2)
    assert await sync.run_once() == (True, 1)


async def test_nothing_is_compared_while_nothing_has_changed(desk):
    sync = desk.sql_sync()
    await desk.with_sql.create(schedule())
    await sync.run_once()
    asked: list[str] = []
    pages, listing = desk.store.page_schedules, desk.board.entries.list

    async def page(*args, **options):
        asked.append("sql")
        return await pages(*args, **options)

    async def scan(*args, **options):
        asked.append("redis")
        return await listing(*args, **options)

    desk.store.page_schedules, desk.board.entries.list = page, scan
    for _ in range(WHOLE_EVERY - 4):
        assert await sync.run_once() == (True, 0)
    assert asked == []
    await desk.with_sql.pause(["nightly"])
    await sync.run_once()
    assert "sql" in asked
    assert "redis" not in asked
    asked.clear()
    await desk.flush()
    await desk.without_sql.create(schedule("another"))
    await sync.run_once()
    assert asked == ["sql", "redis"]
    assert (await desk.board.entry("nightly")).state is ScheduleState.PAUSED


async def test_what_somebody_took_out_by_hand_comes_back_with_the_next_whole_pass(desk):
    sync = desk.sql_sync()
    for name in ("a", "b"):
        await desk.with_sql.create(schedule(name))
    await sync.run_once()
    await desk.redis.hdel(desk.board.keys.definitions, "a")
    assert sum([(await sync.run_once())[1] for _ in range(WHOLE_EVERY)]) == 1
    assert (await desk.board.entry("a")).state is ScheduleState.WAITING
