"""Dead letters: listed, shown, replayed once, dropped; by their own id or by their run's."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import Conflict, InputError, NotFound
from holdfast.runs.deadletter import DeadLetters
from holdfast.runs.execution.settle import SettleReply
from holdfast.runs.retention import Retention
from holdfast.runs.run import Status
from holdfast.telemetry.metrics import Metrics
from tests.support.runs.manual_worker import (
    Hand,
    bury,
    events,
    expiry_without_retention,
    lane_of,
    open_queue,
    submit,
)


@pytest.fixture
async def queue(redis):
    return await open_queue(redis)


@pytest.fixture
async def hand(queue):
    return await Hand(queue, "w").join()


@pytest.fixture
def dead(queue) -> DeadLetters:
    return DeadLetters(queue)


async def test_a_letter_tells_what_was_given_up_and_why(hand, dead):
    await bury(hand, "r1", agent="writer", reason="forbidden")
    (letter,) = (await dead.list()).letters
    assert (letter.run_id, letter.agent, letter.status, letter.reason) == (
        "r1",
        "writer",
        "failed",
        "forbidden",
    )
    assert (letter.attempts, letter.error.kind, letter.input) == (1, "server", {"n": 1})
    assert letter.at > 1.6e9


async def test_letters_are_listed_newest_first_in_pages(hand, dead):
    for n in range(5):
        await bury(hand, f"r{n}")
    first = await dead.list(limit=2)
    second = await dead.list(limit=2, cursor=first.cursor)
    third = await dead.list(limit=2, cursor=second.cursor)
    seen = [[letter.run_id for letter in page.letters] for page in (first, second, third)]
    assert seen == [["r4", "r3"], ["r2", "r1"], ["r0"]]
    assert third.cursor == ""


async def test_a_page_that_ends_with_the_last_letter_has_no_cursor(hand, dead):
    await bury(hand, "r0")
    await bury(hand, "r1")
    assert (await dead.list(limit=2)).cursor == ""


async def test_letters_are_filtered_by_agent_and_reason(hand, dead):
    await bury(hand, "a", agent="x", reason="server")
    await bury(hand, "b", agent="y", reason="server")
    await bury(hand, "c", agent="x", reason="poison")
    assert [le.run_id for le in (await dead.list(agent="x")).letters] == ["c", "a"]
    assert [le.run_id for le in (await dead.list(agent="x", reason="server")).letters] == ["a"]


async def test_an_invented_cursor_is_refused(dead):
    with pytest.raises(InputError, match="cursor"):
        await dead.list(cursor="tomorrow")


async def test_a_letter_is_found_by_its_id_by_its_run_and_after_the_runs_record_expired(
    hand, dead, redis, queue
):
    for n in range(3):
        await bury(hand, f"r{n}")
    by_run = await dead.show("r1")
    assert await dead.show(by_run.id) == by_run
    await redis.delete(queue.keys.run("r1"))
    assert await dead.show("r1") == by_run
    with pytest.raises(NotFound, match="r9"):
        await dead.show("r9")


@pytest.mark.parametrize("ref", ["1-1", "99999999999999999999-0", "", "a b", "-", "+", "é"])
async def test_a_name_that_nobody_has_is_not_found_whatever_it_looks_like(dead, ref):
    with pytest.raises(NotFound):
        await dead.show(ref)


async def test_a_run_whose_name_looks_like_a_letters_is_found(hand, dead):
    await bury(hand, "123-4")
    assert (await dead.show("123-4")).run_id == "123-4"


async def test_what_is_unreadable_in_a_letter_does_not_hide_it(dead, redis, queue):
    await redis.xadd(queue.keys.deadletter, {"run_id": b"\xff", "attempts": "many", "error": "plain words"})
    (letter,) = (await dead.list()).letters
    assert (letter.attempts, letter.error.message, letter.input) == (0, "plain words", None)


@pytest.mark.parametrize(
    ("sent", "shown"),
    [(b"{broken", "{broken"), (b"\x80\x04K\x01.", "\\x80\\x04K\\x01."), ("grün".encode(), "grün")],
)
async def test_a_message_that_can_not_be_read_is_shown_as_text(dead, redis, queue, sent, shown):
    await redis.xadd(queue.keys.deadletter, {"run_id": "r1", "message_data": sent})
    letter = await dead.show("r1")
    assert (letter.input, letter.message) == (None, shown)
    await redis.xadd(queue.keys.deadletter, {"run_id": "r2", "message_data": "null"})
    letter = await dead.show("r2")
    assert (letter.input, letter.message) == (None, "")


async def test_a_replayed_run_starts_from_its_first_attempt_under_a_higher_fence(hand, dead, queue, redis):
    await bury(hand, "r1")
    await dead.replay("r1")
    run = await queue.get("r1")
    assert (run.status, run.attempt, run.error) == (Status.QUEUED, 0, None)
    assert await redis.xlen(queue.keys.deadletter) == 0
    assert await redis.zscore(queue.keys.ended, "r1") is None
    (claimed,) = await hand.claim()
    assert (claimed.attempt, claimed.fence) == (1, 2)
    assert await hand.settle(hand.lease(claimed)) is SettleReply.SETTLED
    assert await events(queue, "r1") == ["submitted", "started", "failed", "replayed", "started", "succeeded"]


@pytest.mark.parametrize("by", ["run", "letter"])
async def test_replays_at_the_same_time_give_one_run(hand, dead, queue, by):
    """Fails if replay.lua looks neither at the run's status nor at its last letter: every call queues the run."""
    await bury(hand, "r1")
    ref = {"run": "r1", "letter": (await dead.show("r1")).id}[by]
    replay = {"run": queue.replay, "letter": dead.replay}[by]
    answers = await asyncio.gather(*(replay(ref) for _ in range(5)), return_exceptions=True)
    assert len([a for a in answers if not isinstance(a, Exception)]) == 1
    assert await lane_of(queue, queue.keys.stream) == ["r1"]


