"""One contract for every store: the state of a thread, what a rollback takes back, and what compaction drops."""

from __future__ import annotations

import asyncio
import time

import pytest

from holdfast.errors import InputError, LeaseLost, ThreadTaken


def memory(store, run, fence=1, thread="t", owner="me", tenant=""):
    return store.memory(run_id=run, thread_id=thread, fence=fence, owner=owner, tenant=tenant)


async def wrote(store, run, **values):
    mine = memory(store, run)
    for key, value in values.items():
        await mine.put_state(key, value)
    return mine


async def test_state_passes_from_run_to_run_of_a_thread(store, open_another):
    await wrote(store, "a", x=b"1", y=b"2")
    later = memory(await open_another(), "b")
    assert await later.state() == {"x": b"1", "y": b"2"}
    await later.put_state("x", b"3")
    assert await later.state() == {"x": b"3", "y": b"2"}
    assert await memory(store, "c").state() == {"x": b"3", "y": b"2"}


async def test_a_deleted_key_is_gone(store):
    mine = await wrote(store, "a", x=b"1")
    await mine.put_state("x", None)
    assert await mine.state() == {}
    assert await memory(store, "b").state() == {}
    await mine.put_state("x", b"2")
    assert await mine.state() == {"x": b"2"}


async def test_threads_tenants_and_runs_without_a_thread_are_apart(store):
    await wrote(store, "a", x=b"1")
    assert await memory(store, "b", thread="other").state() == {}
    assert await memory(store, "b", tenant="acme").state() == {}
    assert await memory(store, "a2", thread="").state() == {}
    mine = memory(store, "own", thread="")
    await mine.put_state("x", b"2")
    assert await memory(store, "own", thread="", fence=2).state() == {"x": b"2"}
    assert await memory(store, "b").state() == {"x": b"1"}


async def test_a_slash_in_a_name_does_not_lead_to_another_tenant(store):
    await memory(store, "a", tenant="a", thread="b/c").put_state("x", b"1")
    assert await memory(store, "b", tenant="a/b", thread="c").state() == {}
    assert await memory(store, "c", thread="a/b/c").state() == {}


async def test_a_rollback_takes_back_everything_a_run_wrote_and_nothing_else(store):
    await wrote(store, "a", kept=b"a", changed=b"a", deleted=b"a")
    await wrote(store, "b", changed=b"b", deleted=None, new=b"b")
    third = memory(store, "c")
    await third.rollback("b")
    assert await third.state() == {"kept": b"a", "changed": b"a", "deleted": b"a"}
    await third.rollback("b")
    await third.rollback("never there")
    assert await third.state() == {"kept": b"a", "changed": b"a", "deleted": b"a"}


async def test_a_run_that_was_rolled_back_writes_no_more(store):
    """Without sealing its fence a paused worker wakes up and brings back what was taken back."""
    undone = await wrote(store, "a", x=b"1")
    await memory(store, "b").rollback("a")
    with pytest.raises(LeaseLost):
        await undone.put_state("x", b"2")
    with pytest.raises(LeaseLost):
        await undone.put_step("s", b"2")
    with pytest.raises(LeaseLost):
        await memory(store, "a").state()
    assert await memory(store, "b").state() == {}
    await memory(store, "a", fence=2).put_state("x", b"3")  # somebody asked for it once more
    assert await memory(store, "b").state() == {"x": b"3"}


def of_thread(store, run, generation, fence=1, queue="q", partition=0):
    return store.memory(
        run_id=run,
        thread_id="t",
        fence=fence,
        owner="me",
        queue=queue,
        partition=partition,
        generation=generation,
    )


async def test_a_write_of_the_thread_s_earlier_run_that_arrives_late_changes_nothing(store, open_another):
    earlier, later = of_thread(store, "a", 1), of_thread(await open_another(), "b", 2)
    await earlier.put_state("x", b"1")
    assert await later.state() == {"x": b"1"}
    with pytest.raises(LeaseLost):
        await earlier.put_state("x", b"late")
    with pytest.raises(LeaseLost):
        await earlier.put_step("s", b"late")
    assert await later.state() == {"x": b"1"}


async def test_an_earlier_attempt_that_registers_late_is_refused(store, open_another):
    later = of_thread(store, "b", 2)
    await later.put_state("x", b"2")
    late = of_thread(await open_another(), "a", 1)
    with pytest.raises(ThreadTaken, match="run 'q/b' of the same thread has used it since"):
        await late.put_state("x", b"late")
    await later.put_state("x", b"3")
    assert await later.state() == {"x": b"3"}


