"""What an agent sees of its run: ``Context`` on the event loop, ``SyncContext`` in a thread.

Once the run is over its context is closed: nothing an agent left behind can write to the feed any more.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import inspect
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload

import msgspec

from holdfast.agents.memory import LocalMemory
from holdfast.agents.outcome import Asking, Interrupted, StopReason
from holdfast.agents.state import AgentState, SyncState
from holdfast.agents.steps import Journal, Steps, as_json, read_back, require_function
from holdfast.agents.unawaited import forgotten
from holdfast.errors import InputError, LeaseLost
from holdfast.leases.trust import Trust
from holdfast.telemetry.logs import get_logger
from holdfast.telemetry.traces import inject, trace_id_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from structlog.typing import FilteringBoundLogger

    from holdfast.agents.memory import Memory

    Emit = Callable[[str, Any], Awaitable[None]]
    Answers = Callable[[int], Awaitable[bytes | None]]

_CHECK_SECONDS = 0.5
T = TypeVar("T")


class RunInfo(msgspec.Struct, frozen=True):
    """The facts of one attempt at a run; ``trace`` and ``log_fields`` come from the submitter.

    ``message_id`` is the stream entry that the attempt was claimed by.
    """

    run_id: str
    agent_id: str
    thread_id: str
    attempt: int
    fence: int
    deadline: datetime
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    trace: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    log_fields: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    message_id: str = ""

    def log_context(self) -> dict[str, Any]:
        """What every log line of this attempt says: the submitter's fields first, which can't hide ours."""
        ours: dict[str, Any] = {
            "run_id": self.run_id,
            "message_id": self.message_id,
            "agent": self.agent_id,
            "attempt": self.attempt,
            "fence": self.fence,
        }
        if not self.message_id:  # a schedule's turn, which no message carries
            del ours["message_id"]
        trace_id = trace_id_of(self.trace)
        if not trace_id and not self.log_fields.get("trace_id"):
            trace_id = trace_id_of(inject())  # of the run's own span: its trace begins with this attempt
        if trace_id:
            ours["trace_id"] = trace_id
        return {**self.log_fields, **ours} if self.log_fields else ours


class Signals:
    """What an attempt's owner tells its agent; ``draining`` may be shared by all runs of a worker."""

    __slots__ = ("closed", "draining", "stop", "trust")

    def __init__(self, draining: asyncio.Event | None = None, trust: Trust | None = None) -> None:
        self.draining = asyncio.Event() if draining is None else draining
        self.stop: StopReason | None = None
        self.trust = Trust() if trust is None else trust
        """Whether the lease is kept; a process whose lease is lost is killed without a grace."""
        self.closed = False

    @property
    def over(self) -> bool:
        """Whether nothing more may be done: the attempt has ended, or its lease is not trusted."""
        return self.closed or not self.trust.holds()

    def require_open(self, info: RunInfo) -> None:
        """Raise LeaseLost if the attempt is over: what it did now, another one may have done."""
        if self.over:  # guard: context-calls-need-lease
            raise LeaseLost(
                f"run {info.run_id} (fence {info.fence}) is over here: "
                "return now; nothing this attempt does is recorded any more"
            )


class AttemptScope:
    """What the platform keeps of one attempt behind its context; without a store it ends with the attempt."""

    __slots__ = ("_memory", "_open_memory", "_steps", "info", "question", "signals", "store")

    def __init__(self, info: RunInfo, signals: Signals, memory: Callable[[], Memory], store: Any) -> None:
        self.info = info
        self.signals = signals
        self.store = store
        """The database that the worker has, for frameworks that keep their own tables in it."""
        self.question: Interrupted | None = None
        """The first question without an answer: the run waits for that, whatever its agent does then."""
        self._open_memory = memory
        self._memory: Memory | None = None
        self._steps: Steps | None = None

    @property
    def memory(self) -> Memory:
        """What the run remembers beyond this attempt, as the store has it."""
        if self._memory is None:
            self._memory = self._open_memory()
        return self._memory

    @property
    def steps(self) -> Steps:
        """The steps of this attempt."""
        if self._steps is None:
            self._steps = Steps(self.memory, self.info, self.signals)
        return self._steps

    @property
    def journal(self) -> Journal:
        """The steps under names of one's own choice, for frameworks."""
        return Journal(self.memory)

    def require_open(self) -> None:
        """Raise LeaseLost if the attempt is over, so that a leftover task or thread ends."""
        self.signals.require_open(self.info)

    def ask(self, question: Interrupted) -> None:
        """Keep the first of the questions that have no answer."""
        if self.question is None or question.index < self.question.index:
            self.question = question


