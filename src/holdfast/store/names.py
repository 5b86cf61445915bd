"""What runs, threads and steps are called in the database: any name a caller may think of fits an index."""

from __future__ import annotations

import hashlib

from holdfast.errors import InputError

LABEL_BYTES = 480
"""PostgreSQL indexes rows of up to 2,700 bytes; the widest of ours has a scope, a key and a run."""
KEY_BYTES = 1000


def label(text: str) -> str:
    """Return the name itself, or a short one with its hash if a database could not index it."""
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= LABEL_BYTES and _storable(text):
        return text
    head = text[:60].encode("utf-8", "replace").decode().replace("\0", "?")
    return f"{head}~{hashlib.sha256(raw).hexdigest()}"


def incarnation(run_id: str, submitted_ms: int) -> str:
    """Name one run of an id among those that had the same before; ids have no blanks."""
    return f"{run_id} {submitted_ms}"


def run_label(queue: str, run_id: str) -> str:
    """Name a run: two queues may each have a run of the same id."""
    return label(f"{queue}/{run_id}" if queue else run_id)


def scope_label(run: str, thread_id: str, tenant: str) -> str:
    """Name whose state it is: the thread's of that tenant, or the run's own."""
    if not thread_id:
        return label(f"run:{run}")
    # Tenants must not reach each other's threads by a slash in a name.
    owner = tenant.replace("%", "%25").replace("/", "%2F")
    return label(f"thread:{owner}/{thread_id}")


def thread_label(partition: str, scope: str) -> str:
    """Name a thread among the runs that have fences: no name of a queue has a blank."""
    return label(f"thread {partition}/{scope}")


def checked_key(key: str) -> str:
    """Return a key of the state, which is kept as it is; refuse one that no database takes."""
    if len(key.encode("utf-8", "surrogatepass")) > KEY_BYTES or not _storable(key):
        raise InputError(f"a key of the state has at most {KEY_BYTES} bytes of text, got {key[:100]!r}")
    return key


def _storable(text: str) -> bool:
    return "\0" not in text and (text.isascii() or not any("\ud800" <= each <= "\udfff" for each in text))
