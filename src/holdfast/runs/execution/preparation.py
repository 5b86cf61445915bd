"""A claimed run becomes the invocation of its agent, or a failure if that is not possible."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.agents.context import Context, RunInfo, Signals
from holdfast.agents.failures import Failure, FailureClass
from holdfast.agents.invoke import Invocation
from holdfast.agents.logfields import read_log_fields
from holdfast.agents.memory import LocalMemory
from holdfast.agents.outcome import Failed
from holdfast.agents.spec import LONGEST_TIMEOUT_SECONDS
from holdfast.errors import MalformedMessage, UnknownAgent
from holdfast.leases.trust import Trust
from holdfast.runs.execution.settlement import attempts_of
from holdfast.runs.message import decode_message
from holdfast.runs.run import Envelope

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.agents.memory import Memory
    from holdfast.agents.spec import AgentSpec
    from holdfast.config import QueueSettings
    from holdfast.runs.execution.attempt import AttemptResources
    from holdfast.runs.execution.claim import Claimed


def prepare(
    resources: AttemptResources,
    run: Claimed,
    emit: Callable[[str, Any], Awaitable[None]],
    trusted_until: Callable[[], float],
) -> Invocation | Failed:
    """Make the invocation of a claimed run, whose lease is trusted until ``trusted_until()``."""
    settings = resources.settings
    try:
        envelope = _read(run, settings)
        spec = resources.app.get(run.agent)
        timeout = _timeout_of(spec, envelope, settings)
    except MalformedMessage as exc:
        return Failed(Failure.because(FailureClass.MALFORMED, str(exc)))
    except UnknownAgent as exc:
        return Failed(Failure.because(FailureClass.UNKNOWN_AGENT, str(exc)))
    if run.attempt > attempts_of(spec, settings):
        return Failed(Failure.because(FailureClass.POISON, _poisonous(run)))
    if resources.trusted_until is not None:
        # guard: process-lease-trusted
        trusted_until = partial(_earlier, trusted_until, resources.trusted_until)
    info = _info(run, spec, envelope, timeout)
    ctx = Context(
        info,
        emit,
        Signals(resources.draining, Trust(trusted_until)),  # guard: run-context-trust
        # Made when it is first used: most runs use no memory, and making it is a part of a small run's cost.
        memory=partial(_memory_of, resources, run, envelope),
        answers=None if resources.answer is None else partial(resources.answer, run.run_id),
        store=resources.store,
    )
    grace: float | None = settings.stop_grace_seconds
    if spec.isolation == "process":
        # Its process gets the grace and is killed after it; the run waits until the process has ended.
        spec, grace = _isolated(resources, spec, run, envelope, trusted_until), None
    return Invocation(
        spec,
        ctx,
        envelope.input,
        timeout,
        resources.threads,
        grace_seconds=grace,  # guard: invocation-stop-grace
        deadlines=resources.deadlines,
    )


def log_context_of(resources: AttemptResources, run: Claimed) -> dict[str, Any]:
    """Return the log fields of a run without an invocation, as far as its message can be decoded."""
    envelope = Envelope()
    if len(run.message) <= resources.settings.max_payload_bytes:
        with contextlib.suppress(MalformedMessage):
            envelope = decode_message(run.message)
    return _info(run, resources.app.agents.get(run.agent), envelope, 0.0).log_context()


def _read(run: Claimed, settings: QueueSettings) -> Envelope:
    """Decode and validate the message: an entry that a producer added with XADD was not validated before."""
    if not run.agent:
        raise MalformedMessage("the entry names no agent (agent_id), and the queue has no default_agent here")
    size, limit = len(run.message), settings.max_payload_bytes
    if size > limit:
        raise MalformedMessage(f"message_data has {size} bytes, more than max_payload_bytes = {limit}")
    envelope = decode_message(run.message)
    if envelope.action == "RESUME":  # the claim script has consumed it if an interrupted run has this id
        missing = f"no run {run.run_id!r} waits for an answer (action RESUME)"
        raise MalformedMessage(
            f"{missing}: correlation_id must be the id of an interrupted run of this queue"
        )
    if envelope.action != "START":
        raise MalformedMessage(f"action {envelope.action[:40]!r} is not known: only START and RESUME are")
    return envelope


def _timeout_of(spec: AgentSpec, envelope: Envelope, settings: QueueSettings) -> float:
    """Return the run's own timeout, else its agent's, else the queue's."""
    own = envelope.timeout_seconds  # guard: run-timeout
    if own is None:
        # guard: agent-or-queue-timeout
        return settings.timeout_seconds if spec.timeout_seconds is None else spec.timeout_seconds
    if not 0 < own <= LONGEST_TIMEOUT_SECONDS:
        raise MalformedMessage(f"timeout_seconds must be more than 0 and at most a year, got {own}")
    return own


def _poisonous(run: Claimed) -> str:
    lost = run.attempt - 1
    return f"it was started {lost} times and never settled: it may be killing its workers, so it is given up"


def _earlier(one: Callable[[], float], other: Callable[[], float]) -> float:
    return min(one(), other())


def _info(run: Claimed, spec: AgentSpec | None, envelope: Envelope, timeout: float) -> RunInfo:
    log_fields = envelope.logger_context
    if spec is not None and spec.log_fields:
        log_fields = {**read_log_fields(spec.log_fields, envelope.input), **log_fields}
    return RunInfo(
        run_id=run.run_id,
        agent_id=run.agent,
        thread_id=envelope.thread_id,
        attempt=run.attempt,
        fence=run.fence,
        deadline=datetime.now(UTC) + timedelta(seconds=timeout),
        metadata=envelope.metadata,
        trace=envelope.trace,
        log_fields=log_fields,
        message_id=run.entry.decode(),
    )


def _memory_of(resources: AttemptResources, run: Claimed, envelope: Envelope) -> Memory:
    """Return the memory of this attempt, which is in the store if the worker has one."""
    if resources.store is None:
        return LocalMemory()
    return resources.store.memory(
        run_id=run.kept_as,
        thread_id=envelope.thread_id,
        fence=run.fence,
        owner=resources.owner,
        queue=resources.settings.name,
        tenant=envelope.tenant,
        partition=resources.settings.partition,  # guard: thread-of-its-partition
        generation=run.generation,
    )


def _isolated(
    resources: AttemptResources,
    spec: AgentSpec,
    run: Claimed,
    envelope: Envelope,
    trusted_until: Callable[[], float],
) -> AgentSpec:
    """Return the same agent, called in a separate process for this attempt."""
    from holdfast.processes.attempts import Errand, isolated  # noqa: PLC0415 - most workers start no process

    settings = resources.settings
    errand = Errand(
        id=f"{run.run_id}:{run.fence}",
        queue=settings.name,
        task={
            "queue": settings.name,
            "partition": settings.partition,  # guard: errand-partition
            "kept_as": run.kept_as,
            "owner": resources.owner,
            "tenant": envelope.tenant,
            "generation": run.generation,
        },
        grace_seconds=settings.stop_grace_seconds,
        trusted=trusted_until,
    )
    return isolated(spec, resources.processes, errand)
