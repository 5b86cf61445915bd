"""One agent that should run: what it is, and where in its life its process is. Used on the loop's thread."""

from __future__ import annotations

import signal
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.clock import boot_time
from holdfast.errors import ProcessError
from holdfast.processes.info import AgentProcessInfo, Status
from holdfast.processes.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.processes.handle import Handle
    from holdfast.processes.loop import Timer


@dataclass(frozen=True, slots=True)
class Wanted:
    """What somebody asked for; ``payload`` is JSON already."""

    id: str
    entry: str
    payload: bytes
    fence: int = 0
    limits: Limits = field(default_factory=Limits)
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    until: Callable[[], float] | None = None
    """When its lease ends, by boot_time(): it is ended then unless this returns a later time by then."""


def promise() -> Future[Any]:
    """Return a future that nobody can cancel: several may wait for it."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


def settle(future: Future[Any], error: Exception | None = None) -> None:
    """Keep a promise, or break it with an error, unless that has happened already."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


@dataclass(slots=True, eq=False)
class Agent:
    """The life of one agent, over all its processes."""

    wanted: Wanted
    created_at: float = field(default_factory=time.time)
    status: Status = Status.STARTING
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
    successor: Agent | None = None
    told: list[bytes] = field(default_factory=list[bytes])

    @property
    def is_new(self) -> bool:
        """Whether it has never been ready, so that whoever asked for it still waits."""
        return not self.created.done()

    @property
    def has_lease(self) -> bool:
        """Whether it may run now: it has a lease that has not ended, or needs none."""
        return self.wanted.until is None or boot_time() < self.wanted.until()

    def stopped_early(self) -> ProcessError:
        """The error for whoever still waits for it."""
        return ProcessError(f"agent {self.wanted.id!r} was stopped before it was ready")

    def rest(self) -> None:
        """Forget the timer of the state that ends now."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def tell(self, *lines: bytes) -> None:
        """Send its process something; one that has none yet hears it when it begins."""
        self.told += lines
        if self.handle is not None:
            for line in self.told:
                self.handle.send(line)
            self.told.clear()

    def describe(self) -> AgentProcessInfo:
        """Return what is known of the agent now; other threads may call this between two changes of it."""
        status, handle = self.status, self.handle
        pid = handle.pid if handle else 0
        if status is Status.RUNNING and not pid:  # guard: ended-process-not-running
            status = Status.BACKING_OFF  # the process has just ended; whether it restarts is not decided yet
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
    """Say in words how a process ended."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
