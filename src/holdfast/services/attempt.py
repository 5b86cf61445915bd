"""An attempt's process: the entry that a worker's zygote forks for an agent with ``isolation="process"``.

The same invocation as in the worker, with connections of its own and under the worker's fence. The worker
has the deadline and the lease, and stops or kills this process. It reads the end of its lease itself, because
after a freeze of all of them it may run before its zygote can kill it. See ``processes/attempts.py``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import faulthandler
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.agents.context import Context, RunInfo, Signals
from holdfast.agents.failures import Failure
from holdfast.agents.invoke import Invocation
from holdfast.agents.loader import load_app
from holdfast.agents.outcome import Failed, Lost, Outcome, StopReason, Succeeded
from holdfast.agents.spec import LONGEST_TIMEOUT_SECONDS
from holdfast.config import Settings
from holdfast.leases.trust import Trust
from holdfast.processes import limits, outcome_codec
from holdfast.runs.execution.claim import Claimed
from holdfast.runs.execution.emit import Emitter
from holdfast.runs.execution.settlement import written_result
from holdfast.services.connections import Connections
from holdfast.services.process import loop_factory
from holdfast.services.store_registration import admit_as_worker
from holdfast.store.lazy import Admission
from holdfast.telemetry import logs, traces
from holdfast.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from holdfast.agents.app import App
    from holdfast.agents.memory import Memory
    from holdfast.agents.spec import AgentSpec
    from holdfast.processes.control import ChildControl

_log = logs.get_logger(__name__)
_FLUSH_SECONDS = 1.0
_TRACES_SECONDS = 0.5
"""How long spans are sent after the agent has ended: its run is settled after this process has exited."""
_ENDED_BY_SIGTERM = 128 + signal.SIGTERM
_EXAMPLE = {"run_id": "", "agent_id": "", "thread_id": "", "attempt": 1, "fence": 1} | {
    "deadline": "2000-01-01T00:00:00Z"
}


class Surroundings(msgspec.Struct, frozen=True):
    """The environment that all attempts of a worker share; without ``ahead`` each loads the app itself."""

    app: str
    settings: Settings
    ahead: bool = True


class Task(msgspec.Struct, frozen=True):
    """One attempt, as the worker sends it."""

    info: RunInfo
    queue: str
    kept_as: str
    owner: str
    partition: int = 0
    tenant: str = ""
    generation: int = 0
    input: Any = None
    draining: bool = False
    store: Admission = Admission()


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    surroundings: Surroundings
    app: App | None
    metrics: Metrics


_known: list[_Known] = []


def prepare(document: str) -> None:
    """In the zygote: load the app and the modules that all attempts share."""
    surroundings = msgspec.json.decode(document, type=Surroundings)
    app = load_app(surroundings.app) if surroundings.ahead else None
    _known.append(_Known(surroundings, app, Metrics(app.agents if app else None)))
    # Objects that are made at their first use are made here once, instead of in every child.
    traces.import_sdk()
    loop_factory(surroundings.settings)
    msgspec.convert({"info": _EXAMPLE, "queue": "", "kept_as": "", "owner": ""}, Task)
    msgspec.json.decode(
        msgspec.json.encode(outcome_codec.answer(Lost(), 0)), type=outcome_codec.OutcomeMessage
    )


def probe(_: Any, control: ChildControl) -> None:
    """Report ready, as proof that the zygote can fork."""
    control.ready()


def run(payload: dict[str, Any], control: ChildControl) -> None:
    """Call an agent once, and report its outcome."""
    known = _known[0]
    settings = known.surroundings.settings
    faulthandler.enable()  # after a crash in C the log has the line of Python
    logs.configure(msgspec.structs.replace(settings.log, format="json"))
    task = msgspec.convert(payload, Task)
    spec = (known.app or load_app(known.surroundings.app)).get(task.info.agent_id)
    traces.start("worker" if task.queue else "scheduler")  # a turn that runs in place has no queue
    try:
        with asyncio.Runner(loop_factory=loop_factory(settings)) as runner:
            runner.run(_ProcessAttempt(settings, known.metrics, spec, task, control).perform())
    finally:
        traces.finish(_TRACES_SECONDS)  # guard: attempt-spans-sent


class _ProcessAttempt:
    def __init__(
        self, settings: Settings, metrics: Metrics, spec: AgentSpec, task: Task, control: ChildControl
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._spec = spec
        self._task = task
        self._control = control
        self._signals = Signals(trust=Trust(control.trusted_until))  # guard: child-trusts-its-lease
        self._events = 0
        self._stop_requested = False

    async def perform(self) -> None:
        """Run the agent, and report its outcome."""
        task, info = self._task, self._task.info
        async with Connections(self._settings) as connections:
            admit_as_worker(connections, task.store, info.run_id)  # guard: attempt-store-compared
            memory, store = partial(self._memory, connections), connections.store
            if not task.queue:  # a schedule's turn has no feed, and its result is not stored
                ctx = Context(info, _logged, self._signals, memory=memory, store=store)
                self._report(await self._invoked(ctx))
                return
            queue = connections.partition(self._settings.queue_named(task.queue), task.partition)
            emitter = Emitter(queue, task.owner, self._metrics)
            append = emitter.for_run(Claimed(info.run_id, info.fence, info.attempt, 0, info.agent_id, b""))

            async def emit(kind: str, data: Any) -> None:
                await append(kind, data)
                self._events += 1

            answers = partial(queue.answer, info.run_id)
            ctx = Context(info, emit, self._signals, memory=memory, answers=answers, store=store)
            outcome = await self._invoked(ctx)
            with contextlib.suppress(TimeoutError):  # events that the agent did not await
                async with asyncio.timeout(_FLUSH_SECONDS):
                    await emitter.aclose()
            self._report(outcome, queue.settings.max_payload_bytes)

    def _memory(self, connections: Connections) -> Memory:
        task, info = self._task, self._task.info
        return connections.store.memory(
            run_id=task.kept_as,
            thread_id=info.thread_id,
            fence=info.fence,
            owner=task.owner,
            queue=task.queue,
            tenant=task.tenant,
            partition=task.partition,
            generation=task.generation,  # guard: process-thread-generation
        )

    async def _invoked(self, ctx: Context) -> Outcome:
        loop = asyncio.get_running_loop()
        executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="holdfast-agent")
        timeout = float(LONGEST_TIMEOUT_SECONDS)  # the worker enforces the timeout
        invocation = Invocation(self._spec, ctx, self._task.input, timeout, executor)
        if self._task.draining:
            self._signals.draining.set()
        self._control.hear(partial(self._on_message, loop, invocation))
        self._control.ready()
        ending = asyncio.create_task(self._end_when_stopped(invocation))
        outcome = await invocation.run()
        if invocation.lingering is not None:
            # A thread that was asked to stop may still clean up; the worker limits how long.
            ended = asyncio.Event()
            invocation.when_it_ends(ended.set)
            await ended.wait()
        ending.cancel()
        if self._stop_requested:
            raise SystemExit(_ENDED_BY_SIGTERM)
        return outcome

    async def _end_when_stopped(self, invocation: Invocation) -> None:
        """Stop on a SIGTERM from outside or at the worker's end; no outcome is reported then."""
        await self._control.stopped()
        self._stop_requested = True
        invocation.stop(StopReason.DRAIN, "its process received a stop request")

    # -- on the control's thread

    def _on_message(
        self, loop: asyncio.AbstractEventLoop, invocation: Invocation, message: dict[str, Any]
    ) -> None:
        if "stop" in message:
            call: Any = partial(invocation.stop, StopReason(message["stop"]), message["text"])
        else:
            call = self._signals.draining.set
        if not loop.is_closed():
            loop.call_soon_threadsafe(call)

    # -- reporting

    def _report(self, outcome: Outcome, max_bytes: int | None = None) -> None:
        if self._spec.memory_mb is not None:
            limits.lift_memory()
            outcome = _with_limit(outcome, self._spec.memory_mb)
        if isinstance(outcome, Succeeded):
            written = (
                b"null" if max_bytes is None else written_result(self._spec.name, outcome.result, max_bytes)
            )
            outcome = Failed(written) if isinstance(written, Failure) else Succeeded(msgspec.Raw(written))
        for part, last in outcome_codec.parts(outcome_codec.answer(outcome, self._events)):
            self._control.report(outcome_codec.REPORT, part=part, last=last)


async def _logged(event_type: str, data: Any) -> None:
    _log.debug("event", type=event_type, data=data)


def _with_limit(outcome: Outcome, memory_mb: int) -> Outcome:
    """Add the memory limit to the message of a MemoryError."""
    if not isinstance(outcome, Failed) or not outcome.failure.message.startswith(MemoryError.__name__):
        return outcome
    message = f"{outcome.failure.message} (the agent's memory_mb is {memory_mb})"
    return Failed(msgspec.structs.replace(outcome.failure, message=message))
