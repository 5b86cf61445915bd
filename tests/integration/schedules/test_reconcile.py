"""Reconciling sends only what differs, however many schedules there are, and still puts everything right."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from holdfast.config import SchedulerSettings
from holdfast.config.scheduling import ReconcileSettings
from holdfast.schedules.entries import ScheduleState
from holdfast.schedules.reconcile import WHOLE_EVERY, Reconcile
from holdfast.schedules.replies import BATCH, PAGE
from holdfast.schedules.schedule import Schedule, decoded, encoded
from holdfast.schedules.trigger import Every
from tests.support.schedules.manual_scheduler import Board


def some(count: int, **options: Any) -> list[Schedule]:
    return [
        Schedule(name=f"s{n}", agent="report", trigger=Every(seconds=3600), **options) for n in range(count)
    ]


@pytest.fixture
def board(redis) -> Board:
    return Board(redis)


def reconciling(board: Board, schedules: list[Schedule]) -> Reconcile:
    return Reconcile(board.registry, schedules, SchedulerSettings())


async def test_what_has_not_changed_is_sent_once_and_then_not_even_compared(board, monkeypatch):
    reconcile = reconciling(board, some(1200))
    assert await reconcile.run_once()
    assert reconcile.sent == 1200
    compared: list[int] = []
    differing = board.registry.differing

    async def counted(digests):
        compared.append(len(digests))
        return await differing(digests)

    monkeypatch.setattr(board.registry, "differing", counted)
    for _ in range(WHOLE_EVERY - 2):
        await reconcile.run_once()
    assert reconcile.sent == 1200
    assert sum(compared) <= 1200  # once more after the first, because that has changed Redis


async def test_another_scheduler_with_the_same_code_sends_nothing(board):
    await reconciling(board, some(20)).run_once()
    other = reconciling(board, some(20))
    await other.run_once()
    assert other.sent == 0


async def test_only_what_differs_is_sent(board):
    await reconciling(board, some(20)).run_once()
    changed = [*some(20)[:19], *some(20, input="new")[19:], *some(21)[20:]]
    deployed = reconciling(board, changed)
    await deployed.run_once()
    assert deployed.sent == 2
    assert decoded((await board.entry("s19")).spec).input == "new"


async def test_what_was_removed_or_overwritten_or_flushed_comes_back(board, redis):
    reconcile = reconciling(board, some(20))
    await reconcile.run_once()
    await reconcile.run_once()
    await board.registry.remove(["s3"])
    await reconcile.run_once()
    assert (await board.entry("s3")).state is ScheduleState.WAITING
    await redis.hdel(board.keys.definitions, "s4")
    await reconcile.run_once()
    assert (await board.entry("s4")).state is ScheduleState.WAITING
    await board.registry.register(some(6, input="older")[5:])
    await reconcile.run_once()
    assert decoded((await board.entry("s5")).spec).input is None
    before = reconcile.sent
    await redis.execute_command("FLUSHALL", "SYNC")
    await reconcile.run_once()
    assert reconcile.sent == before + 20
    assert len(await board.waiting()) == 20


async def test_all_removed_right_after_the_first_pass_come_back_too(board):
    """Then Redis is as empty as it was before that pass."""
    reconcile = reconciling(board, some(2))
    await reconcile.run_once()
    await board.registry.remove(["s0", "s1"])
    await reconcile.run_once()
    assert len(await board.waiting()) == 2


async def test_what_somebody_wrote_by_hand_is_put_right_by_the_next_whole_pass(board, redis):
    reconcile = reconciling(board, some(2))
    await reconcile.run_once()
    await redis.hset(board.keys.definitions, "s0", b"garbage")
    for _ in range(WHOLE_EVERY):
        await reconcile.run_once()
    assert (await board.entry("s0")).spec == encoded(some(1)[0])


async def test_a_pass_sends_one_batch_though_its_budget_is_used_up_before(board):
    """Fails if slow passes end before they have sent anything: they would never come to an end."""
    settings = SchedulerSettings(reconcile=ReconcileSettings(run_budget_ms=1))
    reconcile = Reconcile(board.registry, some(2 * BATCH), settings)
    reconcile._budget = 1e-9
    sent = []
    for _ in range(2):
        assert not await reconcile.run_once()
        sent.append(reconcile.sent)
    assert sent == [BATCH, 2 * BATCH]
    assert any([await reconcile.run_once() for _ in range(20)]), (
        "the pages of the repopulation come to an end"
    )
    assert reconcile.sent == 2 * BATCH


async def test_the_budget_of_a_pass_ends_the_repopulation_too_and_the_next_goes_on_from_there(board, redis):
    """Fails if a pass over many schedules takes as long as it likes, or if each begins with the same page."""
    settings = SchedulerSettings(reconcile=ReconcileSettings(run_budget_ms=1))
    await board.registry.register(some(10 * PAGE))
    await redis.delete(board.keys.waiting)
    reconcile = Reconcile(board.registry, [], settings)
    reconcile._budget = 1e-9
    back = []
    while not await reconcile.run_once():
        back.append(len(await board.waiting()))
    assert 5 <= len(back) <= 15, "a page each"
    assert all(before < after < before + 2 * PAGE for before, after in pairwise([0, *back]))
    assert len(await board.waiting()) == 10 * PAGE
