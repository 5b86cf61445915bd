"""The watchdog names the line that blocks the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from prometheus_client import generate_latest

from holdfast.agents.watchdog import LoopWatchdog
from holdfast.telemetry.metrics import Metrics
from tests.support.waiting import until


def grind(seconds: float, over: Callable[[], object] = lambda: False) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not over():
        sum(range(1000))


async def test_a_blocked_loop_is_told_with_the_line_that_blocks_it(log_lines):
    metrics = Metrics()

    async def agent() -> None:
        grind(30.0, log_lines)  # until it is told

    with LoopWatchdog(0.1, metrics):
        await asyncio.create_task(agent(), name="run-7")
        await until(lambda: b"holdfast_loop_blocked_seconds_count 1.0" in generate_latest(metrics.registry))
    bark = log_lines()[0]
    assert bark["level"] == "warning"
    assert "test_watchdog.py" in bark["where"]
    assert "in grind" in bark["where"]
    assert bark["task"] == "run-7"
    assert "grind(30.0, log_lines)" in bark["stack"]


async def test_a_loop_that_is_busy_but_goes_on_is_left_alone(log_lines):
    with LoopWatchdog(1.0, Metrics()):
        for _ in range(30):  # longer than that, altogether
            await asyncio.sleep(0.04)
            grind(0.01)
    assert log_lines() == []
