"""The watchdog names the line that blocks the event loop."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import generate_latest

from holdfast.agents.watchdog import LoopWatchdog
from holdfast.telemetry.metrics import Metrics


def grind(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


async def test_a_blocked_loop_is_told_with_the_line_that_blocks_it(log_lines):
    metrics = Metrics()
    with LoopWatchdog(0.1, metrics):
        await asyncio.sleep(0.05)
        await asyncio.create_task(_agent(), name="run-7")
        await asyncio.sleep(0.2)
    (bark,) = [line for line in log_lines() if line["level"] == "warning"]
    assert "test_watchdog.py" in bark["where"]
    assert "in grind" in bark["where"]
    assert bark["task"] == "run-7"
    assert "grind(0.4)" in bark["stack"]
    assert b"holdfast_loop_blocked_seconds_count 1.0" in generate_latest(metrics.registry)


async def _agent() -> None:
    grind(0.4)


async def test_a_loop_that_is_busy_but_goes_on_is_left_alone(log_lines):
    with LoopWatchdog(0.3, Metrics()):
        for _ in range(20):
            await asyncio.sleep(0.01)
            grind(0.01)
    assert log_lines() == []
