"""What a child prints and reports reaches the host, and only so much of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.processes.processes import Processes
from tests.support.processes.child_processes import PATIENCE, Heard
from tests.support.waiting import wait_until

LogLines = Callable[[], list[dict[str, Any]]]


def said(lines: list[dict[str, Any]], agent_id: str) -> list[str]:
    return [line["event"] for line in lines if line.get("agent_id") == agent_id]


def test_what_a_child_prints_is_logged_under_its_name(processes: Processes, log_lines: LogLines):
    payload = {"print": ["one", "two ü"], "errors": ["three"]}
    processes.spawn("a", "talks", payload, labels={"guild_id": "g"}).result(PATIENCE)
    processes.stop("a").result(PATIENCE)
    assert said(log_lines(), "a") == ["one", "two ü", "three", "goodbye"]
    assert all(line["guild_id"] == "g" for line in log_lines() if line.get("agent_id") == "a")


def test_a_long_line_is_cut(make: Callable[..., Processes], log_lines: LogLines):
    processes = make(output_line_bytes=100)
    processes.spawn("a", "talks", {"print": ["x" * 100_000, "short"]}).result(PATIENCE)
    processes.stop("a").result(PATIENCE)
    long, short, _ = said(log_lines(), "a")
    assert long == "x" * 100 + " […]"
    assert short == "short"


def test_a_child_that_floods_holds_up_nobody(processes: Processes, heard: Heard, log_lines: LogLines):
    processes.spawn("noisy", "floods").result(PATIENCE)
    heard.report("noisy", "flood")
    for number in range(10):
        processes.spawn(f"quiet{number}", "talks", {"print": ["here"]}).result(PATIENCE)
    wait_until(
        lambda: any("dropped_lines" in line for line in log_lines()) or heard.report("noisy", "flood") is None
    )
    wait_until(lambda: all(said(log_lines(), f"quiet{number}") == ["here"] for number in range(10)))
    assert processes.stop("noisy", timeout=5).result(PATIENCE)


def test_reports_reach_the_host(processes: Processes, heard: Heard, log_lines: LogLines):
    reports = [["metrics", {"messages": 3}], ["log", {"level": "error", "message": "broken", "code": 7}]]
    processes.spawn("a", "talks", {"reports": reports}).result(PATIENCE)
    event = heard.report("a", "metrics")
    assert (event.data, event.process.agent_id) == ({"messages": 3}, "a")
    heard.report("a", "log")
    line = next(line for line in log_lines() if line["event"] == "broken")
    assert (line["level"], line["code"], line["agent_id"]) == ("error", 7, "a")


def test_what_can_not_be_read_harms_nobody(processes: Processes, heard: Heard, log_lines: LogLines):
    processes.spawn("a", "speaks_nonsense").result(PATIENCE)
    assert "must be JSON" in heard.report("a", "refused").data["error"]
    assert "too long" in heard.report("a", "refused").data["error"]
    assert said(log_lines(), "a") == ["unreadable message from agent"] * 5


def test_a_subscriber_that_fails_does_not_stop_the_others(processes: Processes, log_lines: LogLines):
    leave = processes.subscribe(lambda _: 1 / 0)
    heard = Heard(processes)
    processes.spawn("a", "talks", {"reports": [["metrics", {}]]}).result(PATIENCE)
    heard.report("a", "metrics")
    leave()
    heard.leave()
    assert "process event subscriber failed" in said(log_lines(), "a")
