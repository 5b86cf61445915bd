from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.agents.context import Context, RunInfo, Signals
from holdfast.agents.invoke import Invocation
from holdfast.agents.spec import describe


class Feed:
    """Collects what a run emits."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    async def __call__(self, event_type: str, data: Any) -> None:
        self.events.append((event_type, data))


class DeadlineByHand:
    """The deadline of one invocation, which comes when the test says so."""

    def set(self, call: Callable[[], None], at: float) -> None:
        self.come = call

    def clear(self, call: Callable[[], None]) -> None:
        assert call == self.come


@pytest.fixture
def deadline() -> DeadlineByHand:
    return DeadlineByHand()


@pytest.fixture
def feed() -> Feed:
    return Feed()


@pytest.fixture
def info() -> RunInfo:
    return RunInfo(
        run_id="run-1",
        agent_id="tester",
        thread_id="thread-1",
        attempt=2,
        fence=7,
        deadline=datetime(2030, 1, 1, tzinfo=UTC),
        metadata={"team": "a"},
    )


@pytest.fixture
def signals() -> Signals:
    return Signals()


@pytest.fixture
def ctx(info, feed, signals) -> Context:
    return Context(info, feed, signals)


@pytest.fixture
def executor():
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield pool


@pytest.fixture
def invocation(ctx, executor):
    def make(call, payload=None, timeout_seconds=30.0, **options) -> Invocation:
        return Invocation(describe("tester", call), ctx, payload, timeout_seconds, executor, **options)

    return make
