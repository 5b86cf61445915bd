"""Every Redis key Holdfast uses, by name: nobody else builds one.

All keys of one queue share one hash tag: a queue lives in one cluster slot and every script sees all of it.
"""

from __future__ import annotations

import dataclasses
import re

LANES = ("returned", "high", "normal", "low")
"""The lanes of a queue in the order they are served; ``returned`` holds runs that come back."""

_TAG = re.compile(r"\{[^}]+\}")


@dataclasses.dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys of one queue; ``stream`` is the normal lane and keeps the plain name."""

    stream: str
    high: str
    low: str
    returned: str
    delayed: str
    deadletter: str
    runs: str
    run_prefix: str
    idempotency_prefix: str
    gate: str
    control: str
    cleanup: str
    turn: str

    @classmethod
    def of(cls, name: str, *, prefix: str = "", deadletter: str = "") -> QueueKeys:
        """Derive the keys of the queue ``name``; ``deadletter`` overrides that one name."""
        stream = prefix + name
        tag = stream if _TAG.search(stream) else "{" + stream + "}"
        return cls(
            stream=stream,
            high=f"{tag}:high",
            low=f"{tag}:low",
            returned=f"{tag}:returned",
            delayed=f"{tag}:delayed",
            deadletter=prefix + deadletter if deadletter else f"{tag}:deadletter",
            runs=f"{tag}:runs",
            run_prefix=f"{tag}:run:",
            idempotency_prefix=f"{tag}:idempotency:",
            gate=f"{tag}:gate",
            control=f"{tag}:control",
            cleanup=f"{tag}:cleanup-leader",
            turn=f"{tag}:turn",
        )

    @property
    def lanes(self) -> tuple[str, str, str, str]:
        """The four streams, in the order of ``LANES``."""
        return (self.returned, self.high, self.stream, self.low)

    def run(self, run_id: str) -> str:
        """The hash of one run."""
        return self.run_prefix + run_id

    def feed(self, run_id: str) -> str:
        """The stream of one run's events."""
        return f"{self.run_prefix}{run_id}:events"


def member_key(kind: str, name: str, *, prefix: str = "") -> str:
    """The record of one live process."""
    return f"{prefix}member:{kind}:{name}"


def members_key(*, prefix: str = "") -> str:
    """The index of member records, by expiry."""
    return f"{prefix}members"


@dataclasses.dataclass(frozen=True, slots=True)
class KeyDoc:
    """One row of the data model: what a key holds and how long it stays."""

    pattern: str
    type: str
    stays: str
    holds: str


DATA_MODEL = (
    KeyDoc("agent-queue", "stream", "permanent", "the normal lane; group `agent-queue-group`"),
    KeyDoc("{agent-queue}:high", "stream", "permanent", "runs submitted with priority high"),
    KeyDoc("{agent-queue}:low", "stream", "permanent", "runs submitted with priority low"),
    KeyDoc(
        "{agent-queue}:returned",
        "stream",
        "permanent",
        "runs that come back: handed back, reclaimed, retried; served first",
    ),
    KeyDoc("{agent-queue}:delayed", "zset", "permanent", "run id by due time (ms): delayed and retried runs"),
    KeyDoc(
        "{agent-queue}:deadletter",
        "stream",
        "permanent",
        "runs given up: reason, status, attempts, error, message_data",
    ),
    KeyDoc(
        "{agent-queue}:runs", "zset", "permanent", "index of runs by submit time (ms); swept by the janitor"
    ),
    KeyDoc(
        "{agent-queue}:run:<id>",
        "hash",
        "while live, then retention_seconds",
        "status, agent, thread, lane, entry, fence, attempt, owner, submitted_at, started_at, finished_at, "
        "message (the envelope with the input), result, error",
    ),
    KeyDoc(
        "{agent-queue}:run:<id>:events",
        "stream",
        "as its run",
        "the feed: type and data (JSON); the time is in the id",
    ),
    KeyDoc(
        "{agent-queue}:idempotency:<key>",
        "string",
        "idempotency_ttl_seconds",
        "the run that this key stands for",
    ),
    KeyDoc(
        "{agent-queue}:gate",
        "hash",
        "until resumed",
        "mode (paused or draining), reason, since; absent = open",
    ),
    KeyDoc("{agent-queue}:turn", "string", "one turn", "whose turn it is to look for dead workers' runs"),
    KeyDoc(
        "{agent-queue}:control",
        "channel",
        "-",
        "`cancel <run id> <reason>` and `gate`, for workers that must know now",
    ),
    KeyDoc(
        "{agent-queue}:cleanup-leader",
        "hash",
        "lock_ttl_seconds",
        "who runs the janitor's passes for this queue",
    ),
    KeyDoc("members", "zset", "permanent", "index of live processes by expiry; swept by its readers"),
    KeyDoc(
        "member:<kind>:<name>",
        "hash",
        "three heartbeats",
        "one live process: kind, name, host, pid, version, since, load",
    ),
)


def keys_table() -> str:
    """Render the data model as a markdown table."""
    rows = [f"| `{doc.pattern}` | {doc.type} | {doc.stays} | {doc.holds} |" for doc in DATA_MODEL]
    return "\n".join(["| key | type | stays | holds |", "|---|---|---|---|", *rows]) + "\n"
