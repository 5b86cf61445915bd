"""Attempts in processes of their own: the worker's side of ``isolation="process"``.

The worker has the lease, the deadline, the retries and the settlement, as for every other run. Instead of the
agent it calls ``Attempts.run``, which forks a child that calls the agent, and returns its outcome.
The child has its own connections and writes under the same fence. ::

    worker   spawn … draining, stop ──grace──> kill      (a lost lease: kill at once)
    child         └──> ready ──> the agent ──> outcome, in parts ──> exit

- A run is settled only after its process and all descendants of it have ended: no attempt outlives its run.
- A child lives only while the zygote receives renewals of the lease. If the worker is frozen, the zygote
  kills the child before the run can begin elsewhere; if the worker dies, its zygote and children end with it.
  Renewals are sent from a thread of their own: a blocked event loop of the worker does not end its children.
- A child that ends without an outcome is a failed attempt, of the class ``crashed``.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.agents.context import scope_of
from holdfast.agents.failures import Failure, FailureClass
from holdfast.agents.outcome import Decided, Failed, StopReason, Succeeded
from holdfast.clock import boot_time
from holdfast.errors import AppError, LeaseLost
from holdfast.processes import outcome_codec
from holdfast.processes.info import EventKind
from holdfast.processes.limits import Limits
from holdfast.telemetry.logs import get_logger
from holdfast.telemetry.traces import inject

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from holdfast.agents.context import Context, Signals
    from holdfast.agents.spec import AgentSpec
    from holdfast.processes.info import AgentProcessInfo, ProcessEvent
    from holdfast.processes.processes import Processes
    from holdfast.telemetry.metrics import Metrics

ENTRY: Final = "attempt"
_HAND_BACK_SECONDS: Final = 1.5
"""How long an agent may take to hand back its run when the worker shuts down; then it is killed."""
_EXIT_SECONDS: Final = 2.0
"""How long a child may clean up after its agent has ended."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Errand:
    """One attempt, as it is sent to its process; ``trusted`` returns until when the lease is certainly held.

    ``queue`` is the label of its metrics.
    """

    id: str
    queue: str
    task: Mapping[str, Any]
    grace_seconds: float
    trusted: Callable[[], float]
    agent: str = ""
    limits: Limits = dataclasses.field(default_factory=Limits)


def isolated(spec: AgentSpec, attempts: Attempts | None, errand: Errand) -> AgentSpec:
    """Return the same agent, called in a process of this attempt's own."""
    if attempts is None:
        raise AppError(f"agent {spec.name!r} has isolation='process', but this worker runs no processes")
    limits = Limits(memory_bytes=spec.memory_mb and spec.memory_mb << 20, nice=spec.nice)
    call = partial(attempts.run, dataclasses.replace(errand, agent=spec.name, limits=limits))
    # The input stays JSON here: the child converts it to the agent's input type.
    raw_input = {"wants_context": True, "wants_input": True, "input_type": None}
    return dataclasses.replace(spec, call=call, is_async=True, **raw_input)


class _Child:
    """The worker's state of one process; other threads set its futures, the loop's thread waits for them."""

    def __init__(self, errand: Errand, loop: asyncio.AbstractEventLoop) -> None:
        self.errand = errand
        self.parts: list[str] = []
        self.answered: asyncio.Future[None] = loop.create_future()
        self.gone: asyncio.Future[AgentProcessInfo | BaseException] = loop.create_future()
        self.killed = ""
        self._loop = loop

    def tell(self, future: asyncio.Future[Any], value: Any) -> None:
        """Set the result of a future on its loop, unless the loop is closed or the future is done already."""

        def done() -> None:
            if not future.done():
                future.set_result(value)

        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(done)

    def created(self, creation: Future[AgentProcessInfo]) -> None:
        """Note that the process could not be started; its start is reported as an event."""
        if error := creation.exception():
            self.tell(self.gone, error)


