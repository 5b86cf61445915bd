"""One contract for every store: schedules that were made or paused at run time, each under its revision."""

from __future__ import annotations

import asyncio

import msgspec

from holdfast.store.schedules import StoredSchedule

SPACE = "schedules"
replace = msgspec.structs.replace


def row(name: str = "nightly", revision: int = 1, **fields) -> StoredSchedule:
    return StoredSchedule(name=name, revision=revision, **{"spec": b'{"name":"nightly"}', **fields})


async def test_a_schedule_comes_back_as_it_was(store, open_another):
    kept = row(spec=b"\0\xff", paused="the database moves, ä", paused_since=17.25, done=True)
    assert await store.put_schedules(SPACE, [kept], now=20.0) == {"nightly": kept}
    other = await open_another()
    assert await other.find_schedules(SPACE, ["nightly", "nobody"]) == {"nightly": kept}
    assert await other.find_schedules("another", ["nightly"]) == {}
    assert await other.find_schedules(SPACE, []) == {}


async def test_an_older_revision_never_replaces_a_newer_one_and_hears_what_stands(store):
    newer, older = row(revision=6, spec=b"newer"), row(revision=5, spec=b"older")
    await store.put_schedules(SPACE, [newer], now=1.0)
    assert await store.put_schedules(SPACE, [older], now=2.0) == {"nightly": newer}
    same = row(revision=6, spec=b"of another writer")
    assert await store.put_schedules(SPACE, [same], now=3.0) == {"nightly": newer}
    assert (await store.schedules_head(SPACE)).changed_at == 1.0


async def test_of_two_that_write_the_same_revision_one_wins_and_both_know_it(store, open_another):
    other = await open_another()
    mine, theirs = (row(revision=9, spec=spec) for spec in (b"mine", b"theirs"))
    stands = await asyncio.gather(
        store.put_schedules(SPACE, [mine], now=1.0), other.put_schedules(SPACE, [theirs], now=1.0)
    )
    assert stands[0] == stands[1]
    assert stands[0]["nightly"] in (mine, theirs)


async def test_a_tombstone_stays_until_it_is_forgotten_and_a_new_revision_replaces_it(store):
    await store.put_schedules(SPACE, [row("a"), row("b"), row("c")], now=10.0)
    gone = [row(name, 2, removed=True, spec=b"") for name in ("a", "b")]
    await store.put_schedules(SPACE, gone, now=20.0)
    await store.put_schedules(SPACE, [row("b", 3)], now=30.0)
    assert await store.forget_schedules(SPACE, before=20.0) == 0
    assert await store.forget_schedules(SPACE, before=20.5) == 1
    assert [each.name for each in await store.page_schedules(SPACE)] == ["b", "c"]


async def test_pages_come_by_name_and_can_be_of_what_changed(store):
    names = ["B", "a/1", "a:2", "b", "z"]
    await store.put_schedules(SPACE, [row(name) for name in reversed(names)], now=10.0)
    await store.put_schedules("another", [row("other")], now=10.0)
    first = await store.page_schedules(SPACE, limit=3)
    rest = await store.page_schedules(SPACE, after=first[-1].name, limit=3)
    assert [each.name for each in (*first, *rest)] == names
    await store.put_schedules(SPACE, [row("b", 2)], now=20.0)
    assert [each.name for each in await store.page_schedules(SPACE, since=20.0)] == ["b"]
    head = await store.schedules_head(SPACE)
    assert (head.count, head.changed_at) == (5, 20.0)
    assert (await store.schedules_head("empty")).count == 0
    assert (await store.sizes())["schedules"] == 6


async def test_a_reason_that_no_database_takes_is_kept_as_well_as_it_can_be(store):
    await store.put_schedules(SPACE, [row(paused="a\0b", paused_since=1.0)], now=1.0)
    assert (await store.find_schedules(SPACE, ["nightly"]))["nightly"].paused == "a?b"
