"""One contract for every store: what the owner of a run may write, and what a former owner may not."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from holdfast.errors import LeaseLost


def memory(store, fence=1, owner="me", run="r1", thread=""):
    return store.memory(run_id=run, thread_id=thread, fence=fence, owner=owner)


async def test_a_memory_that_is_not_used_leaves_nothing(store):
    memory(store)
    assert (await store.sizes())["fences"] == 0


async def test_a_step_is_found_by_the_next_attempt(store, open_another):
    first = memory(store)
    assert await first.step("plan") is None
    await first.put_step("plan", b'{"a":1}', seconds=1.5)
    assert await first.step("plan") == b'{"a":1}'
    second = memory(await open_another(), fence=2, owner="other")
    assert await second.step("plan") == b'{"a":1}'
    assert await second.step("mail") is None


async def test_a_higher_fence_makes_every_write_under_the_old_one_change_nothing(store, open_another):
    """Without the check in the writing statement a paused worker that wakes up overwrites its successor."""
    old = memory(store, thread="t")
    await old.put_step("plan", b"1")
    await old.put_state("k", b"1")
    new = memory(await open_another(), fence=2, owner="other", thread="t")
    assert await new.step("plan") == b"1"
    for late in (
        old.put_step("plan", b"2"),
        old.put_step("late", b"2"),
        old.put_state("k", b"2"),
        old.put_state("k", None),
        old.rollback("r1"),
    ):
        with pytest.raises(LeaseLost, match="r1"):
            await late
    again = memory(store, fence=3, owner="third", thread="t")
    assert [await again.step("plan"), await again.step("late")] == [b"1", None]
    assert await again.state() == {"k": b"1"}


@pytest.mark.parametrize(("fence", "owner"), [(1, "other"), (1, "me"), (2, "other"), (2, "")])
async def test_a_fence_that_is_lower_or_repeated_by_another_owner_is_refused(store, fence, owner):
    """After a failover Redis may give the same fence twice: the second owner must not write beside the first."""
    await memory(store, fence=2, owner="me").put_step("plan", b"1")
    stale = memory(store, fence=fence, owner=owner)
    with pytest.raises(LeaseLost, match="'me' has it under fence 2"):
        await stale.step("plan")
    with pytest.raises(LeaseLost):
        await stale.put_step("plan", b"2")


async def test_the_same_owner_may_register_its_fence_again(store, open_another):
    await memory(store).put_step("plan", b"1")
    again = memory(await open_another())
    assert await again.step("plan") == b"1"
    await again.put_step("mail", b"2")


async def test_fences_of_runs_do_not_touch_each_other(store):
    await memory(store, run="r1", fence=5).put_step("s", b"1")
    other = memory(store, run="r2", fence=1)
    assert await other.step("s") is None
    await other.put_step("s", b"2")


async def test_runs_of_two_queues_with_one_id_are_two_runs(store):
    one = store.memory(run_id="r", thread_id="", fence=3, owner="me", queue="a")
    two = store.memory(run_id="r", thread_id="", fence=1, owner="you", queue="b")
    await one.put_step("s", b"1")
    assert await two.step("s") is None
    await two.put_step("s", b"2")
    assert await one.step("s") == b"1"


async def test_of_two_stores_that_race_under_one_fence_one_wins(store, open_another):
    stores = [store, await open_another()]

    async def take(run: str, at: int) -> bool:
        try:
            await memory(stores[at], run=run, owner=f"owner{at}").put_step("s", str(at).encode())
        except LeaseLost:
            return False
        return True

    for run in map(str, range(20)):
        won = await asyncio.gather(take(run, 0), take(run, 1))
        assert sorted(won) == [False, True]
        after = memory(store, run=run, fence=2, owner="after")
        assert await after.step("s") == str(won.index(True)).encode()


async def test_what_the_old_owner_was_told_is_written_is_seen_by_the_new_one(store, open_another):
    """The write and the takeover are serialised: never is a step both acknowledged and unseen."""
    other = await open_another()
    for run in map(str, range(10)):
        old = memory(store, run=run)
        await old.step("warm")
        told: list[str] = []

        async def work(old=old, told=told) -> None:
            for at in itertools.count():
                await old.put_step(f"s{at}", b"1")
                told.append(f"s{at}")

        working = asyncio.create_task(work())
        new = memory(other, run=run, fence=2, owner="other")
        await asyncio.sleep(0)
        await new.step("any")
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(working, 30)
        assert [name for name in told if await new.step(name) is None] == []


async def test_concurrent_steps_of_many_runs_are_all_kept(store):
    memories = [memory(store, run=f"r{at}") for at in range(20)]
    await asyncio.gather(*(each.put_step(f"s{n}", f"{n}".encode()) for each in memories for n in range(20)))
    for at in range(20):
        later = memory(store, run=f"r{at}", fence=2)
        assert [await later.step(f"s{n}") for n in range(20)] == [f"{n}".encode() for n in range(20)]


async def test_a_refused_write_does_not_harm_those_that_share_its_commit(store):
    stale, fresh = memory(store, run="a"), memory(store, run="b")
    await stale.step("x")
    await fresh.step("x")
    await memory(store, run="a", fence=2).step("x")
    writes = [each.put_step(f"s{n}", b"1") for n in range(10) for each in (stale, fresh)]
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result).__name__ for result in results] == ["LeaseLost", "NoneType"] * 10
    assert (await store.sizes())["steps"] == 10


async def test_a_step_written_again_has_its_last_value(store):
    mine = memory(store)
    await mine.put_step("state", b"1")
    await mine.put_step("state", b"2")
    assert await mine.step("state") == b"2"
    assert await memory(store, fence=2).step("state") == b"2"


@pytest.mark.parametrize(
    "name", ["", "Zürich #2 🚀", "a\0b", "\ud800", "x" * 100_000, "'; DROP TABLE holdfast_steps"]
)
async def test_whatever_a_step_is_called_it_is_found_again(store, name):
    mine = store.memory(run_id=name, thread_id=name, fence=1, owner=name, queue="q", tenant=name)
    await mine.put_step(name, b"\0\xff raw")
    await mine.put_state("k", b"1")
    later = store.memory(run_id=name, thread_id=name, fence=2, owner=name, queue="q", tenant=name)
    assert await later.step(name) == b"\0\xff raw"
    assert await later.step(name + "!") is None
    assert await later.state() == {"k": b"1"}


async def test_large_values_and_many_steps_come_back(store):
    mine = memory(store)
    large = bytes(range(256)) * 20_000
    await mine.put_step("large", large)
    await asyncio.gather(*(mine.put_step(f"s{at}", b"x" * 100) for at in range(1000)))
    later = memory(store, fence=2)
    assert await later.step("large") == large
    assert await later.step("s999") == b"x" * 100
