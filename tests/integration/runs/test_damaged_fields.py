"""Somebody writes nonsense over one field of one record: whatever it is, the other runs of the queue go on."""

from __future__ import annotations

import pytest

from holdfast.errors import HoldfastError
from holdfast.runs.execution.settle import SettleReply
from holdfast.runs.execution.settlement import Settlement
from holdfast.runs.run import Status
from tests.support.runs.manual_worker import Hand, open_queue, retention_of, submit
from tests.support.waiting import until

NONSENSE = [
    None,
    "",
    "x",
    "nan",
    "inf",
    "1e300",
    "-1",
    "{}",
    "[1]",
    '[["a"]]',
    "a b",
    "1 2",
    "9" * 30,
    b"\xff",
]
FIELDS = [
    *(
        "status",
        "lane",
        "entry",
        "fence",
        "attempt",
        "submitted_at",
        "agent",
        "message",
        "owner",
        "started_at",
    ),
    *("bound", "permits", "place", "thread", "tenant", "key", "outbox", "cancel", "rollback", "parked"),
    *("interrupts", "due_at", "emitted", "multitask", "result", "error", "interrupt", "finished_at"),
]
STAGES = ["queued, plain", "queued", "running, plain", "running", "parked", "delayed"]
BOUND = {"thread_id": "t", "concurrency_key": "k", "tenant": "n"}


async def lay_out(queue, stage: str) -> None:
    """Three runs: of these `b` has what few have, and is the one that is damaged."""
    bound = {} if stage.endswith("plain") else BOUND
    await submit(queue, "a")
    if stage == "parked":
        await submit(queue, "holder", **bound)
    if stage == "delayed":
        bound = {**bound, "delay_seconds": 0.001}
    await submit(queue, "b", **bound)
    await submit(queue, "c")


@pytest.mark.parametrize("stage", STAGES)
async def test_the_others_are_begun_kept_and_ended(redis, stage):
    """Every field, with some of what can be written over it; `make chaos` tries all."""
    for number, field in enumerate(FIELDS):
        for turn in range(2):
            await go_through(redis, stage, field, NONSENSE[(number + 7 * turn) % len(NONSENSE)])


@pytest.mark.long
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("stage", STAGES)
async def test_the_others_are_begun_kept_and_ended_whatever_it_is(redis, stage, field):
    for nonsense in NONSENSE:
        await go_through(redis, stage, field, nonsense)


async def go_through(redis, stage: str, field: str, nonsense) -> None:
    await redis.flushall()
    queue = await open_queue(redis)
    hand = await Hand(queue, "w").join()
    await lay_out(queue, stage)
    began = {} if stage.startswith(("queued", "delayed")) else await begin(hand)
    await damage(queue, field, nonsense)
    if stage == "delayed":
        await promoted(queue, hand)
    began |= await begin(hand)
    assert {"a", "c"} <= began.keys(), (field, nonsense)
    await work_on(queue, hand, began, (field, nonsense))
    await hand.reclaim_all()
    await begin(hand)
    await retention_of(queue).run_once()
    await looked_at(queue)


async def begin(hand: Hand) -> dict:
    return {run.run_id: hand.lease(run) for run in await hand.claim(5)}


async def damage(queue, field: str, nonsense) -> None:
    record = queue.keys.run("b")
    await (queue.redis.hdel(record, field) if nonsense is None else queue.redis.hset(record, field, nonsense))


async def promoted(queue, hand: Hand) -> None:
    async def delayed() -> int:
        await hand.promote()
        return await queue.redis.zcard(queue.keys.delayed)

    await until(delayed, lambda count: count == 0)


async def work_on(queue, hand: Hand, began: dict, tried) -> None:
    leases = list(began.values())
    standings = dict(zip(began, await hand.leases.renew(queue.redis, leases), strict=True))
    assert {standings["a"].value, standings["c"].value} == {"kept"}, tried
    batch = [Settlement(lease, Status.SUCCEEDED, "result", b"1", b"") for lease in leases]
    verdicts = dict(zip(began, await hand._settler._settle(batch), strict=True))
    assert all(verdict is SettleReply.SETTLED for name, verdict in verdicts.items() if name != "b"), tried


async def looked_at(queue) -> None:
    """Whoever looks is told something, and of the others what is so."""
    assert (await queue.get("a")).status is Status.SUCCEEDED
    assert {"a", "c"} <= {run.id for run in (await queue.list()).runs}
    try:
        await queue.get("b")
    except HoldfastError as exc:
        assert "b" in str(exc)
