"""The watchdog names the line that blocks the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.agents.watchdog import LoopWatchdog
from holdfast.telemetry.metrics import Metrics
from tests.support.waiting import until, wait_until


def grind(seconds: float, done: Sequence[object] = ()) -> None:
    """Block the loop in this very function: what it called could be named instead."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not done:
        sum(range(1000))


async def test_a_blocked_loop_is_told_with_the_line_that_blocks_it(log_lines):
    metrics = Metrics()

    # A busy machine may block the loop elsewhere too, for the tenth of a second that is told.
    def barks(where: str = "") -> list[dict[str, Any]]:
        return [line for line in log_lines() if "where" in line and where in line["where"]]

    done = list[bool]()

    def look() -> None:
        done.append(bool(wait_until(lambda: barks("in grind"))))

    def counted() -> float | None:
        return metrics.registry.get_sample_value("holdfast_loop_blocked_seconds_count")

    async def agent() -> None:
        while looking.is_alive():  # the watchdog may have been at something else when a block began
            grind(1.0, done)
            await asyncio.sleep(0)

    looking = threading.Thread(target=look)
    with LoopWatchdog(0.1, metrics):
        looking.start()
        await asyncio.create_task(agent(), name="run-7")
        await until(counted, lambda count: count and count == len(barks()))
    bark = barks("in grind")[0]
    assert bark["level"] == "warning"
    assert bark["event"].endswith("nothing else in this process can run, including its shutdown")
    assert "test_watchdog.py" in bark["where"]
    assert bark["task"] == "run-7"
    assert "grind(1.0, done)" in bark["stack"]


async def test_a_loop_that_is_busy_but_goes_on_is_left_alone(log_lines):
    async def longest_pause() -> float:
        pauses = []
        with LoopWatchdog(2.0, Metrics()):
            for _ in range(45):  # longer than that, altogether
                began = time.monotonic()
                await asyncio.sleep(0.04)
                grind(0.01)
                pauses.append(time.monotonic() - began)
        return max(pauses)

    # A machine that gave us no CPU for so long has blocked the loop: what is told then is true.
    for _ in range(10):
        told = len(log_lines())
        if await longest_pause() < 1.0:
            break
    else:
        pytest.fail("the machine blocked the loop for a second, ten times")
    assert len(log_lines()) == told
