"""The demo's account, proof and picture: the proof must fail for everything that could be wrong."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from holdfast.cli.demo.account import Account, Event, settled_twice
from holdfast.cli.demo.books import Audit, Record
from holdfast.cli.demo.proof import prove
from holdfast.cli.demo.stage import Stage
from holdfast.cli.demo.story import ACTS, AGENTS
from holdfast.cli.demo.system import System
from holdfast.cli.demo.view import PlainLines, picture


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
        event("succeeded"),
    ):
        account.apply(step)
        seen.append(run.state)
    assert seen == [
        "waiting", "running", "delayed", "waiting", "running", "waiting", "running", "succeeded",
    ]  # fmt: skip
    assert (run.owner, run.fence, run.starts) == ("y", 4, 3)
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
        ([started(1), event("succeeded"), event("succeeded")], [1]),
        ([started(1), event("retrying"), event("succeeded")], [1]),
        ([started(1), started(1), event("succeeded")], [1]),
        ([started(1), event("retrying"), started(2), event("failed"), event("failed")], [2]),
    ],
)
def test_a_fence_that_is_used_twice_is_found(events, fences):
    assert settled_twice(events) == fences


# -- proof

SUBMITTED = {"good": "greet", "bad": "refund", "gone": "research", "moved": "survivor"}


def record(run_id: str, status: str, *events: Event) -> Record:
    return Record(run_id, status, fence=1, attempt=1, events=[event("submitted"), *events])


AUDIT = Audit(
    records=[
        record("good", "succeeded", started(1), event("succeeded")),
        record("bad", "failed", started(1), event("retrying"), started(2), event("failed")),
        record("gone", "cancelled", started(1), event("cancelled")),
        record(
            "moved", "succeeded", started(1, "a"), event("reclaimed"), started(3, "b"), event("succeeded")
        ),
    ],
    known=frozenset(SUBMITTED),
    dead=["bad"],
    entries={"returned": 0, "normal": 0},
    pending={"returned": 0, "normal": 0},
    delayed=0,
)


def test_the_proof_holds_when_every_run_is_accounted_for():
    proof = prove(SUBMITTED, {"moved": 1}, AUDIT)
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
    proof = prove(SUBMITTED, {"moved": 1}, audit)
    assert not proof.holds
    assert missing in [line for check in proof.checks for line in check.missing]


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


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (200, 60)])
def test_the_picture_fits_the_terminal(stage: Stage, width: int, height: int):
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(picture(stage, width, height))
    lines = capture.get().splitlines()
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    for word in (*AGENTS, *ACTS, "worker-a", "cancelled", "✓"):
        assert any(word in line for line in lines), word
    assert sum("run-" in line for line in lines) == {24: 0, 30: 4, 60: 6}[height]


def test_without_a_terminal_an_act_is_one_line(stage: Stage):
    console = Console(file=io.StringIO(), width=60)
    PlainLines(console).show(stage)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert sum("start" in line for line in lines) == 1
    assert "7 running" in lines[-1]
