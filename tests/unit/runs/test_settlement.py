"""How an attempt ended is decided by pure functions: no Redis, no worker, no clock."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.agents.failures import Failure, FailureClass
from holdfast.agents.outcome import Cancelled, Failed, Interrupted, Lost, Succeeded, TimedOut, Yielded
from holdfast.config import QueueSettings
from holdfast.runs.execution.claim import Claimed
from holdfast.runs.execution.settlement import settlement_of, with_retry
from holdfast.runs.run import Status

SETTINGS = QueueSettings(max_attempts=3, max_payload_bytes=20)
FAILURE = Failure(FailureClass.SERVER, "no", traceback="Traceback: in secret.py")


def run(attempt: int = 1) -> Claimed:
    return Claimed("r", 7, attempt, 0, "echo", b"")


@pytest.mark.parametrize(
    ("outcome", "status", "field", "reason"),
    [
        (Succeeded(1), Status.SUCCEEDED, "result", ""),
        (Succeeded(object()), Status.FAILED, "error", "invalid"),
        (Succeeded("longer than twenty bytes"), Status.FAILED, "error", "invalid"),
        (Failed(FAILURE), Status.FAILED, "error", "server"),
        (Failed(FAILURE, 1.5), Status.DELAYED, "error", "server"),
        (TimedOut(2.0), Status.TIMED_OUT, "error", "timed_out"),
        (Cancelled("enough"), Status.CANCELLED, "error", ""),
        (Interrupted(2, b'"really?"'), Status.INTERRUPTED, "interrupt", "2"),
        (Interrupted(0, b"[" + b"0," * 20 + b"0]"), Status.FAILED, "error", "invalid"),
        (Yielded("the worker is shutting down"), None, "error", ""),
        (Lost(), None, "error", ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_outcome_has_its_settlement(outcome, status, field, reason):
    claimed = run()
    lease = claimed.lease("w")
    settlement = settlement_of(outcome, claimed, lease, SETTINGS)
    assert (settlement.status, settlement.field, settlement.reason) == (status, field, reason)
    assert settlement.lease is lease


def test_a_traceback_is_kept_in_the_record_and_not_sent_to_followers():
    settlement = settlement_of(Failed(FAILURE), run(), run().lease("w"), SETTINGS)
    assert "secret.py" in settlement.value.decode()
    assert "secret.py" not in settlement.data.decode()


def test_a_failure_is_tried_again_until_the_attempts_are_used_up():
    first = with_retry(Failed(FAILURE), run(2), None, SETTINGS)
    assert isinstance(first, Failed)
    assert first.retry_in is not None
    settlement = settlement_of(first, run(2), run(2).lease("w"), SETTINGS)
    assert settlement.delay_ms == int(first.retry_in * 1000)
    assert msgspec.json.decode(settlement.data)["attempt"] == 2
    assert with_retry(Failed(FAILURE), run(3), None, SETTINGS) == Failed(FAILURE)


def test_only_failures_are_tried_again():
    for outcome in (Succeeded(1), TimedOut(1.0), Cancelled("enough"), Yielded("later"), Lost()):
        assert with_retry(outcome, run(), None, SETTINGS) is outcome
