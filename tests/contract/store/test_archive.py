"""One contract for every store: finished runs, how they are listed, and what retention removes."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.errors import InputError, LeaseLost
from holdfast.store.archive import ArchivedRun
from holdfast.store.names import incarnation


def run(at: int, **fields) -> ArchivedRun:
    given = {
        "id": f"r{at:03}",
        "queue": "q",
        "agent": "triage",
        "status": "succeeded",
        "attempt": 1,
        "fence": 2,
        "submitted_at": 1000.5 + at,
        "started_at": 1001.5 + at,
        "finished_at": 1002.25 + at,
        "input": b'{"a":1}',
        "result": b'"done"',
        "error": b"",
        "metadata": b"{}",
    }
    return ArchivedRun(**{**given, **fields})


async def ids(store, **wanted) -> list[str]:
    return [each.id for each in (await store.list_archived(**wanted)).runs]


async def test_a_run_comes_back_as_it_was(store):
    kept = run(1, thread_id="t", tenant="acme", error=b'{"message":"\xc3\xa4"}', result=b"\0\xff")
    await store.archive([kept])
    assert await store.archived("r001") == kept
    assert await store.archived("nobody") is None


async def test_archiving_again_changes_nothing_and_a_later_end_wins(store, open_another):
    await store.archive([])
    await store.archive([run(1, status="failed")])
    await store.archive([run(1, status="failed"), run(1, status="failed")])
    await store.archive([run(1, finished_at=5000.0), run(1, status="timed_out", finished_at=4000.0)])
    await (await open_another()).archive([run(1, status="failed")])
    found = await store.archived("r001")
    assert (found.status, found.finished_at) == ("succeeded", 5000.0)
    assert (await store.sizes())["archive"] == 1


async def test_lists_are_newest_first_and_carry_no_input_and_result(store):
    await store.archive([run(at) for at in (2, 1, 3)])
    page = await store.list_archived()
    assert [each.id for each in page.runs] == ["r003", "r002", "r001"]
    assert page.cursor == ""
    assert page.runs[0] == msgspec.structs.replace(run(3), input=b"", result=b"")


async def test_every_filter_filters(store):
    await store.archive(
        [
            run(1, queue="other"),
            run(2, status="failed"),
            run(3, agent="writer"),
            run(4, thread_id="t"),
            run(5, tenant="acme"),
            run(6, tenant="acme", status="failed"),
        ]
    )
    assert await ids(store, queue="other") == ["r001"]
    assert await ids(store, status="failed") == ["r006", "r002"]
    assert await ids(store, agent="writer") == ["r003"]
    assert await ids(store, thread_id="t") == ["r004"]
    assert await ids(store, tenant="acme") == ["r006", "r005"]
    assert await ids(store, tenant="acme", status="failed", queue="q") == ["r006"]
    assert await ids(store, since=1007.25) == ["r006", "r005"]
    assert await ids(store, until=1004.25) == ["r001"]
    assert await ids(store, since=1004.25, until=1006.25) == ["r003", "r002"]
    assert await ids(store, agent="nobody") == []


async def test_pages_follow_each_other_even_where_times_are_equal(store):
    await store.archive([run(at, finished_at=2000.0 + at // 4) for at in range(23)])
    seen, cursor = [], ""
    while True:
        page = await store.list_archived(limit=5, cursor=cursor, queue="q")
        assert len(page.runs) <= 5
        seen += [each.id for each in page.runs]
        if not (cursor := page.cursor):
            break
        await store.archive([run(900 + len(seen), finished_at=9000.0)])  # newer ones don't move the rest
    assert seen == [f"r{at:03}" for at in reversed(range(23))]


async def test_a_last_page_that_is_full_says_that_it_is_the_last(store):
    await store.archive([run(at) for at in range(4)])
    first = await store.list_archived(limit=2)
    assert first.cursor
    assert (await store.list_archived(limit=2, cursor=first.cursor)).cursor == ""


@pytest.mark.parametrize("cursor", ["x", "!!!", "W10", "eyJhIjoxfQ", "é", "a" * 5000])
async def test_an_invented_cursor_is_refused(store, cursor):
    with pytest.raises(InputError, match="cursor"):
        await store.list_archived(cursor=cursor)


async def test_one_odd_run_does_not_stop_a_batch(store):
    odd = run(1, agent="a\0b", thread_id="\ud800", tenant="x" * 10_000, finished_at=float("nan"))
    await store.archive([odd, run(2)])
    assert await ids(store, tenant="x" * 10_000) == ["r001"]
    assert await ids(store, agent="a\0b") == ["r001"]
    assert await ids(store) == ["r002", "r001"]


async def test_runs_of_two_queues_with_one_id_are_both_kept(store):
    await store.archive([run(1, queue="a"), run(1, queue="b", finished_at=9000.0)])
    assert await ids(store, queue="a") == ["r001"]
    assert (await store.archived("r001")).queue == "b"


# -- retention


def kept_as(run_id: str) -> str:
    """The name of a run's journal: of its id and when it was submitted, as `run` has it."""
    return incarnation(run_id, 1000500 + int(run_id[1:]) * 1000) if run_id[1:].isdigit() else run_id


