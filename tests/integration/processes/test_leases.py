"""What happens to an agent whose process may run only under a lease."""

from __future__ import annotations

import os
import signal

import pytest

from holdfast.clock import boot_time
from holdfast.errors import ProcessError
from holdfast.processes.info import EventKind, ProcessStatus
from holdfast.processes.processes import Processes
from tests.support.processes.child_processes import PATIENCE, Heard, is_gone

CAUSES = "(Redis did not answer for most of hosts.ttl_seconds, or this host was paused)"
AGAIN = "it is started again when the lease is renewed"
NOT_RENEWED = f"its lease was not renewed in time {CAUSES}: {AGAIN}"


class Lease:
    """A lease that is held for long, or over."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self.until = boot_time() + 600

    def end(self) -> None:
        self.until = 0.0
        self._processes.keep()

    def renew(self) -> None:
        self.until = boot_time() + 600
        self._processes.keep()


@pytest.fixture
def lease(processes: Processes) -> Lease:
    return Lease(processes)


def test_an_agent_ends_with_its_lease_and_is_started_again_when_it_is_held_again(
    processes: Processes, heard: Heard, lease: Lease
):
    """Fails if the end of a lease is a crash: then it may happen twice only."""
    info = processes.spawn("a", "willing", fence=3, until=lambda: lease.until).result(PATIENCE)
    for times in range(1, 5):
        lease.end()
        ended = heard.next("a", EventKind.EXITED).process
        assert (ended.status, ended.is_alive, ended.last_error) == (ProcessStatus.WAITING, False, NOT_RENEWED)
        assert is_gone(info.pid)
        lease.renew()
        info = heard.next("a", EventKind.READY).process
        assert (info.fence, info.restarts) == (3, times)


def test_an_agent_that_crashes_without_a_lease_waits_for_it(processes: Processes, heard: Heard, lease: Lease):
    info = processes.spawn("a", "willing", until=lambda: lease.until).result(PATIENCE)
    lease.until = 0.0  # the zygote does not know yet
    os.kill(info.pid, signal.SIGKILL)
    waiting = heard.next("a", EventKind.EXITED, status=ProcessStatus.WAITING).process
    assert waiting.last_error == f"its lease ended before its process was started {CAUSES}: {AGAIN}"
    lease.renew()
    heard.next("a", EventKind.READY)


def test_an_agent_that_waits_for_its_lease_is_stopped(processes: Processes, heard: Heard, lease: Lease):
    processes.spawn("a", "willing", until=lambda: lease.until).result(PATIENCE)
    lease.end()
    heard.next("a", EventKind.EXITED, status=ProcessStatus.WAITING)
    assert processes.stop("a").result(PATIENCE)
    assert processes.get("a").status is ProcessStatus.STOPPED


def test_a_new_agent_whose_lease_is_over_is_not_created(processes: Processes, lease: Lease):
    """It is not its fault, so this is no ProcessFailed: another host may try."""
    lease.end()
    with pytest.raises(ProcessError, match="'a' was not created") as caught:
        processes.spawn("a", "willing", until=lambda: lease.until).result(PATIENCE)
    assert type(caught.value) is ProcessError
    said = f"its lease ended before its process was started {CAUSES}: create it again"
    assert str(caught.value) == f"agent 'a' was not created: {said}"
    assert processes.get("a") is None
