"""What errors say of a run's state."""

from __future__ import annotations

from holdfast.runs.run import Status, status_phrase


def test_errors_name_the_state_of_a_run_in_a_sentence():
    said = {status: status_phrase(status) for status in Status}
    assert said == {
        Status.QUEUED: "is queued",
        Status.DELAYED: "is delayed",
        Status.RUNNING: "is running",
        Status.INTERRUPTED: "is interrupted",
        Status.SUCCEEDED: "has already succeeded",
        Status.FAILED: "has already failed",
        Status.TIMED_OUT: "has already timed out",
        Status.CANCELLED: "was cancelled",
    }
    assert status_phrase("damaged") == "is damaged"