async def test_a_letter_that_was_answered_does_not_replay_the_next_failure(hand, dead, queue, redis):
    """Two people look at one letter; the run fails again before the second one acts.

    Fails if replay.lua takes any letter for the run's last one: the run is queued, and its new letter stays beside it.
    """
    await bury(hand, "r1")
    seen_by_both = await dead.show("r1")
    await dead.replay(seen_by_both.id)
    await hand.settle(await hand.claim_one(), Status.FAILED)
    with pytest.raises(NotFound):
        await queue.replay("r1", letter=seen_by_both.id)
    assert (await queue.get("r1")).status is Status.FAILED
    assert await redis.xlen(queue.keys.deadletter) == 1


async def test_a_letter_can_be_replayed_after_its_run_expired_and_the_fence_still_grows(
    hand, dead, queue, redis
):
    """Fails if the letter does not carry the fence: the revived run begins at fence 1 again."""
    await submit(queue, "r1", thread_id="t1")
    for _ in range(3):
        await hand.hand_back(await hand.claim_one())
    lease = await hand.claim_one()
    await hand.settle(lease, Status.FAILED)
    await redis.delete(queue.keys.run("r1"), queue.keys.feed("r1"))
    await dead.replay("r1")
    run = await queue.get("r1")
    assert (run.status, run.agent, run.input, run.thread_id) == (Status.QUEUED, "echo", {"n": 1}, "t1")
    assert (await hand.claim_one()).fence > lease.fence
    assert await redis.zscore(queue.keys.runs, "r1")


async def leaves(queue, run_id: str) -> None:
    """The run's time is over: its events are told, it is in the archive, and it leaves Redis."""
    await queue.redis.zadd(queue.keys.ended, {run_id: 0})
    await queue.redis.delete(queue.keys.unarchived)
    await queue.redis.zrem(queue.keys.outbox, run_id)
    assert await expiry_without_retention(queue).run_once() == 1
    assert not await queue.redis.exists(queue.keys.run(run_id), queue.keys.feed(run_id))


async def test_a_run_revived_after_it_left_is_the_same_run(hand, dead, queue, redis):
    """Fails if expire.lua keeps nothing for the replay: whose run it is and what limits it are lost with it."""
    options = {
        "tenant": "acme",
        "thread_id": "t",
        "concurrency_key": "k",
        "webhook": "https://x.example/hook",
    }
    await submit(queue, "r1", **options)
    lease = await hand.claim_one()
    before = await queue.get("r1")
    await hand.settle(lease, Status.INTERRUPTED, "1")
    await queue.resume_run("r1", "yes")
    await hand.settle(await hand.claim_one(), Status.FAILED)
    told = len(await events(queue, "r1"))
    await leaves(queue, "r1")
    assert [letter.tenant for letter in (await dead.list()).letters] == ["acme"]
    await dead.replay("r1")
    run = await queue.get("r1")
    assert (run.tenant, run.thread_id, run.submitted_at) == ("acme", "t", before.submitted_at)
    assert await queue.answer("r1", 1) == b'"yes"'
    assert await redis.zscore(queue.keys.outbox, "r1") is not None
    assert int(await redis.hget(queue.keys.run("r1"), "told")) == told
    await hand.claim_one()
    await submit(queue, "r2", tenant="acme", concurrency_key="k")
    await submit(queue, "r3", tenant="acme", thread_id="t")
    assert await hand.claim(10) == []
    assert [(await queue.get(each)).parked for each in ("r2", "r3")] == ["key:k", "thread:t"]
    assert await redis.hlen(queue.keys.letters) == 0


async def test_a_run_revived_twice_counts_all_its_events(hand, dead, queue, redis):
    await bury(hand, "r1")  # submitted, started, failed
    for told in (3, 6):  # replayed, started, failed
        await leaves(queue, "r1")
        await dead.replay("r1")
        assert int(await redis.hget(queue.keys.run("r1"), "told")) == told
        await hand.settle(await hand.claim_one(), Status.FAILED)


