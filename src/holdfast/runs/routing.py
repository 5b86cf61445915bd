"""Which partition of its queue a run goes to: pure, and the same in every process with the same number.

Runs that must stay in order, or be found again, are routed by a key; all others are spread evenly.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

from holdfast.runs.scope import scoped

if TYPE_CHECKING:
    from holdfast.runs.run import Submission

_MULTIPLIER: Final = 2862933555777941757
_WORD: Final = 2**64
_HALF: Final = 2**31
_STAMP = re.compile(r"[0-9a-f]{2}\Z")


def key_of(submission: Submission) -> str:
    """Return the routing key: thread, else concurrency key, else idempotency key, else run id; may be empty.

    A run that is submitted twice must go to the same partition, or the first one would not be found there.
    """
    tenant = submission.tenant
    if submission.thread_id:  # guard: thread-one-partition
        return f"thread:{scoped(tenant, submission.thread_id)}"
    if submission.concurrency_key:
        return f"key:{scoped(tenant, submission.concurrency_key)}"
    if submission.idempotency_key:
        return f"idempotency:{scoped(tenant, submission.idempotency_key)}"
    return f"run:{submission.run_id}" if submission.run_id else ""  # guard: run-id-one-partition


def partition_of(key: str, count: int) -> int:
    """Return the partition of a key among ``count``.

    With one more partition, one key of ``count`` + 1 moves, and only to the new one (jump consistent hash).
    """
    if count == 1:
        return 0
    seed = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")
    found, following = 0, 0
    while following < count:
        found = following
        seed = (seed * _MULTIPLIER + 1) % _WORD
        following = int((found + 1) * (_HALF / ((seed >> 33) + 1)))
    return found


def stamped(run_id: str, partition: int) -> str:
    """Return a new run's id with its partition in the last two digits, where readers search first."""
    return f"{run_id[:-2]}{partition:02x}"


def hint_of(run_id: str) -> int | None:
    """Return the partition that an id made by ``stamped`` has; for another id it may be any number."""
    return int(run_id[-2:], 16) if _STAMP.search(run_id) else None
