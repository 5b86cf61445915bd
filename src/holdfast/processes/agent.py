"""One agent that should run: its specification and the state of its process. Used on the loop's thread."""

from __future__ import annotations

import signal
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.clock import boot_time
from holdfast.errors import ProcessError
from holdfast.processes.info import AgentProcessInfo, ProcessStatus
from holdfast.processes.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.processes.handle import Handle
    from holdfast.processes.loop import Timer


@dataclass(frozen=True, slots=True)
class DesiredProcess:
    """The specification of an agent that should run; ``payload`` is JSON already."""

    id: str
    entry: str
    payload: bytes
    fence: int = 0
    limits: Limits = field(default_factory=Limits)
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    until: Callable[[], float] | None = None
    """Returns when the lease ends, by boot_time(). Unless it was renewed by then, the agent is killed."""


def promise() -> Future[Any]:
    """Return a future that can't be cancelled, because several callers may wait for it."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


def settle(future: Future[Any], error: Exception | None = None) -> None:
    """Set the result or the error of a future, unless it is done already."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


@dataclass(slots=True, eq=False)
class AgentLife:
    """The state of one agent across all its processes."""

    wanted: DesiredProcess
    created_at: float = field(default_factory=time.time)
    status: ProcessStatus = ProcessStatus.STARTING
    handle: Handle | None = None
    timer: Timer | None = None
    created: Future[AgentProcessInfo] = field(default_factory=promise)
    ended: Future[bool] = field(default_factory=promise)
    restarted_at: tuple[float, ...] = ()
    restarts: int = 0
    lost: int = 0
    exit_code: int | None = None
    error: str = ""
    max_rss_bytes: int = 0
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    successor: AgentLife | None = None
    unsent: list[bytes] = field(default_factory=list[bytes])

    @property
    def is_new(self) -> bool:
        """Whether the agent has never been ready, so that the caller of spawn still waits."""
        return not self.created.done()

    @property
    def has_lease(self) -> bool:
        """Whether the agent may run now: its lease has not ended, or it needs none."""
        return self.wanted.until is None or boot_time() < self.wanted.until()

    def stopped_early(self) -> ProcessError:
        """The error for callers that still wait for the agent."""
        return ProcessError(f"agent {self.wanted.id!r} was stopped before it was ready")

    def rest(self) -> None:
        """Cancel the timer of the current state."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def tell(self, *lines: bytes) -> None:
        """Send lines to the agent's process; while it has none they are kept for the next one."""
        self.unsent += lines
        if self.handle is not None:
            for line in self.unsent:
                self.handle.send(line)
            self.unsent.clear()

    def describe(self) -> AgentProcessInfo:
        """Return the current state of the agent; other threads may call this between two changes of it."""
        status, handle = self.status, self.handle
        pid = handle.pid if handle else 0
        if status is ProcessStatus.RUNNING and not pid:  # guard: ended-process-not-running
            status = (
                ProcessStatus.BACKING_OFF
            )  # the process has just ended; whether it restarts is not decided yet
        return AgentProcessInfo(
            agent_id=self.wanted.id,
            guild_id=self.wanted.labels.get("guild_id", ""),
            pid=pid,
            is_alive=pid != 0,
            created_at=self.created_at,
            status=status,
            entry=self.wanted.entry,
            fence=self.wanted.fence,
            restarts=self.restarts,
            exit_code=self.exit_code,
            last_error=self.error,
            max_rss_bytes=self.max_rss_bytes,
            labels=self.wanted.labels,
            info=self.info,
        )


def how_it_ended(code: int) -> str:
    """Describe in words how a process ended."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
