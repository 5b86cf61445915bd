"""Workers with agents on their loop and in processes of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from holdfast import App
from holdfast.agents.loader import load_app
from holdfast.processes import procfs
from tests.support.processes.isolation import AGENTS, Isolation


@pytest.fixture
async def system(redis, redis_settings) -> AsyncIterator[Isolation]:
    async with Isolation(redis_settings, slots=4, max_attempts=2, stop_grace_seconds=0.3) as system:
        yield system


@pytest.fixture
def isolated() -> App:
    return load_app(f"{AGENTS}:isolated")


@pytest.fixture(params=["inline", "isolated"])
def app(request: pytest.FixtureRequest) -> App:
    """The same agents both ways."""
    return load_app(f"{AGENTS}:{request.param}")


@pytest.fixture
def end_at_last() -> Iterator[Callable[..., None]]:
    """Have processes ended with the test even if what should end them is broken."""
    began: dict[int, int | None] = {}
    yield lambda *pids: began.update({pid: procfs.start_time(pid) for pid in pids})
    for pid, at in began.items():
        if at is not None and procfs.start_time(pid) == at:
            os.kill(pid, signal.SIGKILL)
