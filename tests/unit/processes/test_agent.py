"""What is told of an agent at any moment, also between two changes of it."""

from __future__ import annotations

from holdfast.processes.agent import AgentLife, DesiredProcess
from holdfast.processes.info import ProcessStatus


def test_an_agent_whose_process_has_just_ended_is_not_running():
    """Another thread would take a process of number 0 for the one that was started next."""
    agent = AgentLife(DesiredProcess("a", "willing", b"null"), status=ProcessStatus.RUNNING, handle=None)
    described = agent.describe()
    assert (described.status, described.pid, described.is_alive) == (ProcessStatus.BACKING_OFF, 0, False)
