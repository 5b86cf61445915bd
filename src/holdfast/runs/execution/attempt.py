"""One attempt, from a claimed run to what is settled: prepare, invoke under the lease, decide, write down."""

from __future__ import annotations

import contextlib
import dataclasses
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from holdfast.agents.context import Context, RunInfo, Signals
from holdfast.agents.deadlines import Deadlines
from holdfast.agents.failures import Failure, FailureClass, retry_delay
from holdfast.agents.invoke import Invocation
from holdfast.agents.logfields import read_log_fields
from holdfast.agents.memory import LocalMemory
from holdfast.agents.outcome import (
    Cancelled,
    Failed,
    Interrupted,
    Lost,
    Outcome,
    Succeeded,
    TimedOut,
    Yielded,
)
from holdfast.agents.spec import LONGEST_TIMEOUT_SECONDS
from holdfast.errors import InputError, LeaseLost, MalformedMessage, UnknownAgent
from holdfast.leases.trust import Trust
from holdfast.runs.execution.settle import Settlement
from holdfast.runs.message import decode_message, encode_value
from holdfast.runs.run import Envelope, RunFault, Status

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures
    from collections.abc import Awaitable, Callable

    from holdfast.agents.app import App
    from holdfast.agents.memory import Memory
    from holdfast.agents.spec import AgentSpec
    from holdfast.config import QueueSettings
    from holdfast.leases.keeper import Hold
    from holdfast.processes.attempts import Attempts
    from holdfast.runs.execution.claim import Claimed
    from holdfast.runs.execution.settle import Verdict

_encode = msgspec.json.Encoder().encode


class MemoryStore(Protocol):
    """What a run's memory is taken from."""

    def memory(
        self, *, run_id: str, thread_id: str, fence: int, owner: str, queue: str = "", tenant: str = ""
    ) -> Memory:
        """Return the memory of one attempt; nothing is read before it is used."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Workplace:
    """What every attempt of a worker shares."""

    app: App
    settings: QueueSettings
    executor: concurrent.futures.Executor
    draining: asyncio.Event
    owner: str = ""
    store: MemoryStore | None = None
    answer: Callable[[str, int], Awaitable[bytes | None]] | None = None
    """Looks up the n-th answer that a run was given."""
    attempts: Attempts | None = None
    """Where agents with isolation="process" run."""
    deadlines: Deadlines = dataclasses.field(default_factory=Deadlines)
    trusted_until: Callable[[], float] | None = None
    """Until when the lease of the whole process is trusted, if it has one: no run is trusted for longer."""


class Attempt(NamedTuple):
    """An agent ready to be run, and the rolling back of another's state that comes first."""

    invocation: Invocation
    undo: Callable[[], Awaitable[None]] | None = None


def prepare(
    place: Workplace,
    run: Claimed,
    emit: Callable[[str, Any], Awaitable[None]],
    trusted: Callable[[], float],
) -> Attempt | Failed:
    """Turn a claimed run into an invocation, or into the failure that it can't be one."""
    try:
        envelope = _read(run, place.settings)
        spec = place.app.get(run.agent)
        timeout = timeout_of(spec, envelope, place.settings)
    except MalformedMessage as exc:
        return Failed(Failure.because(FailureClass.MALFORMED, str(exc)))
    except UnknownAgent as exc:
        return Failed(Failure.because(FailureClass.UNKNOWN_AGENT, str(exc)))
    if run.attempt > attempts_of(spec, place.settings):
        return Failed(Failure.because(FailureClass.POISON, _poisonous(run)))
    if place.trusted_until is not None:
        trusted = partial(_earlier, trusted, place.trusted_until)  # guard: process-lease-trusted
    ctx = _context(place, run, envelope, _info(run, spec, envelope, timeout), emit, trusted)
    undo = partial(_undo, ctx, run.rollback) if run.rollback else None
    grace: float | None = place.settings.stop_grace_seconds
    if spec.isolation == "process":
        # No grace here: the process has it, and is killed when it is over. The run waits for that.
        spec, grace = _isolated(place, spec, run, envelope, trusted), None
    invocation = Invocation(
        spec,
        ctx,
        envelope.input,
        timeout,
        place.executor,
        grace_seconds=grace,  # guard: invocation-stop-grace
        deadlines=place.deadlines,
    )
    return Attempt(invocation, undo)


def _earlier(one: Callable[[], float], other: Callable[[], float]) -> float:
    return min(one(), other())


def log_context_of(place: Workplace, run: Claimed) -> dict[str, Any]:
    """What log lines carry of a run that could not be prepared: whatever can be read of it."""
    envelope = Envelope()
    if len(run.message) <= place.settings.max_payload_bytes:
        with contextlib.suppress(MalformedMessage):
            envelope = decode_message(run.message)
    return _info(run, place.app.agents.get(run.agent), envelope, 0.0).log_context()


