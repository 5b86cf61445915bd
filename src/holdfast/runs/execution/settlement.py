"""The settlement of an attempt, as a value: pure functions make it from an outcome, the settler writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.agents.failures import Failure, FailureClass, retry_delay
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
from holdfast.errors import InputError
from holdfast.leases.lease import Lease
from holdfast.runs.message import encode_value
from holdfast.runs.run import RunFault, Status

if TYPE_CHECKING:
    from holdfast.agents.spec import AgentSpec
    from holdfast.config import QueueSettings
    from holdfast.runs.execution.claim import Claimed

_encode = msgspec.json.Encoder().encode


class Settlement(msgspec.Struct, frozen=True):
    """How one attempt ended; without a ``status`` its run is handed back."""

    lease: Lease
    status: Status | None
    field: str = "error"
    value: bytes = b""
    data: bytes = b"{}"
    """The data of its event; empty if the data is the value, under the name of ``field``."""
    reason: str = ""
    delay_ms: int = 0
    fault: RunFault | None = None


def with_retry(outcome: Outcome, run: Claimed, spec: AgentSpec | None, settings: QueueSettings) -> Outcome:
    """Return the outcome; a failure gets the delay of its retry, if the run is retried."""
    if not isinstance(outcome, Failed) or run.attempt >= attempts_of(spec, settings):
        return outcome
    again = settings.retry_programming_errors
    if spec is not None and spec.retry_programming_errors is not None:
        again = spec.retry_programming_errors
    delay = retry_delay(outcome.failure, run.attempt, settings.backoff, retry_programming_errors=again)
    return msgspec.structs.replace(outcome, retry_in=delay)


def attempts_of(spec: AgentSpec | None, settings: QueueSettings) -> int:
    """Return how many attempts a run of this agent has."""
    return settings.max_attempts if spec is None or spec.max_attempts is None else spec.max_attempts


def settlement_of(outcome: Outcome, run: Claimed, lease: Lease, settings: QueueSettings) -> Settlement:
    """Make the settlement of an outcome; a result that can't be encoded makes it a failure."""
    match outcome:
        case Succeeded(result):
            return _succeeded(result, run, lease, settings)
        case Failed(failure, retry_in):
            return _failed(failure, retry_in, run, lease)
        case TimedOut(after):
            text = f"agent {run.agent!r} did not end within {after:g} s"
            return _ended_badly(lease, Status.TIMED_OUT, RunFault("timed_out", text))
        case Cancelled(reason):
            fault = RunFault("cancelled", reason)
            return Settlement(lease, Status.CANCELLED, value=_encode(fault), data=_encode({"reason": reason}))
        case Interrupted():
            return _interrupted(outcome, run, lease, settings)
        case Yielded() | Lost():
            # A lost run is handed back too: after a mere outage of Redis, its fence is still the current one.
            return Settlement(lease, None)


def _succeeded(result: Any, run: Claimed, lease: Lease, settings: QueueSettings) -> Settlement:
    value = written_result(run.agent, result, settings.max_payload_bytes)
    if isinstance(value, Failure):
        return _failed(value, None, run, lease)
    return Settlement(lease, Status.SUCCEEDED, "result", value, b"")


def written_result(agent: str, result: Any, limit: int) -> bytes | Failure:
    """Encode a result as JSON, or return the failure; a result from another process is encoded already."""
    what = f"result of agent {agent!r}"
    try:
        value = bytes(result) if isinstance(result, msgspec.Raw) else encode_value(result, what)
    except InputError as exc:
        return Failure.because(FailureClass.INVALID, str(exc))
    if len(value) > limit:
        size = f"{what} has {len(value)} bytes, more than max_payload_bytes = {limit}"
        return Failure.because(FailureClass.INVALID, f"{size}; store it elsewhere and return a reference")
    return value


def _interrupted(interrupted: Interrupted, run: Claimed, lease: Lease, settings: QueueSettings) -> Settlement:
    if len(interrupted.value) > settings.max_payload_bytes:
        size = f"the value of an interrupt has {len(interrupted.value)} bytes, more than max_payload_bytes"
        return _failed(Failure.because(FailureClass.INVALID, size), None, run, lease)
    data = b'{"index":%d,"value":%b}' % (interrupted.index, interrupted.value)
    return Settlement(lease, Status.INTERRUPTED, "interrupt", interrupted.value, data, str(interrupted.index))


def _failed(failure: Failure, retry_in: float | None, run: Claimed, lease: Lease) -> Settlement:
    fault = RunFault(failure.kind.value, failure.message, failure.traceback)
    if retry_in is None:
        return _ended_badly(lease, Status.FAILED, fault)
    data = {"error": _public(fault), "attempt": run.attempt, "retry_in": round(retry_in, 3)}
    return Settlement(
        lease,
        Status.DELAYED,
        value=_encode(fault),
        data=_encode(data),
        reason=fault.kind,
        delay_ms=int(retry_in * 1000),
        fault=fault,
    )


def _ended_badly(lease: Lease, status: Status, fault: RunFault) -> Settlement:
    """Make the settlement of a run that becomes a dead letter, with the kind of its fault as reason."""
    data = _encode({"error": _public(fault)})
    return Settlement(lease, status, value=_encode(fault), data=data, reason=fault.kind, fault=fault)


def _public(fault: RunFault) -> RunFault:
    """Return the fault without its traceback, which is for operators: every client reads the feed."""
    return RunFault(fault.kind, fault.message)