class BaseContext:
    """What an agent may read of its run, on the loop or in a thread."""

    __slots__ = ("_log", "_scope")

    def __init__(self, scope: AttemptScope) -> None:
        self._scope = scope
        self._log: FilteringBoundLogger | None = None

    @property
    def run_id(self) -> str:
        """The run, the same over all its attempts."""
        return self._scope.info.run_id

    @property
    def thread_id(self) -> str:
        """The conversation the run belongs to."""
        return self._scope.info.thread_id

    @property
    def agent_id(self) -> str:
        """The name this agent is registered under."""
        return self._scope.info.agent_id

    @property
    def attempt(self) -> int:
        """Which try this is; the first is 1."""
        return self._scope.info.attempt

    @property
    def fence(self) -> int:
        """A number that only grows: give it to stores that refuse writes under a lower one."""
        return self._scope.info.fence

    @property
    def deadline(self) -> datetime:
        """When this attempt is stopped, in UTC."""
        return self._scope.info.deadline

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the submitter attached to the run."""
        return self._scope.info.metadata

    @property
    def log(self) -> FilteringBoundLogger:
        """A structured logger; every line carries the fields of this run."""
        if self._log is None:
            self._log = get_logger(f"agent.{self._scope.info.agent_id}")
        return self._log

    @property
    def draining(self) -> bool:
        """Whether the worker is going away: finish soon, or be handed to another worker."""
        signals = self._scope.signals
        return signals.stop is StopReason.DRAIN or signals.draining.is_set()

    @property
    def cancelled(self) -> bool:
        """Whether the work is no longer wanted: cancelled, or over (past its deadline, handed back, lost)."""
        signals = self._scope.signals
        return signals.stop is StopReason.CANCEL or signals.over

    def idempotency_key(self, step: str) -> str:
        """Return a key for an outside effect that stays the same over attempts of this run."""
        return f"{self._scope.info.run_id}:{step}"


def scope_of(ctx: BaseContext) -> AttemptScope:
    """Return what the platform keeps behind a context."""
    return ctx._scope  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


class Context(BaseContext):
    """The context of an async agent."""

    __slots__ = ("_answers", "_asked", "_emit", "_state")

    def __init__(
        self,
        info: RunInfo,
        emit: Emit,
        signals: Signals | None = None,
        *,
        memory: Callable[[], Memory] = LocalMemory,
        answers: Answers | None = None,
        store: Any = None,
    ) -> None:
        super().__init__(AttemptScope(info, Signals() if signals is None else signals, memory, store))
        self._emit = emit
        self._answers = answers
        self._asked = 0
        self._state: AgentState | None = None

    async def emit(self, event_type: str, data: Any = None) -> None:
        """Append an event to the run's feed."""
        self._scope.require_open()
        await self._emit(event_type, data)

    async def stream(self, chunk: Any) -> None:
        """Append a piece of the answer to the run's feed, as an event of type ``chunk``."""
        await self.emit("chunk", chunk)

    @overload
    async def step(self, name: str, call: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any) -> T: ...
    @overload
    async def step(self, name: str, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> T: ...
    async def step(self, name: str, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Do something once, over all attempts of the run, and return what it gave.

        What it gives is written down before this returns; an attempt that comes here again is handed that
        instead. An effect outside happens once too if it uses ``idempotency_key(name)``.
        """
        self._scope.require_open()
        return await self._scope.steps.run(name, call, args, kwargs)

    @property
    def state(self) -> AgentState:
        """What the run's thread remembers from run to run, or the run itself if it has no thread."""
        if self._state is None:
            self._state = AgentState(self._scope.memory, self._scope.require_open)
        return self._state

    async def interrupt(self, value: Any = None) -> Any:
        """Ask somebody, and return the answer; until it is there the run waits without a worker.

        The agent is run again from its start then: what must not happen twice before this belongs in a step.
        """
        self._scope.require_open()
        question = as_json(value, "what an interrupt asks")
        self._asked += 1
        index = self._asked  # others may ask while we wait
        answer = await self._answers(index) if self._answers is not None else None
        if answer is None:
            asked = Interrupted(index, question)
            self._scope.ask(asked)
            raise Asking(asked)
        return msgspec.json.decode(answer)

    async def wait_draining(self) -> None:
        """Wait until the worker wants to go away."""
        await self._scope.signals.draining.wait()


class SyncContext(BaseContext):
    """The context of a sync agent, which runs in a thread: the same names, blocking."""

    __slots__ = ("_context", "_loop")

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(scope_of(context))
        self._context = context
        self._loop = loop

    def emit(self, event_type: str, data: Any = None) -> None:
        """Append an event to the run's feed; return when it is written."""
        self._scope.require_open()
        self._wait(self._context.emit(event_type, data))

    def stream(self, chunk: Any) -> None:
        """Append a piece of the answer to the run's feed, as an event of type ``chunk``."""
        self.emit("chunk", chunk)

    def step(self, name: str, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Do something once, over all attempts of the run, and return what it gave."""
        self._scope.require_open()
        require_function(name, call)
        steps = self._scope.steps
        key = steps.number(name)
        found = self._wait(steps.find(key))
        if found is None:
            began = time.monotonic()
            value = call(*args, **kwargs)
            if inspect.isawaitable(value):
                forgotten(value)
                raise InputError(
                    f"step {key!r}: a sync agent can't await what {call!r} gives; make it sync too"
                )
            self._scope.require_open()
            found = self._wait(steps.keep(key, value, time.monotonic() - began))
        return read_back(key, found, call)

    @property
    def state(self) -> SyncState:
        """What the run's thread remembers from run to run, or the run itself if it has no thread."""
        return SyncState(self._context.state, self._wait)

    def interrupt(self, value: Any = None) -> Any:
        """Ask somebody, and return the answer; until it is there the run waits without a worker."""
        self._scope.require_open()
        return self._wait(self._context.interrupt(value))

    def wait_draining(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the worker wants to go away, or the time is up; return whether it does."""
        self._scope.require_open()
        self._wait(self._drained(timeout_seconds))
        return self.draining

    async def _drained(self, timeout_seconds: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self._context.wait_draining()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it, but not for a loop or a run that is gone."""
        if self._loop.is_closed():
            work.close()
            raise self._worker_ended()
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        while not concurrent.futures.wait([future], timeout=_CHECK_SECONDS).done:
            if self._loop.is_closed():
                raise self._worker_ended()
            if self._scope.signals.over:
                future.cancel()
                self._scope.require_open()
        # The worker may have been frozen inside this call: another one may have the run, and its next step.
        self._scope.require_open()  # guard: thread-goes-on-with-lease
        return future.result()

    def _worker_ended(self) -> LeaseLost:
        return LeaseLost(f"the worker of run {self.run_id} has ended: return now")
