"""The demo's account, proof and picture: the proof must fail for everything that could be wrong."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from holdfast_demo import outage, story
from holdfast_demo.account import Account, Event, settled_twice
from holdfast_demo.books import Audit, Record, ScheduledRun
from holdfast_demo.evidence import (
    answered,
    delivered,
    steps_done_once,
    streamed_once,
    tickets_kept,
    turns_once,
)
from holdfast_demo.figures import Asked, Figures, Kept, Streamed, Turns
from holdfast_demo.program import ACTS, AGENTS, REPLICAS
from holdfast_demo.proof import prove
from holdfast_demo.receiver import Delivery
from holdfast_demo.stage import Stage
from holdfast_demo.streaming import stream
from holdfast_demo.system import DemoFailed, System
from holdfast_demo.view import PlainLines, picture


def event(kind: str, run_id: str = "r", at: float = 0.0, **data: Any) -> Event:
    return Event(run_id, at, kind, data)


def started(fence: int, owner: str = "w", run_id: str = "r") -> Event:
    return event("started", run_id, fence=fence, owner=owner, attempt=1)


# -- account


def test_the_account_follows_a_run_through_its_states():
    account = Account()
    run = account.expect("r", "lookup")
    seen = []
    for step in (
        event("submitted"),
        started(1),
        event("retrying"),
        event("queued"),
        started(2, "x"),
        event("reclaimed"),
        started(4, "y"),
        event("interrupted"),
        event("resumed"),
        started(5, "z"),
        event("succeeded"),
    ):
        account.apply(step)
        seen.append(run.state)
    assert seen == [
        "waiting", "running", "delayed", "waiting", "running", "waiting", "running",
        "asking", "waiting", "running", "succeeded",
    ]  # fmt: skip
    assert (run.owner, run.fence, run.starts) == ("z", 5, 4)
    assert account.all_ended


def test_what_a_worker_holds_is_counted_by_agent():
    account = Account()
    for number, agent in enumerate(("greet", "greet", "draft")):
        account.expect(str(number), agent)
        account.apply(started(1, "w", str(number)))
    account.apply(event("succeeded", "0"))
    assert account.held_by("w") == {"greet": 1, "draft": 1}
    assert account.held_by("x") == {}


def test_chunks_do_not_push_other_events_away():
    account = Account()
    account.expect("r", "draft")
    account.apply(started(1))
    for _ in range(100):
        account.apply(event("chunk", value="word"))
    assert [e.type for e in account.recent] == ["started"]


@pytest.mark.parametrize(
    ("events", "fences"),
    [
        ([started(1), event("succeeded")], []),
        ([started(1), event("retrying"), started(2), event("failed")], []),
        ([started(1), event("reclaimed"), started(3), event("succeeded")], []),
        ([started(1), event("interrupted"), event("resumed"), started(2), event("succeeded")], []),
        ([started(1), event("succeeded"), event("succeeded")], [1]),
        ([started(1), event("interrupted"), event("succeeded")], [1]),
        ([started(1), event("retrying"), event("succeeded")], [1]),
        ([started(1), started(1), event("succeeded")], [1]),
        ([started(1), event("retrying"), started(2), event("failed"), event("failed")], [2]),
    ],
)
def test_a_fence_that_is_used_twice_is_found(events, fences):
    assert settled_twice(events) == fences


# -- proof

SUBMITTED = {"good": "greet", "bad": "refund", "gone": "research", "moved": "survivor"}


def working(step: int) -> Event:
    return event("working", step=step)


def progress(step: int) -> Event:
    return event("progress", step=step, of=2)


def record(run_id: str, status: str, *events: Event, result: Any = None) -> Record:
    numbered = [
        dataclasses.replace(each, run_id=run_id, id=f"{number}-0")
        for number, each in enumerate((event("submitted"), *events), 1)
    ]
    return Record(run_id, status, fence=1, events=numbered, result=result)


def deliveries(audit: Audit) -> list[Delivery]:
    """What a receiver gets that misses nothing: the runs mixed, each in order."""
    queues = [list(record.events) for record in audit.records]
    mixed: list[Event] = []
    while queues := [queue for queue in queues if queue]:
        mixed += [queue.pop(0) for queue in queues]
    return [Delivery(each.run_id, each.id, each.type) for each in mixed]


AUDIT = Audit(
    records=[
        record("good", "succeeded", started(1), event("succeeded")),
        record("bad", "failed", started(1), event("retrying"), started(2), event("failed")),
        record("gone", "cancelled", started(1), event("cancelled")),
        record(
            "moved",
            "succeeded",
            started(1, "a"),
            working(1),
            progress(1),
            working(2),
            event("reclaimed"),
            started(3, "b"),
            progress(1),
            working(2),
            progress(2),
            event("succeeded"),
        ),
    ],
    known=frozenset(SUBMITTED),
    dead=["bad"],
    entries={"returned": 0, "normal": 0},
    pending={"returned": 0, "normal": 0},
    delayed=0,
)


FIGURES = Figures(shaken={"moved": 1})


def test_the_proof_holds_when_every_run_is_accounted_for():
    proof = prove(SUBMITTED, FIGURES, AUDIT, deliveries(AUDIT))
    assert proof.holds, proof
    assert (proof.submitted, proof.attempts, proof.retries, proof.duplicates) == (4, 6, 1, 0)
    claims = [check.claim for check in proof.checks]
    assert "4 submitted = 2 succeeded + 1 in the dead letters + 1 cancelled" in claims
    assert "survived: a → b (fence 1 → 3)" in claims


def with_record(changed: Record) -> Audit:
    others = [old for old in AUDIT.records if old.run_id != changed.run_id]
    return dataclasses.replace(AUDIT, records=[*others, changed])


@pytest.mark.parametrize(
    ("audit", "missing"),
    [
        (dataclasses.replace(AUDIT, known=AUDIT.known - {"good"}), "good (greet) is not in Redis"),
        (
            dataclasses.replace(AUDIT, known=AUDIT.known | {"alien"}),
            "alien is in Redis, but nobody submitted it",
        ),
        (dataclasses.replace(AUDIT, dead=[]), "bad: 0 dead letters for 1 failures"),
        (dataclasses.replace(AUDIT, dead=["bad", "bad"]), "bad: 2 dead letters for 1 failures"),
        (dataclasses.replace(AUDIT, dead=["bad", "good"]), "good: 1 dead letters for 0 failures"),
        (dataclasses.replace(AUDIT, entries={"normal": 2}), "lane normal still has 2 entries"),
        (dataclasses.replace(AUDIT, pending={"normal": 1}), "lane normal still has 1 pending"),
        (dataclasses.replace(AUDIT, delayed=3), "3 runs are still delayed"),
        (with_record(record("good", "running", started(1))), "good (greet) is running"),
        (with_record(record("good", "missing")), "good (greet) is missing"),
        (
            with_record(record("good", "succeeded", started(1), event("succeeded"), event("succeeded"))),
            "good was settled twice under fence [1]",
        ),
        (
            with_record(record("good", "succeeded", started(1))),
            "good is succeeded, but its feed ends with nothing",
        ),
        (
            with_record(record("moved", "succeeded", started(1, "a"), event("succeeded"))),
            "moved is succeeded under fence 1, it had 1",
        ),
        (
            with_record(record("moved", "failed", started(3, "b"), event("failed"))),
            "moved is failed under fence 3, it had 1",
        ),
        (with_record(record("moved", "queued")), "moved was never started"),
    ],
)
def test_the_proof_fails_and_says_what_is_missing(audit: Audit, missing: str):
    proof = prove(SUBMITTED, FIGURES, audit, deliveries(audit))
    assert not proof.holds
    assert missing in [line for check in proof.checks for line in check.missing]


# -- evidence


def only(*events: Event, status: str = "succeeded", result: Any = None) -> Audit:
    return dataclasses.replace(AUDIT, records=[record("r", status, *events, result=result)])


def turn(number: int, run_id: str = "", at: float = 0.0, status: str = "succeeded") -> ScheduledRun:
    events = [event("submitted"), started(1), event("succeeded")]
    return ScheduledRun(run_id or f"run {number}", "digest", f"digest {number}", status, at, events)


TURNS = Turns("digest", "tidy", paused_at=10.0, resumed_at=12.0)
BY_HAND = {"last_outcome": "succeeded"}


def of_turns(*runs: ScheduledRun, counted: int = 2, tidy: dict[str, str] = BY_HAND) -> Audit:
    records = {"digest": {"runs": str(counted)}, "tidy": tidy}
    return dataclasses.replace(AUDIT, scheduled=list(runs), turns=records)


def test_turns_that_are_one_run_each_hold():
    check = turns_once(TURNS, of_turns(turn(1, at=9.0), turn(2, at=13.0)))
    assert check.holds, check
    assert check.claim.startswith("2 turns of digest, each one run")


@pytest.mark.parametrize(
    ("audit", "missing"),
    [
        (of_turns(turn(1), turn(1, "another")), "turn digest 1 is 2 runs"),
        (of_turns(turn(1)), "digest had 2 turns, but asked for 1 runs"),
        (of_turns(counted=0), "digest had 0 turns, but asked for 0 runs"),
        (of_turns(turn(1), turn(2, at=11.0)), "run 2 was asked for while digest was paused"),
        (of_turns(turn(1), turn(2, status="failed")), "run 2 of turn digest 2 is failed"),
        (of_turns(turn(1), turn(2), tidy={}), "tidy was triggered once, but its record says {}"),
    ],
)
def test_a_turn_that_is_doubled_or_lost_or_out_of_its_time_is_found(audit: Audit, missing: str):
    assert missing in turns_once(TURNS, audit).missing


KEPT = Kept("host-a", ("clerk-1",), 2.5, tickets=3, ledgers={"clerk-1": (1, 2, 3), "clerk-2": (1, 2, 3)})


def test_tickets_that_are_all_in_their_ledgers_hold():
    check = tickets_kept(KEPT)
    assert check.holds, check
    assert check.claim.startswith("6 tickets are in the ledgers of 2 residents")


@pytest.mark.parametrize("ledger", [(1, 2), (1, 3, 2), (1, 2, 2, 3), ()])
def test_a_ticket_that_is_lost_or_doubled_or_out_of_its_place_is_found(ledger: tuple[int, ...]):
    kept = dataclasses.replace(KEPT, ledgers={**KEPT.ledgers, "clerk-2": ledger})
    assert len(tickets_kept(kept).missing) == 1
    assert tickets_kept(dataclasses.replace(KEPT, orphans=())).missing


def test_what_schedules_asked_for_is_nobodys_alien_event():
    audit = of_turns(turn(1))
    assert delivered([*deliveries(audit), Delivery("run 1", "1-0", "started")], audit).holds


def test_a_finished_step_that_is_done_again_is_found():
    again = only(started(1), working(1), progress(1), started(3), working(1), progress(1))
    assert steps_done_once({"r"}, again).missing == ("r: step 1 was finished, and done again",)
    within = only(started(1), working(1), progress(1), working(1), started(3), progress(1))
    assert not steps_done_once({"r"}, within).holds


def test_a_step_that_was_not_finished_may_be_done_again():
    fair = only(started(1), working(1), progress(1), working(2), started(3), progress(1), working(2))
    assert steps_done_once({"r"}, fair).holds


def test_a_run_that_had_finished_nothing_proves_nothing():
    assert not steps_done_once({"r"}, only(started(1), working(1), started(3), working(1))).holds


ASKED = Asked("r", "Pay?", "yes", waited=1.0, took=0.01)
RESUMED = event("resumed", index=1, value="yes")
ANSWERED = (started(1), event("interrupted", index=1), RESUMED, started(2), event("succeeded"))


def test_an_answer_holds_if_the_run_went_on_with_it():
    assert answered(ASKED, {"paid": 1}, only(*ANSWERED, result={"paid": 1})).holds


@pytest.mark.parametrize(
    "audit",
    [
        only(*ANSWERED, result={"paid": 0}),
        only(*ANSWERED, result={"paid": 1}, status="failed"),
        only(started(1), event("succeeded"), result={"paid": 1}),
        only(*ANSWERED[:2], event("resumed", index=1, value="no"), *ANSWERED[3:], result={"paid": 1}),
        dataclasses.replace(AUDIT, records=[]),
    ],
)
def test_an_answer_that_did_not_come_through_is_found(audit: Audit):
    assert not answered(ASKED, {"paid": 1}, audit).holds


@pytest.mark.parametrize(
    ("before", "after", "missing"),
    [
        (["1-0", "2-0"], ["3-0"], ()),
        (["1-0"], ["3-0"], ("missed: 2-0",)),
        (["1-0", "2-0"], ["2-0", "3-0"], ("events were seen twice",)),
        (["1-0", "3-0"], ["2-0"], ("events were seen out of order, or are not in the feed",)),
        (["1-0", "2-0", "3-0"], [], ("the stream was not resumed in its middle",)),
    ],
)
def test_a_stream_must_be_the_feed(before, after, missing):
    audit = only(started(1), event("succeeded"))
    assert streamed_once(Streamed("r", tuple(before), tuple(after)), audit).missing == missing


@pytest.mark.parametrize(
    ("ids", "missing"),
    [
        (["1-0", "2-0", "3-0"], ()),
        (["1-0", "2-0", "2-0", "3-0"], ()),  # at least once: the latest may come again
        (["1-0", "3-0"], ("r: 1 of 3 events lost",)),
        (["1-0", "3-0", "2-0"], ("r: out of order",)),
        (["1-0", "2-0", "1-0", "2-0", "3-0"], ("r: out of order",)),
        ([], ("r: 3 of 3 events lost",)),
    ],
)
def test_what_the_receiver_got_must_be_the_feed_in_order(ids, missing):
    audit = only(started(1), event("succeeded"))
    assert delivered([Delivery("r", each, "") for each in ids], audit).missing == missing


def test_events_of_strangers_and_events_given_up_are_found():
    audit = only(started(1), event("succeeded"))
    stranger = Delivery("x", "1-0", "submitted")
    assert not delivered([*deliveries(audit), stranger], audit).holds
    assert not delivered(deliveries(audit), dataclasses.replace(audit, undelivered=1)).holds


# -- picture


@pytest.fixture
def stage() -> Stage:
    printed = PlainLines(Console(file=io.StringIO()))
    stage = Stage(System(Path("app.py")), books=None, view=printed, titles=ACTS)  # pyright: ignore[reportArgumentType]
    for number, agent in enumerate(AGENTS):
        stage.account.expect(f"run-{number}", agent)
        stage.account.apply(started(1, "worker-a", f"run-{number}"))
        stage.account.apply(event("progress", f"run-{number}", note="long " * 50))
    act = stage.begin(0, "starting")
    stage.end(act, "a long story " * 20)
    return stage


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (80, 36), (80, 42), (200, 60)])
def test_the_picture_fits_the_terminal(stage: Stage, width: int, height: int):
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(picture(stage, width, height))
    lines = capture.get().splitlines()
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    for word in (*AGENTS, *ACTS, "cancelled", "✓"):
        assert any(word in line for line in lines), word
    assert any("api-b" in line for line in lines) == (height > 30)
    assert sum("run-" in line for line in lines) == {24: 0, 30: 0, 36: 0, 42: 4, 60: 6}[height]


def test_without_a_terminal_an_act_is_one_line(stage: Stage):
    console = Console(file=io.StringIO(), width=60)
    PlainLines(console).show(stage)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert sum("start" in line for line in lines) == 1
    assert "8 running" in lines[-1]


# -- acts on a slow machine


class SlowStage:
    """A stage on which ``happen`` tells what comes to pass, and only once it is waited for."""

    def __init__(self, system: Any, happen: Callable[[str], None]) -> None:
        self.system, self.account, self._happen = system, Account(), happen

    def begin(self, number: int, told: str = "") -> SimpleNamespace:
        return SimpleNamespace(told=told)

    def end(self, act: SimpleNamespace, told: str) -> None:
        act.text = told

    async def until(self, what: str, find: Callable[[], Any]) -> Any:
        self._happen(what)
        found = find()
        assert found, what
        return found


async def test_a_follower_that_was_late_still_leaves_events_to_the_other_replica():
    """Fails if it reads on what the killed replica had sent: after a pause that can be everything."""
    killed: list[str] = []

    class Http:
        async def execute(self, *_: object) -> str:
            return "r"

        async def follow(self, base: str, run_id: str, after: str = ""):
            for number in range(int(after or 0) + 1, 52):
                yield str(number)

    replicas = {
        name: SimpleNamespace(name=name, url=name, kill=lambda name=name: killed.append(name))
        for name in REPLICAS
    }
    stage = SlowStage(
        SimpleNamespace(replicas=replicas),
        lambda what: [stage.account.apply(event("chunk")) for _ in range(51)],
    )
    found = await stream(stage, Http())
    assert killed == [REPLICAS[0]]
    assert (len(found.before), len(found.after)) == (20, 31)


def test_a_run_that_ended_before_its_worker_was_gone_is_not_waited_for():
    account = Account()
    run = account.expect("r", "survivor")
    account.apply(started(1))
    account.apply(event("progress"))
    assert (story._steps(run), story._started_after(run, 1)) == (1, None)
    account.apply(event("succeeded"))
    for look in (lambda: story._steps(run), lambda: story._started_after(run, 1)):
        with pytest.raises(DemoFailed, match="survivor r ended before its worker was stopped"):
            look()
    assert story._started_after(run, 0) is not None, "it ran elsewhere, and has ended there"


async def test_an_outage_lasts_until_a_run_has_ended_meanwhile(monkeypatch):
    monkeypatch.setattr(outage, "_DOWN_SECONDS", 0)
    monkeypatch.setattr(outage, "_FAILING_SECONDS", 0)

    class Receiver:
        refused = 0

        def go_down(self) -> None: ...

        async def come_up(self, *_: object) -> None: ...

        def counts(self) -> dict[str, int]:
            return {"r": 1}

    receiver = Receiver()

    def happen(what: str) -> None:
        if "relay" in what:
            receiver.refused += 1
        if "run to end" in what:
            stage.account.apply(event("succeeded"))

    stage = SlowStage(SimpleNamespace(receiver=receiver), happen)
    stage.account.expect("r", "greet")
    assert (await outage.suffer_an_outage(stage)).runs == 1
