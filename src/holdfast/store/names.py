"""The names of runs, threads and steps in the database: any name of a caller is made to fit an index."""

from __future__ import annotations

import hashlib

from holdfast.errors import InputError

LABEL_BYTES = 480
"""PostgreSQL indexes rows of up to 2,700 bytes; the widest row has a scope, a key and a run."""
KEY_BYTES = 1000


def label(text: str) -> str:
    """Return the name itself, or a short one with its hash if a database can't index it."""
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= LABEL_BYTES and _storable(text):
        return text
    head = text[:60].encode("utf-8", "replace").decode().replace("\0", "?")
    return f"{head}~{hashlib.sha256(raw).hexdigest()}"


def incarnation(run_id: str, submitted_ms: int) -> str:
    """Return the name of a run that distinguishes it from earlier runs of the same id; ids have no blanks."""
    return f"{run_id} {submitted_ms}"


def run_label(queue: str, run_id: str) -> str:
    """Return the name of a run: two queues may each have a run of the same id."""
    return label(f"{queue}/{run_id}" if queue else run_id)


def scope_label(run: str, thread_id: str, tenant: str) -> str:
    """Return the name of a state: that of a tenant's thread, or that of the run."""
    if not thread_id:
        return label(f"run:{run}")
    # A slash in a tenant's name must not reach the threads of another tenant.
    owner = tenant.replace("%", "%25").replace("/", "%2F")
    return label(f"thread:{owner}/{thread_id}")


def thread_label(partition: str, scope: str) -> str:
    """Name a thread among the runs that have fences: no name of a queue has a blank."""
    return label(f"thread {partition}/{scope}")


def checked_key(key: str) -> str:
    """Return a key of the state; raise InputError for one that no database accepts."""
    if len(key.encode("utf-8", "surrogatepass")) > KEY_BYTES or not _storable(key):
        raise InputError(f"a key of the state has at most {KEY_BYTES} bytes of text, got {key[:100]!r}")
    return key


def _storable(text: str) -> bool:
    return "\0" not in text and (text.isascii() or not any("\ud800" <= each <= "\udfff" for each in text))
