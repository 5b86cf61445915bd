"""The facade that execution engines use."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.compat.process_manager import AgentProcessManager
from holdfast.errors import InputError, ProcessError, ProcessesFull, ProcessFailed
from holdfast.processes.info import ProcessStatus
from holdfast.processes.restarts import RestartPolicy
from tests.support.processes.child_processes import is_gone
from tests.support.waiting import wait_until

ENTRIES = "tests.support.processes.entries"
GUILD = {"id": "guild-1", "name": "a guild"}
MESSAGING = {"backend_class": "redis"}


def agent_spec(agent_id: str = "agent-1", class_name: str = f"{ENTRIES}.Willing") -> dict[str, Any]:
    return {"id": agent_id, "class_name": class_name}


@pytest.fixture
def manage() -> Iterator[Callable[..., AgentProcessManager]]:
    made: list[AgentProcessManager] = []

    def make(max_processes: int = 100, **options: Any) -> AgentProcessManager:
        made.append(AgentProcessManager(max_processes, class_prefixes=(ENTRIES,), **options))
        return made[-1]

    yield make
    for manager in made:
        manager.shutdown()


def test_spawn_agent_process(manage: Callable[..., AgentProcessManager]):
    manager = manage(max_processes=10)
    agent_id = manager.spawn_agent_process(agent_spec(), GUILD, MESSAGING)
    assert agent_id == "agent-1"
    assert manager.is_process_alive(agent_id)
    info = manager.get_process_info(agent_id)
    assert (info.agent_id, info.guild_id, info.status) == ("agent-1", "guild-1", ProcessStatus.RUNNING)
    assert not is_gone(info.pid)


def test_stop_agent_process(manage: Callable[..., AgentProcessManager]):
    manager = manage()
    agent_id = manager.spawn_agent_process(agent_spec(), GUILD, MESSAGING)
    assert manager.stop_agent_process(agent_id, timeout=5)
    assert not manager.is_process_alive(agent_id)
    assert manager.get_process_info(agent_id) is None
    assert not manager.stop_agent_process(agent_id)
    assert manager.spawn_agent_process(agent_spec(), GUILD, MESSAGING) == agent_id


def test_max_processes_limit(manage: Callable[..., AgentProcessManager]):
    manager = manage(max_processes=2)
    for number in range(2):
        manager.spawn_agent_process(agent_spec(str(number)), GUILD, MESSAGING)
    with pytest.raises(RuntimeError) as full:
        manager.spawn_agent_process(agent_spec("3"), GUILD, MESSAGING)
    assert isinstance(full.value, ProcessesFull)


def test_process_crash_cleanup(manage: Callable[..., AgentProcessManager]):
    manager = manage()
    for name in ("dead", "alive"):
        manager.spawn_agent_process(agent_spec(name), GUILD, MESSAGING)
    os.kill(manager.get_process_info("dead").pid, signal.SIGKILL)
    wait_until(lambda: not manager.is_process_alive("dead"))
    wait_until(lambda: manager.get_process_info("dead").status is ProcessStatus.CRASHED)
    assert manager.cleanup_dead_processes() == ["dead"]
    assert manager.cleanup_dead_processes() == []
    assert list(manager.list_processes()) == ["alive"]


def test_a_manager_that_restarts_keeps_its_agents(manage: Callable[..., AgentProcessManager]):
    manager = manage(restarts=RestartPolicy(base_seconds=0.01))
    manager.spawn_agent_process(agent_spec(), GUILD, MESSAGING)
    os.kill(manager.get_process_info("agent-1").pid, signal.SIGKILL)
    wait_until(lambda: manager.get_process_info("agent-1").restarts == 1)
    wait_until(lambda: manager.get_process_info("agent-1").status is ProcessStatus.RUNNING)
    assert manager.cleanup_dead_processes() == []


def test_processes_are_listed_by_guild(manage: Callable[..., AgentProcessManager]):
    manager = manage()
    for agent_id, guild_id in (("1", "x"), ("2", "y"), ("3", "y")):
        manager.spawn_agent_process(agent_spec(agent_id), {"id": guild_id}, MESSAGING)
    assert sorted(manager.list_processes("y")) == ["2", "3"]
    assert sorted(manager.list_processes()) == ["1", "2", "3"]
    assert manager.list_processes("z") == {}


class Model:
    """As pydantic's models are."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return self._fields


def test_specs_may_be_models_mappings_or_json(manage: Callable[..., AgentProcessManager]):
    manager = manage()
    text = json.dumps(GUILD)
    spec = Model(**agent_spec())
    assert (
        manager.spawn_agent_process(spec, text.encode(), Model(**MESSAGING), 3, "Client", {"a": 1})
        == "agent-1"
    )


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("{", "agent_spec is not JSON"),
        (b"\xff\xfe\x00", "agent_spec is not JSON"),
        ("[]", "must be a JSON object"),
        (None, "must be a JSON object"),
        ({}, "needs an 'id'"),
        ({"id": 7}, "needs an 'id'"),
        ({"id": "a", "more": object()}, "must be JSON"),
    ],
)
def test_a_spec_that_can_not_be_used_is_refused(
    manage: Callable[..., AgentProcessManager], spec: Any, words: str
):
    manager = manage()
    with pytest.raises(InputError, match=words):
        manager.spawn_agent_process(spec, GUILD, MESSAGING)
    assert manager.list_processes() == {}


@pytest.mark.parametrize(
    ("class_name", "words"),
    [
        (f"{ENTRIES}.Faulty", "ValueError: this agent can't be made"),
        (f"{ENTRIES}.Nobody", "has no 'Nobody'"),
        (f"{ENTRIES}other.Agent", "outside of the prefixes"),
        ("subprocess.Popen", "outside of the prefixes"),
        (f"{ENTRIES}.Path.__class__", "AppError"),
        (None, "needs a 'class_name'"),
    ],
)
def test_a_class_that_can_not_be_run_is_not_created(
    manage: Callable[..., AgentProcessManager], class_name: Any, words: str
):
    manager = manage()
    with pytest.raises(ProcessFailed, match=words):
        manager.spawn_agent_process(agent_spec(class_name=class_name), GUILD, MESSAGING)
    assert manager.list_processes() == {}


def test_an_entry_of_nobody_is_a_runtime_error(manage: Callable[..., AgentProcessManager]):
    with pytest.raises(ProcessError, match="no entry 'rustic'"):
        manage().spawn_agent_process(agent_spec(), GUILD, MESSAGING, entry="rustic")


def test_shutdown_ends_all(manage: Callable[..., AgentProcessManager]):
    manager = manage()
    for number in range(3):
        manager.spawn_agent_process(agent_spec(str(number)), GUILD, MESSAGING)
    pids = [info.pid for info in manager.list_processes().values()]
    manager.shutdown()
    assert all(is_gone(pid) for pid in pids)
    with pytest.raises(RuntimeError):
        manager.spawn_agent_process(agent_spec(), GUILD, MESSAGING)
