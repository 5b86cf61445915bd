"""What an agent sees of its run: ``Context`` on the event loop, ``SyncContext`` in a thread.

Once the run is over its context is closed: nothing an agent left behind can write to the feed any more.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.agents.outcome import StopReason
from holdfast.errors import LeaseLost
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping
    from datetime import datetime

    from structlog.typing import FilteringBoundLogger

    Emit = Callable[[str, Any], Awaitable[None]]

_CHECK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The facts of one attempt at a run; ``trace`` and ``log_fields`` come from the submitter."""

    run_id: str
    agent_id: str
    thread_id: str
    attempt: int
    fence: int
    deadline: datetime
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    trace: Mapping[str, str] = field(default_factory=dict[str, str])
    log_fields: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Signals:
    """What whoever runs an agent tells it; ``draining`` may be shared by all runs of a worker."""

    __slots__ = ("closed", "draining", "stop")

    def __init__(self, draining: asyncio.Event | None = None) -> None:
        self.draining = asyncio.Event() if draining is None else draining
        self.stop: StopReason | None = None
        self.closed = False


class RunView:
    """What an agent may read of its run, on the loop or in a thread."""

    __slots__ = ("_log", "info", "signals")

    def __init__(self, info: RunInfo, signals: Signals) -> None:
        self.info = info
        self.signals = signals
        self._log: FilteringBoundLogger | None = None

    @property
    def run_id(self) -> str:
        """The run, the same over all its attempts."""
        return self.info.run_id

    @property
    def thread_id(self) -> str:
        """The conversation the run belongs to."""
        return self.info.thread_id

    @property
    def agent_id(self) -> str:
        """The name this agent is registered under."""
        return self.info.agent_id

    @property
    def attempt(self) -> int:
        """Which try this is; the first is 1."""
        return self.info.attempt

    @property
    def fence(self) -> int:
        """A number that only grows: give it to stores that refuse writes under a lower one."""
        return self.info.fence

    @property
    def deadline(self) -> datetime:
        """When this attempt is stopped, in UTC."""
        return self.info.deadline

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the submitter attached to the run."""
        return self.info.metadata

    @property
    def log(self) -> FilteringBoundLogger:
        """A structured logger; every line carries the fields of this run."""
        if self._log is None:
            self._log = get_logger(f"agent.{self.info.agent_id}")
        return self._log

    @property
    def draining(self) -> bool:
        """Whether the worker is going away: finish soon, or be handed to another worker."""
        return self.signals.stop is StopReason.DRAIN or self.signals.draining.is_set()

    @property
    def cancelled(self) -> bool:
        """Whether the work is no longer wanted: cancelled, or over (past its deadline, handed back, lost)."""
        return self.signals.stop is StopReason.CANCEL or self.signals.closed

    def idempotency_key(self, step: str) -> str:
        """Return a key for an outside effect that stays the same over attempts of this run."""
        return f"{self.info.run_id}:{step}"

    def require_open(self) -> None:
        """Raise LeaseLost if the run is over, so that a leftover task or thread ends instead of writing."""
        if self.signals.closed:
            raise LeaseLost(
                f"run {self.info.run_id} (fence {self.info.fence}) is over here: "
                "return now; nothing this attempt does is recorded any more"
            )


class Context(RunView):
    """The context of an async agent."""

    __slots__ = ("_emit",)

    def __init__(self, info: RunInfo, emit: Emit, signals: Signals | None = None) -> None:
        super().__init__(info, Signals() if signals is None else signals)
        self._emit = emit

    async def emit(self, event_type: str, data: Any = None) -> None:
        """Append an event to the run's feed."""
        self.require_open()
        await self._emit(event_type, data)

    async def stream(self, chunk: Any) -> None:
        """Append a piece of the answer to the run's feed, as an event of type ``chunk``."""
        await self.emit("chunk", chunk)

    async def wait_draining(self) -> None:
        """Wait until the worker wants to go away."""
        await self.signals.draining.wait()


class SyncContext(RunView):
    """The context of a sync agent, which runs in a thread: the same names, blocking."""

    __slots__ = ("_context", "_loop")

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(context.info, context.signals)
        self._context = context
        self._loop = loop

    def emit(self, event_type: str, data: Any = None) -> None:
        """Append an event to the run's feed; return when it is written."""
        self.require_open()
        self._wait(self._context.emit(event_type, data))

    def stream(self, chunk: Any) -> None:
        """Append a piece of the answer to the run's feed, as an event of type ``chunk``."""
        self.emit("chunk", chunk)

    def wait_draining(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the worker wants to go away, or the time is up; return whether it does."""
        self.require_open()
        self._wait(self._drained(timeout_seconds))
        return self.draining

    async def _drained(self, timeout_seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._context.wait_draining()

    def _wait(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine on the loop and wait for it, but not for a loop or a run that is gone."""
        if self._loop.is_closed():
            work.close()
            raise self._worker_ended()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while not concurrent.futures.wait([future], timeout=_CHECK_SECONDS).done:
            if self._loop.is_closed():
                raise self._worker_ended()
            if self.signals.closed:
                future.cancel()
                self.require_open()
        future.result()

    def _worker_ended(self) -> LeaseLost:
        return LeaseLost(f"the worker of run {self.run_id} has ended: return now")