async def test_a_run_whose_record_was_deleted_is_revived_as_its_message_tells(hand, dead, queue, redis):
    await submit(queue, "r1", tenant="acme", webhook="https://x.example/hook")
    await hand.settle(await hand.claim_one(), Status.FAILED)
    await redis.delete(queue.keys.run("r1"), queue.keys.feed("r1"), queue.keys.outbox)
    await dead.replay("r1")
    assert (await queue.get("r1")).tenant == "acme"
    assert await redis.zscore(queue.keys.outbox, "r1") is not None


@pytest.mark.parametrize("by", ["drop", "hand"])
async def test_nothing_is_kept_for_a_letter_that_is_gone(hand, dead, queue, redis, by):
    for run_id in ("r1", "r2"):
        await bury(hand, run_id)
        await leaves(queue, run_id)
    letter = await dead.show("r1")
    if by == "drop":
        await dead.drop("r1")
    else:
        await redis.xdel(queue.keys.deadletter, letter.id)
        await Retention(queue, Metrics(), ttl_seconds=0.0).run_once()
    assert await redis.hkeys(queue.keys.letters) == [(await dead.show("r2")).id.encode()]


async def test_nothing_is_kept_of_a_run_whose_letter_left_before_it(hand, dead, queue, redis):
    await bury(hand, "r1")
    await dead.drop("r1")
    await leaves(queue, "r1")
    assert not await redis.exists(queue.keys.letters)


@pytest.mark.parametrize(
    ("message", "tenant"),
    [
        ('{"tenant":"acme","timeout_seconds":"never","input":1}', "acme"),
        ('{"tenant":7}', ""),
        ("no", ""),
        ("[1]", ""),
    ],
)
async def test_a_letter_knows_its_tenant_even_if_its_message_makes_no_sense(
    dead, redis, queue, message, tenant
):
    await redis.xadd(queue.keys.deadletter, {"run_id": "r1", "message_data": message})
    assert (await dead.show("r1")).tenant == tenant


async def test_a_letter_does_not_revive_under_another_runs_name(hand, dead, queue, redis):
    """Fails if replay.lua does not compare the run id in the letter."""
    await bury(hand, "r1")
    letter = await dead.show("r1")
    with pytest.raises(NotFound):
        await queue.replay("r2", letter=letter.id)
    assert not await redis.exists(queue.keys.run("r2"))


async def test_a_run_that_did_not_end_badly_can_not_be_replayed(hand, queue):
    await submit(queue, "r1")
    with pytest.raises(Conflict, match="queued"):
        await queue.replay("r1")
    await hand.settle(await hand.claim_one())
    with pytest.raises(Conflict, match="succeeded"):
        await queue.replay("r1")


async def test_all_letters_are_replayed_in_the_order_they_were_given_up(hand, dead, queue):
    for n in range(4):
        await bury(hand, f"r{n}", agent="x" if n % 2 else "y")
    dealt = await dead.replay_all(agent="x")
    assert [le.run_id for le in dealt.done] == ["r1", "r3"]
    assert await lane_of(queue, queue.keys.stream) == ["r1", "r3"]
    assert [le.run_id for le in (await dead.list()).letters] == ["r2", "r0"]


async def test_what_fails_again_while_all_are_replayed_is_not_replayed_again(hand, dead, queue, monkeypatch):
    """Fails (never ends) if the walk goes on to letters that are newer than its beginning."""
    monkeypatch.setattr("holdfast.runs.deadletter._PAGE", 1)
    for n in range(3):
        await bury(hand, f"r{n}")
    (partition,) = queue.partitions
    replay = partition.replay

    async def replay_and_fail(run_id, *, letter=""):
        await replay(run_id, letter=letter)
        await hand.settle(await hand.claim_one(), Status.FAILED)

    monkeypatch.setattr(partition, "replay", replay_and_fail)
    dealt = await asyncio.wait_for(dead.replay_all(), 30)
    assert [le.run_id for le in dealt.done] == ["r0", "r1", "r2"]
    assert len((await dead.list()).letters) == 3


async def test_a_letter_that_can_not_be_replayed_does_not_stop_the_others(hand, dead, queue, redis):
    await bury(hand, "r1")
    await bury(hand, "r2")
    await redis.hset(queue.keys.run("r1"), "status", "running")
    dealt = await dead.replay_all()
    assert [le.run_id for le in dealt.done] == ["r2"]
    assert "running" in next(iter(dealt.refused.values()))


async def test_a_dropped_letter_is_gone_and_its_run_stays_as_it_ended(hand, dead, queue, redis):
    await bury(hand, "r1")
    letter = await dead.drop("r1")
    assert (await queue.get("r1")).status is Status.FAILED
    assert not await redis.hexists(queue.keys.run("r1"), "dead")
    with pytest.raises(NotFound):
        await dead.drop(letter.id)


async def test_all_letters_of_a_reason_are_dropped(hand, dead):
    await bury(hand, "r1", reason="poison")
    await bury(hand, "r2", reason="server")
    assert [le.run_id for le in (await dead.drop_all(reason="poison")).done] == ["r1"]
    assert [le.run_id for le in (await dead.list()).letters] == ["r2"]