class Attempts:
    """Runs attempts in children of one zygote, which kills each ``slack_seconds`` after its trust."""

    def __init__(self, processes: Processes, metrics: Metrics, *, slack_seconds: float) -> None:
        self._processes = processes
        self._metrics = metrics
        self._slack = slack_seconds
        self._children: dict[str, _Child] = {}
        processes.subscribe(self._on_event)

    async def run(self, errand: Errand, ctx: Context, payload: Any) -> Any:
        """Call the agent in a process and return or raise its outcome; called in the place of the agent."""
        child = self._children[errand.id] = _Child(errand, asyncio.get_running_loop())
        try:
            self._start(child, ctx, payload)
            await self._wait_for_end(child, scope_of(ctx).signals)
        except asyncio.CancelledError:
            await self._end(child, scope_of(ctx).signals)
            raise
        finally:
            del self._children[errand.id]
        return self._result(child)

    def _start(self, child: _Child, ctx: Context, payload: Any) -> None:
        errand, scope = child.errand, scope_of(ctx)
        info = msgspec.structs.replace(scope.info, trace=inject() or scope.info.trace)
        task = {"info": msgspec.to_builtins(info), "input": payload, "draining": ctx.draining, **errand.task}
        if scope.store is not None:
            task["store"] = msgspec.to_builtins(scope.store.admission)  # guard: attempt-has-admission
        created = self._processes.spawn(
            errand.id,
            ENTRY,
            task,
            fence=info.fence,
            limits=errand.limits,
            labels={"run_id": info.run_id},
            until=lambda: errand.trusted() + self._slack,
        )
        created.add_done_callback(child.created)

    async def _wait_for_end(self, child: _Child, signals: Signals) -> None:
        """Wait until the agent has ended and its process has exited; forward the worker's shutdown to it."""
        draining = asyncio.ensure_future(signals.draining.wait())
        first: Any = partial(asyncio.wait, return_when=asyncio.FIRST_COMPLETED)
        try:
            await first({child.gone, child.answered, draining})
            if draining.done():
                self._processes.tell(child.errand.id, draining=True)  # guard: attempt-told-draining
                await first({child.gone, child.answered})
        finally:
            draining.cancel()
        if not await _exited_within(child, _EXIT_SECONDS):  # guard: answered-child-exit-timeout
            self._kill(child, "lingering")
            await _exited_within(child, None)

    # -- stopping a process

    async def _end(self, child: _Child, signals: Signals) -> None:
        """Return when the process has exited; each further cancellation kills it at once."""
        ending = asyncio.ensure_future(self._stop(child, signals))
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                self._kill(child, "lost")

    async def _stop(self, child: _Child, signals: Signals) -> None:
        reason, grace = _stop_reason_and_grace(signals, child.errand.grace_seconds)
        if grace:
            how = StopReason.DRAIN if signals.stop is StopReason.DRAIN else StopReason.CANCEL
            self._processes.tell(child.errand.id, stop=how.value, text=reason)
        if not await _exited_within(child, grace):  # guard: stop-grace-enforced
            self._kill(child, reason)
            await _exited_within(child, None)

    def _kill(self, child: _Child, reason: str) -> None:
        if child.killed:
            return
        child.killed, errand = reason, child.errand
        _log.warning("attempt process killed", process=errand.id, agent=errand.agent, reason=reason)
        agent = self._metrics.agent_label(errand.agent)
        self._metrics.processes_killed.labels(errand.queue, agent, reason).inc()
        self._processes.kill(errand.id)

    # -- on the supervisor's thread

    def _on_event(self, event: ProcessEvent) -> None:
        child = self._children.get(event.process.agent_id)
        if event.kind is EventKind.EXITED and event.process.status.ended:
            self._processes.forget(event.process.agent_id)  # guard: ended-attempt-forgotten
        if child is None:
            return
        if event.kind is EventKind.EXITED:
            child.tell(child.gone, event.process)
        elif event.report == outcome_codec.REPORT:
            child.parts.append(event.data["part"])
            if event.data["last"]:
                child.tell(child.answered, None)

    # -- the outcome

    def _result(self, child: _Child) -> Any:
        if not child.answered.done():
            raise self._died(child)
        answer = outcome_codec.joined(child.parts)
        if answer.events:
            self._metrics.events_appended.labels(child.errand.queue).inc(answer.events)
        outcome = answer.outcome
        if isinstance(outcome, Succeeded):
            return outcome.result
        raise Decided(outcome)

    def _died(self, child: _Child) -> BaseException:
        gone, errand = child.gone.result(), child.errand
        if isinstance(gone, BaseException):
            return Decided(Failed(_not_begun(gone)))
        if gone.exit_code == -signal.SIGKILL and boot_time() >= errand.trusted():
            return LeaseLost(f"attempt process {errand.id} was killed: its lease was not renewed in time")
        self._metrics.processes_crashed.labels(errand.queue, self._metrics.agent_label(errand.agent)).inc()
        output = gone.last_error.partition("\n")[2]
        return Decided(Failed(Failure.because(FailureClass.CRASHED, death(gone, errand.limits), output)))


def death(gone: AgentProcessInfo, limits: Limits) -> str:
    """Describe how the process of an attempt ended before its agent had."""
    code, most = gone.exit_code, gone.max_rss_bytes >> 20
    if code is None:
        return f"the process of this attempt was lost: {gone.last_error}"
    if code >= 0:
        return f"the process of this attempt exited with code {code} before its agent had ended"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = "without a name"
    text = f"the process of this attempt was ended by signal {-code} ({name}); it had {most} MiB at most"
    if limits.memory_bytes is not None:
        text += f", and memory_mb is {limits.memory_bytes >> 20}"
    if code == -signal.SIGKILL:
        text += "; this worker did not send it, but the kernel does so when memory is short"
    return text


def _not_begun(error: BaseException) -> Failure:
    trace = str(getattr(error, "traceback", ""))
    first, last = str(error).partition("\n")[0], trace.rstrip().rpartition("\n")[2]
    text = f"the process of this attempt could not begin: {first}" + (f": {last}" if last else "")
    return Failure.because(FailureClass.CRASHED, text, trace)


def _stop_reason_and_grace(signals: Signals, grace_seconds: float) -> tuple[str, float]:
    """Return why an agent is stopped, and how long it may take to end by itself."""
    if signals.trust.lost:
        return "lost", 0.0  # guard: lost-lease-no-grace
    if signals.stop is StopReason.DRAIN:
        return "handed_back", min(grace_seconds, _HAND_BACK_SECONDS)  # guard: hand-back-grace
    return ("timed_out" if signals.stop is None else "cancelled"), grace_seconds  # guard: stop-grace


async def _exited_within(child: _Child, seconds: float | None) -> bool:
    await asyncio.wait({child.gone}, timeout=seconds)
    return child.gone.done()