def _info(run: Claimed, spec: AgentSpec | None, envelope: Envelope, timeout: float) -> RunInfo:
    said = envelope.logger_context
    if spec is not None and spec.log_fields:
        said = {**read_log_fields(spec.log_fields, envelope.input), **said}
    return RunInfo(
        run_id=run.run_id,
        agent_id=run.agent,
        thread_id=envelope.thread_id,
        attempt=run.attempt,
        fence=run.fence,
        deadline=datetime.now(UTC) + timedelta(seconds=timeout),
        metadata=envelope.metadata,
        trace=envelope.trace,
        log_fields=said,
        message_id=run.entry.decode(),
    )


def _context(
    place: Workplace,
    run: Claimed,
    envelope: Envelope,
    info: RunInfo,
    emit: Callable[[str, Any], Awaitable[None]],
    trusted: Callable[[], float],
) -> Context:
    return Context(
        info,
        emit,
        Signals(place.draining, Trust(trusted)),  # guard: run-context-trust
        # Not before it is used: most runs remember nothing, and making it is a part of a small run's cost.
        memory=partial(memory_of, place, run, envelope),
        answers=None if place.answer is None else partial(place.answer, run.run_id),
        store=place.store,
    )


def _isolated(
    place: Workplace, spec: AgentSpec, run: Claimed, envelope: Envelope, trusted: Callable[[], float]
) -> AgentSpec:
    """The same agent, called in a process of this attempt's own."""
    from holdfast.processes.attempts import Errand, isolated  # noqa: PLC0415 - most workers start no process

    owner, queue = place.owner, place.settings.name
    errand = Errand(
        id=f"{run.run_id}:{run.fence}",
        queue=queue,
        task={
            "queue": queue,
            "partition": place.settings.partition,  # guard: errand-partition
            "kept_as": run.kept_as,
            "owner": owner,
            "tenant": envelope.tenant,
        },
        grace_seconds=place.settings.stop_grace_seconds,
        trusted=trusted,
    )
    return isolated(spec, place.attempts, errand)


def memory_of(place: Workplace, run: Claimed, envelope: Envelope) -> Memory:
    """The memory of this attempt: the store's, if the worker has one."""
    if place.store is None:
        return LocalMemory()
    return place.store.memory(
        run_id=run.kept_as,
        thread_id=envelope.thread_id,
        fence=run.fence,
        owner=place.owner,
        queue=place.settings.name,
        tenant=envelope.tenant,
    )


async def _undo(ctx: Context, runs: tuple[str, ...]) -> None:
    for run in runs:
        await ctx.memory.rollback(run)


async def perform(hold: Hold, attempt: Attempt) -> Outcome:
    """Run the agent for as long as its lease is ours."""
    try:
        async with hold:
            if attempt.undo is not None:
                await attempt.undo()
            return await attempt.invocation.run()
    except LeaseLost:
        return Lost()


def decide(place: Workplace, run: Claimed, outcome: Outcome) -> Outcome:
    """Add what the agent could not know: whether and when a failure is tried again."""
    if not isinstance(outcome, Failed):
        return outcome
    spec = place.app.agents.get(run.agent)
    if run.attempt >= attempts_of(spec, place.settings):
        return outcome
    again = place.settings.retry_programming_errors
    if spec is not None and spec.retry_programming_errors is not None:
        again = spec.retry_programming_errors
    backoff = place.settings.backoff
    delay = retry_delay(outcome.failure, run.attempt, backoff, retry_programming_errors=again)
    return msgspec.structs.replace(outcome, retry_in=delay)


def settlement(
    hold: Hold,
    run: Claimed,
    outcome: Outcome,
    settings: QueueSettings,
    done: Callable[[Settlement, Verdict], None],
) -> Settlement:
    """Write an outcome down as what Redis is told; Lost is never settled."""
    lease = hold.lease
    match outcome:
        case Succeeded(result):
            return _succeeded(hold, run, result, settings, done)
        case Failed(failure, retry_in):
            return _failed(hold, run, failure, retry_in, done)
        case TimedOut(after):
            fault = RunFault("timed_out", f"agent {run.agent!r} did not end within {after:g} s")
            return _ended_badly(hold, Status.TIMED_OUT, fault, "timed_out", done)
        case Cancelled(reason):
            data = _encode({"reason": reason})
            value = _encode(RunFault("cancelled", reason))
            return Settlement(lease, Status.CANCELLED, value=value, data=data, done=done)
        case Interrupted():
            return _asked(hold, run, outcome, settings, done)
        case Yielded():
            return Settlement(lease, None, done=done)
        case Lost():
            raise AssertionError("a lost run must not be settled")


