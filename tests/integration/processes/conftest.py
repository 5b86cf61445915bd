"""Real zygotes and real children, told what to do by tests/support/processes/entries.py."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from holdfast.processes import procfs
from holdfast.processes.options import ProcessOptions
from holdfast.processes.processes import Processes
from holdfast.processes.restarts import RestartPolicy
from tests.support.processes.child_processes import PATIENCE, Heard

NAMES = (
    "willing by_event_loop by_select stubborn own_handler own_loop family forked quits quits_again early eats confesses "
    "talks floods speaks_nonsense"
)


@pytest.fixture(scope="session")
def options() -> ProcessOptions:
    return ProcessOptions(
        entries={name: f"tests.support.processes.entries:{name}" for name in NAMES.split()},
        class_prefixes=("tests.support.processes.entries",),
        preload=("tests.support.processes.preloaded",),
        restarts=RestartPolicy(max_restarts=2, base_seconds=0.01),
        zygote_restarts=RestartPolicy(base_seconds=0.01),
        ready_timeout_seconds=PATIENCE,
        stop_timeout_seconds=PATIENCE,
        zygote_timeout_seconds=PATIENCE,
    )


@pytest.fixture(scope="session")
def shared(options: ProcessOptions) -> Iterator[Processes]:
    with Processes(options) as processes:
        yield processes


@pytest.fixture
def processes(shared: Processes) -> Iterator[Processes]:
    """Processes for tests that break nothing but their own agents, which end with them."""
    yield shared
    for ended in [shared.kill(agent_id) for agent_id in shared.all()]:
        ended.result(PATIENCE)
    for agent_id in shared.all():
        shared.forget(agent_id).result(PATIENCE)


@pytest.fixture
def make(options: ProcessOptions) -> Iterator[Callable[..., Processes]]:
    """Processes of the test's own, with other options."""
    made: list[Processes] = []

    def start(**changes: Any) -> Processes:
        made.append(Processes(replace(options, **changes)))
        return made[-1]

    yield start
    for processes in made:
        processes.shutdown(timeout=0)


@pytest.fixture
def heard(processes: Processes) -> Iterator[Heard]:
    hearing = Heard(processes)
    yield hearing
    hearing.leave()


@pytest.fixture
def end_at_last() -> Iterator[Callable[[Iterable[int]], None]]:
    """Have processes ended with the test even if what should end them is broken."""
    began: dict[int, int | None] = {}
    yield lambda pids: began.update({pid: procfs.start_time(pid) for pid in pids})
    for pid, at in began.items():
        if at is not None and procfs.start_time(pid) == at:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def preloading(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Say what the preloaded module does."""
    return lambda what: monkeypatch.setenv("HOLDFAST_TEST_PRELOAD", what)
