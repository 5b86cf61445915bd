"""A run's record, which is a hash in Redis, read as a run.

Reading never fails: a field that was overwritten with an invalid value is read as if it were missing.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import MalformedMessage
from holdfast.runs.message import decode_message
from holdfast.runs.run import Envelope, Run, RunFault, Status
from holdfast.runs.scope import shown_limit, unscoped

if TYPE_CHECKING:
    from collections.abc import Mapping

_STATUSES = {status.value.encode(): status for status in Status}
_LONGEST_COUNT = 16  # digits, as in attempt.lua


class Record:
    """The fields of a run's hash, decoded."""

    def __init__(self, fields: Mapping[bytes, bytes]) -> None:
        self._fields = fields

    def text(self, name: bytes) -> str:
        """Return a field's text; empty if there is none."""
        return self._fields.get(name, b"").decode(errors="replace")

    def raw(self, name: bytes) -> bytes:
        """Return a field as it is; empty if there is none."""
        return self._fields.get(name, b"")

    def number(self, name: bytes) -> int:
        """Return a field's number; 0 if it is not a valid one."""
        return counted(self.raw(name))

    def seconds(self, name: bytes) -> float:
        """Return a field's time in seconds since the epoch; 0 = not yet."""
        return self.number(name) / 1000

    @property
    def status(self) -> Status | None:
        """The run's status; None if the record has no valid one."""
        return _STATUSES.get(self.raw(b"status"))

    @property
    def attempt(self) -> int:
        """The run's attempt; the first is not stored: a run with a fence has had it."""
        written = self.raw(b"attempt")
        return counted(written) if is_count(written) else int(self.number(b"fence") > 0)

    @cached_property
    def envelope(self) -> Envelope:
        """The submitted envelope; a message that can't be decoded is read as one without input."""
        try:
            return decode_message(self.raw(b"message"))
        except MalformedMessage:
            return Envelope(input=None)

    @property
    def tenant(self) -> str:
        """The tenant of the run."""
        return self.text(b"tenant") or self.envelope.tenant

    @property
    def thread_id(self) -> str:
        """The id of its thread, as its tenant named it."""
        return unscoped(self.tenant, self.text(b"thread")) or self.envelope.thread_id


def read_run(run_id: str, queue: str, fields: Mapping[bytes, bytes]) -> Run | None:
    """Make a run from its hash; None without a valid status."""
    record = Record(fields)
    status = record.status
    if status is None:
        return None
    return Run(
        id=run_id,
        queue=queue,
        status=status,
        agent=record.text(b"agent"),
        thread_id=record.thread_id,
        lane=record.text(b"lane"),
        entry=record.text(b"entry"),
        attempt=record.attempt,
        fence=record.number(b"fence"),
        owner=record.text(b"owner"),
        submitted_at=record.seconds(b"submitted_at"),
        started_at=record.seconds(b"started_at"),
        finished_at=record.seconds(b"finished_at"),
        due_at=record.seconds(b"due_at"),
        cancel=record.text(b"cancel"),
        tenant=record.tenant,
        parked=shown_limit(record.tenant, record.text(b"parked")),
        parent=record.text(b"parent"),
        interrupt=value_of(record.raw(b"interrupt")),
        input=record.envelope.input,
        metadata=record.envelope.metadata,
        result=value_of(record.raw(b"result")),
        error=fault_of(record.raw(b"error")),
    )


def is_count(digits: bytes) -> bool:
    """Whether these bytes are a number that Holdfast may have written."""
    return digits.isdigit() and len(digits) <= _LONGEST_COUNT


def counted(digits: bytes) -> int:
    """Return a stored number; 0 for an overwritten value, so that it does not end the worker."""
    return int(digits) if is_count(digits) else 0  # guard: damaged-time


def value_of(data: bytes) -> Any:
    """Decode a stored JSON value; None if there is none, or it can't be decoded."""
    try:
        return msgspec.json.decode(data) if data else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def fault_of(data: bytes) -> RunFault | None:
    """Decode the fault of a run; bytes that can't be decoded become its message."""
    try:
        return msgspec.json.decode(data, type=RunFault | None) if data else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return RunFault(message=data.decode(errors="replace"))