def _succeeded(
    hold: Hold,
    run: Claimed,
    result: Any,
    settings: QueueSettings,
    done: Callable[[Settlement, Verdict], None],
) -> Settlement:
    value = written_result(run.agent, result, settings.max_payload_bytes)
    if isinstance(value, Failure):
        return _failed(hold, run, value, None, done)
    return Settlement(hold.lease, Status.SUCCEEDED, "result", value, b"", done=done)


def written_result(agent: str, result: Any, limit: int) -> bytes | Failure:
    """Write a result as JSON, or say why that can't be; one from another process is written already."""
    what = f"result of agent {agent!r}"
    try:
        value = bytes(result) if isinstance(result, msgspec.Raw) else encode_value(result, what)
    except InputError as exc:
        return Failure.because(FailureClass.INVALID, str(exc))
    if len(value) > limit:
        size = f"{what} has {len(value)} bytes, more than max_payload_bytes = {limit}"
        return Failure.because(FailureClass.INVALID, f"{size}; store it elsewhere and return a reference")
    return value


def _asked(
    hold: Hold,
    run: Claimed,
    asked: Interrupted,
    settings: QueueSettings,
    done: Callable[[Settlement, Verdict], None],
) -> Settlement:
    if len(asked.value) > settings.max_payload_bytes:
        large = f"what an interrupt asks has {len(asked.value)} bytes, more than max_payload_bytes"
        return _failed(hold, run, Failure.because(FailureClass.INVALID, large), None, done)
    data = b'{"index":%d,"value":%b}' % (asked.index, asked.value)
    reason = str(asked.index)
    return Settlement(hold.lease, Status.INTERRUPTED, "interrupt", asked.value, data, reason, done=done)


def _failed(
    hold: Hold,
    run: Claimed,
    failure: Failure,
    retry_in: float | None,
    done: Callable[[Settlement, Verdict], None],
) -> Settlement:
    fault = RunFault(failure.kind.value, failure.message, failure.traceback)
    if retry_in is None:
        return _ended_badly(hold, Status.FAILED, fault, failure.kind.value, done)
    data = _encode({"error": _told(fault), "attempt": run.attempt, "retry_in": round(retry_in, 3)})
    delay_ms = int(retry_in * 1000)
    return Settlement(
        hold.lease,
        Status.DELAYED,
        value=_encode(fault),
        data=data,
        reason=fault.kind,
        delay_ms=delay_ms,
        fault=fault,
        done=done,
    )


def _ended_badly(
    hold: Hold, status: Status, fault: RunFault, reason: str, done: Callable[[Settlement, Verdict], None]
) -> Settlement:
    data = _encode({"error": _told(fault)})
    return Settlement(
        hold.lease, status, value=_encode(fault), data=data, reason=reason, fault=fault, done=done
    )


def _told(fault: RunFault) -> RunFault:
    """What followers of the feed hear: the traceback is for operators and stays in the record."""
    return RunFault(fault.kind, fault.message)


def attempts_of(spec: AgentSpec | None, settings: QueueSettings) -> int:
    """How many attempts a run of this agent has."""
    return settings.max_attempts if spec is None or spec.max_attempts is None else spec.max_attempts


def timeout_of(spec: AgentSpec, envelope: Envelope, settings: QueueSettings) -> float:
    """The run's own timeout, else its agent's, else the queue's."""
    own = envelope.timeout_seconds  # guard: run-timeout
    if own is None:
        # guard: agent-or-queue-timeout
        return settings.timeout_seconds if spec.timeout_seconds is None else spec.timeout_seconds
    if not 0 < own <= LONGEST_TIMEOUT_SECONDS:
        raise MalformedMessage(f"timeout_seconds must be more than 0 and at most a year, got {own}")
    return own


def _read(run: Claimed, settings: QueueSettings) -> Envelope:
    """Read the message; what other producers wrote was not checked by anybody before."""
    if not run.agent:
        raise MalformedMessage("the entry names no agent (agent_id), and the queue has no default_agent here")
    size, most = len(run.message), settings.max_payload_bytes
    if size > most:
        raise MalformedMessage(f"message_data has {size} bytes, more than max_payload_bytes = {most}")
    envelope = decode_message(run.message)
    if envelope.action == "RESUME":  # an answer to a run that waits never becomes a run: the claim takes it
        told = f"no run {run.run_id!r} waits for an answer (action RESUME)"
        raise MalformedMessage(f"{told}: correlation_id must be the id of an interrupted run of this queue")
    if envelope.action != "START":
        raise MalformedMessage(f"action {envelope.action[:40]!r} is not known: only START and RESUME are")
    return envelope


def _poisonous(run: Claimed) -> str:
    lost = run.attempt - 1
    return f"it was started {lost} times without an answer: it may be killing its workers, so it is given up"
