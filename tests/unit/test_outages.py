"""Outages in the log: one line when one begins and one when it ends, however many loops meet it."""

from __future__ import annotations

import pytest

from holdfast.outages import Outage, OutageReporter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def outage(clock) -> Outage:
    return Outage("Redis", clock)


def reporter(outage: Outage, held_up: str, meanwhile: str = "") -> OutageReporter:
    return OutageReporter(outage, held_up, meanwhile, is_outage=lambda exc: isinstance(exc, ConnectionError))


def told(lines: list[dict]) -> list[str]:
    return [line["event"] for line in lines]


def test_two_loops_that_meet_one_outage_give_two_lines(outage, clock, log_lines):
    claims, renewals = reporter(outage, "claims", "runs go on"), reporter(outage, "renewals")
    for second in range(20):
        clock.now = 100.0 + second
        for each in (claims, renewals):
            with pytest.raises(ConnectionError), each:
                raise ConnectionError("refused")
    clock.now = 120.0
    with claims, renewals:
        pass
    clock.now = 125.0
    claims.answered()
    began, ended = log_lines()
    assert (
        began.items()
        >= {
            "level": "warning",
            "event": "Redis unavailable",
            "held_up": "claims",
            "meanwhile": "runs go on",
            "error": "refused",
        }.items()
    )
    assert (
        ended.items()
        >= {
            "level": "warning",
            "event": "Redis available again",
            "seconds": 20.0,
            "failures": 40,
            "delayed": ["claims", "renewals"],
        }.items()
    )
    claims.failed(ConnectionError())
    assert told(log_lines())[2:] == ["Redis unavailable"], "the next outage has its own line"


def test_an_outage_whose_cause_changes_is_logged_once_more(outage, log_lines):
    """A restart with another password: that no connection is made says nothing of the password."""

    def cause(exc: BaseException) -> str:
        return "password" if "password" in str(exc) else ""

    claims = OutageReporter(outage, "claims", is_outage=lambda exc: True, cause=cause)
    for error in ("reset", "password refused", "reset", "password refused"):
        claims.failed(ConnectionError(error))
    assert [line["error"] for line in log_lines()] == ["reset", "password refused"]


def test_a_loop_that_still_fails_keeps_the_outage_open_while_others_are_answered(outage, clock, log_lines):
    """One server of a cluster is down: the answers of the others must not begin and end an outage each second."""
    here, there = reporter(outage, "partition 0"), reporter(outage, "partition 1")
    for second in range(60):
        clock.now = 100.0 + second
        there.failed(ConnectionError())
        clock.now += 0.5
        here.answered()
    assert told(log_lines()) == ["Redis unavailable"]


def test_a_loop_that_does_not_come_back_keeps_no_outage_open(outage, clock, log_lines):
    rare, often = reporter(outage, "a pass once an hour"), reporter(outage, "heartbeats")
    rare.failed(ConnectionError())
    often.failed(ConnectionError())
    clock.now = 105.0
    often.answered()
    assert told(log_lines()) == ["Redis unavailable"], "the other loop may fail again"
    clock.now = 130.0
    often.answered()
    assert log_lines()[1].items() >= {"event": "Redis available again", "seconds": 5.0}.items()


def test_what_is_no_outage_is_not_reported(outage, log_lines):
    loop = reporter(outage, "claims")
    with pytest.raises(ValueError, match="damaged"), loop:
        raise ValueError("damaged")
    assert not loop.failed(ValueError("damaged"))
    loop.answered()
    assert log_lines() == []
