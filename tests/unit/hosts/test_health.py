"""When an agent is not well."""

from __future__ import annotations

from holdfast.hosts.health import AgentHealth

WELL, ILL = {"well": True}, {"well": False, "error": "no database"}


def test_one_that_says_so_often_enough_in_a_row_is_not_well():
    health = AgentHealth(10, 3)
    for now, said in enumerate([ILL, ILL, WELL, ILL, ILL]):
        health.heard("x", said, now)
    assert health.unwell(5) == []
    health.heard("x", ILL, 5)
    assert health.unwell(5) == [("x", "3 failed health checks: no database")]
    assert health.unwell(5) == [], "it is told of once"


def test_one_that_falls_silent_is_not_well():
    health = AgentHealth(10, 3)
    health.heard("x", WELL, 0)
    assert health.unwell(30) == []
    assert health.unwell(31) == [("x", "no health report for 31 s")]


def test_one_that_never_spoke_is_not_missed_and_a_new_beginning_is_one():
    health = AgentHealth(10, 1)
    assert health.unwell(1000) == []
    health.heard("x", ILL, 0)
    health.began("x")
    assert health.unwell(0) == []