async def journal(store, run_id, fence=1, **options):
    mine = store.memory(run_id=kept_as(run_id), thread_id="", fence=fence, owner="me", queue="q", **options)
    await mine.put_step("s", b"1")
    await mine.put_state("k", b"1")
    return mine


async def test_old_runs_go_with_their_steps_and_young_ones_stay(store):
    for at in (1, 2, 3):
        await journal(store, f"r{at:03}")
    await store.archive([run(1), run(2), run(3, finished_at=9e9)])
    pruned = await store.prune(archived_before=8e9, steps_before=0.0, limit=100)
    assert (pruned.archived, pruned.whole) == (2, True)
    assert await ids(store) == ["r003"]
    assert await store.sizes() == {
        "fences": 1,
        "steps": 1,
        "state": 1,
        "archive": 1,
        "checkpoints": 0,
        "checkpoint_writes": 0,
        "schedules": 0,
    }


async def test_a_run_that_goes_again_keeps_its_steps(store):
    mine = await journal(store, "r001")
    await store.archive([run(1)])
    assert (await store.prune(archived_before=5000.0, steps_before=0.0, limit=100)).archived == 1
    assert (await store.sizes())["steps"] == 1
    await mine.put_step("more", b"1")


async def test_steps_of_runs_that_were_never_archived_have_a_time_of_their_own(store):
    mine = await journal(store, "waiting")
    await journal(store, "r001")
    await store.archive([run(1, finished_at=9e9)])
    assert (await store.prune(archived_before=8e9, steps_before=0.0, limit=100)).journals == 0
    assert (await store.sizes())["steps"] == 2
    assert (await store.prune(archived_before=8e9, steps_before=8e9, limit=100)).journals == 1
    assert await store.sizes() == {
        "fences": 1,
        "steps": 1,
        "state": 1,
        "archive": 1,
        "checkpoints": 0,
        "checkpoint_writes": 0,
        "schedules": 0,
    }
    with pytest.raises(LeaseLost):
        await mine.put_step("s", b"2")


async def test_silent_threads_are_kept_unless_asked_otherwise(store):
    talk = store.memory(run_id="a", thread_id="t", fence=1, owner="me")
    await talk.put_state("k", b"1")
    assert (await store.prune(archived_before=8e9, steps_before=0.0, limit=100)).threads == 0
    assert await talk.state() == {"k": b"1"}
    pruned = await store.prune(archived_before=0.0, steps_before=0.0, threads_before=8e9, limit=100)
    assert (pruned.threads, await talk.state()) == (1, {})


async def test_a_pass_is_bounded_and_says_that_more_is_left(store):
    await store.archive([run(at) for at in range(25)])
    passes = [await store.prune(archived_before=8e9, steps_before=8e9, limit=10) for _ in range(3)]
    assert [each.archived for each in passes] == [10, 10, 5]
    assert [each.whole for each in passes] == [False, False, True]
    assert (await store.sizes())["archive"] == 0


async def test_a_pass_counts_the_steps_too(store):
    for at in range(4):
        mine = store.memory(run_id=kept_as(f"r{at:03}"), thread_id="", fence=1, owner="me", queue="q")
        for step in range(6):
            await mine.put_step(f"s{step}", b"1")
    await store.archive([run(at) for at in range(4)])
    first = await store.prune(archived_before=8e9, steps_before=0.0, limit=10)
    assert (first.archived, first.whole) == (1, False)
    assert (await store.sizes())["steps"] == 18


# -- health


async def test_it_answers_and_says_what_it_holds(store):
    assert 0 < await store.ping() < 5
    assert await store.sizes() == {
        "fences": 0,
        "steps": 0,
        "state": 0,
        "archive": 0,
        "checkpoints": 0,
        "checkpoint_writes": 0,
        "schedules": 0,
    }
    assert await store.stored_bytes() > 0
    assert store.kind in {"sqlite", "postgresql"}