async def test_a_run_that_goes_on_after_others_takes_its_thread_back(store):
    """An operator retries a run whose thread has had others since."""
    for run, fence, generation in (("a", 1, 1), ("b", 1, 2), ("a", 2, 3), ("a", 3, 4), ("b", 2, 5)):
        mine = of_thread(store, run, generation, fence)
        await mine.put_state("x", str(generation).encode())
        assert await mine.state() == {"x": str(generation).encode()}


@pytest.mark.parametrize("apart", ["queue", "partition"])
async def test_runs_of_two_queues_or_partitions_may_share_a_thread(store, apart):
    """Each has its own order of the runs of a thread, and its own limit of one: neither refuses the other's.

    A thread is in two partitions while their number is raised.
    """
    one = of_thread(store, "a", 1)
    two = of_thread(store, "b", 2, **{"queue": {"queue": "two"}, "partition": {"partition": 1}}[apart])
    for mine in (one, two, one, two):
        await mine.put_state("x", b"1")


async def test_a_clock_that_was_wrong_keeps_no_thread_from_the_store(store):
    """Generations are times: one of the future was given by a server whose clock has been put right since."""
    now = int(time.time() * 1e6)
    await of_thread(store, "a", now + 3_600_000_000).put_state("x", b"1")
    later = of_thread(store, "b", now)
    assert await later.state() == {"x": b"1"}
    with pytest.raises(ThreadTaken):
        await of_thread(store, "c", now - 1).state()


async def test_a_write_that_races_with_the_next_run_of_its_thread_is_seen_by_it_or_refused(
    store, open_another
):
    """The next run reads what the earlier one has written, or the earlier one is refused: never neither."""
    other = await open_another()
    for n in range(20):
        earlier, later = of_thread(store, f"a{n}", 2 * n + 1), of_thread(other, f"b{n}", 2 * n + 2)
        await earlier.state()
        written, seen = await asyncio.gather(
            earlier.put_state("x", str(n).encode()), later.state(), return_exceptions=True
        )
        kept = written is None
        assert kept or isinstance(written, LeaseLost), written
        assert (seen.get("x") == str(n).encode()) is kept
        assert await later.state() == seen


async def test_a_rollback_after_many_runs_returns_to_the_last_value(store):
    for at in range(5):
        await wrote(store, f"r{at}", x=str(at).encode())
    later = memory(store, "later")
    await later.rollback("r4")
    assert await later.state() == {"x": b"3"}


async def test_a_second_attempt_does_not_lose_what_can_be_taken_back(store):
    await wrote(store, "a", x=b"1")
    await wrote(store, "b", x=b"2")
    for fence in (1, 2, 3):
        await memory(store, "c", fence=fence).state()
    last = memory(store, "c", fence=4)
    await last.rollback("b")
    assert await last.state() == {"x": b"1"}


async def test_replaced_values_of_earlier_runs_are_dropped(store):
    for at in range(10):
        mine = await wrote(store, f"r{at}", x=b"x", y=b"y")
        for _ in range(3):
            await mine.put_state("x", str(at).encode())
    assert await memory(store, "last").state() == {"x": b"9", "y": b"y"}
    assert (await store.sizes())["state"] <= 4  # the last run's, and what they replaced


async def test_deleted_keys_are_dropped_too(store):
    await wrote(store, "a", **{f"k{at}": b"1" for at in range(5)})
    await wrote(store, "b", **{f"k{at}": None for at in range(5)})
    await wrote(store, "c", other=b"1")
    assert await memory(store, "d").state() == {"other": b"1"}
    assert (await store.sizes())["state"] == 1


@pytest.mark.parametrize("key", ["a\0b", "\ud800", "x" * 1001])
async def test_a_key_that_no_database_takes_is_refused_by_name(store, key):
    with pytest.raises(InputError, match="key of the state"):
        await memory(store, "a").put_state(key, b"1")


async def test_odd_keys_come_back_as_they_are(store):
    keys = ["", " ", "Zürich", "🚀" * 250, "%s", ":x", "a'b"]
    mine = await wrote(store, "a", **{key: key.encode() for key in keys})
    assert await mine.state() == {key: key.encode() for key in keys}
