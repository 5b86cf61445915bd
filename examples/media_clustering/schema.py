"""The message: one clustering job, as every producer writes it. What does not fit is never tried again."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, cast
from uuid import UUID, uuid4

import msgspec

from holdfast import MalformedMessage

from .tracing import current_trace_id

_BASE32 = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_NESTED = ("image_ids", "metadata")
_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}\Z")

Ulid = Annotated[str, msgspec.Meta(pattern=r"\A[0-7][0-9A-HJKMNP-TV-Z]{25}\Z")]


class Metadata(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who emitted the job, and in which trace."""

    emitted_at: datetime
    source: str
    trace_id: str = ""


class Job(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cluster these images of this pet."""

    job_id: Ulid
    pet_id: UUID
    image_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=10_000)]
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    force: bool = False
    quality_score: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    metadata: Metadata

    @property
    def trace_id(self) -> str:
        """The trace it belongs to; empty if it names none that can be one."""
        return self.metadata.trace_id if _TRACE_ID.match(self.metadata.trace_id) else ""


def read_job(message: Any) -> Job:
    """Read a job, from JSON or from the flat fields of a plain ``XADD``; else MalformedMessage says why."""
    if not isinstance(message, Mapping):
        raise MalformedMessage(f"a job is an object, got {type(message).__name__}")
    try:
        # Fields of a stream are text: "0.95" and "false" are read as what the schema wants there.
        return msgspec.convert(_unfolded(cast("Mapping[str, Any]", message)), Job, strict=False)
    except (msgspec.ValidationError, msgspec.DecodeError) as exc:
        raise MalformedMessage(f"not a clustering job: {exc}") from exc


def _unfolded(message: Mapping[str, Any]) -> dict[str, Any]:
    """Open up what a stream's fields can hold only as text: lists and objects, as JSON."""
    # The id that the queue knows a run by may stand beside the job's own fields.
    fields = {key: value for key, value in message.items() if key not in {"correlation_id", "task_id"}}
    for name in _NESTED:
        if isinstance(value := fields.get(name), str):
            fields[name] = msgspec.json.decode(value)
    return fields


def new_job(reason: str = "image ingested", *, images: int = 3, trace_id: str = "") -> dict[str, Any]:
    """Make a job as the auth-service does when images arrive; it names the trace of the current span."""
    return {
        "job_id": ulid(),
        "pet_id": str(uuid4()),
        "image_ids": [str(uuid4()) for _ in range(images)],
        "reason": reason,
        "force": False,
        "quality_score": 0.95,
        "metadata": {
            "emitted_at": datetime.now(UTC).isoformat(),
            "source": "auth-service",
            "trace_id": trace_id or current_trace_id(),
        },
    }


def flat(job: Mapping[str, Any]) -> dict[str, str]:
    """Write a job as the fields of a stream entry: ``XADD stream * job_id … pet_id … image_ids '[…]' …``."""
    return {
        key: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for key, value in job.items()
    }


def ulid() -> str:
    """A sortable id: 48 bits of time, 80 of chance, in Crockford's base 32."""
    number = time.time_ns() // 1_000_000 << 80 | secrets.randbits(80)
    return "".join(_BASE32[number >> shift & 31] for shift in range(125, -1, -5))
