"""The facts of a run that are sent with its events to receivers, and a cache of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

if TYPE_CHECKING:
    from holdfast.events.relay.outbox import Outbox, OutboxEntry, RunRecord

_CACHED_MOST: Final = 10_000


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a run for receivers; ``trace`` and ``logger_context`` are the submitter's."""

    run_id: str
    queue: str
    agent: str = ""
    thread_id: str = ""
    tenant: str = ""
    client_id: str = ""
    project_id: str = ""
    trace: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    logger_context: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


class RunAddresses(msgspec.Struct, frozen=True):
    """The receivers of a run's events besides the Event API; ``push`` is JSON."""

    webhook: str = ""
    push: str = ""


class RunFactsCache:
    """The facts of the runs of one queue's partition."""

    def __init__(self, queue: str, outbox: Outbox) -> None:
        self.queue = queue
        self._outbox = outbox
        # The key has the submit time: a run that is submitted later under the same id is another run.
        self._cached: dict[tuple[str, str], RunFacts] = {}

    async def of(self, entry: OutboxEntry) -> RunFacts | None:
        """Return the facts of an entry's run; None if the run was removed."""
        cached = self._cached.get((entry.run_id, entry.submitted_at))
        if cached is not None:
            return cached
        record = await self._outbox.record(entry.run_id)
        return self.read(record)[0] if record else None

    def read(self, record: RunRecord) -> tuple[RunFacts, RunAddresses]:
        """Read a run's record, and cache its facts."""
        facts, addresses = read_run_facts(
            record.message,
            run_id=record.run_id,
            queue=self.queue,
            agent=record.agent,
            thread_id=record.thread_id,
            tenant=record.tenant,
        )
        if len(self._cached) >= _CACHED_MOST:
            del self._cached[next(iter(self._cached))]
        self._cached[record.run_id, record.submitted_at] = facts
        return facts, addresses


class _Message(msgspec.Struct, frozen=True):
    """The part of a run's message that receivers need; a field of the wrong type is ignored."""

    thread_id: Any = ""
    client_id: Any = ""
    project_id: Any = ""
    tenant: Any = ""
    webhook: Any = ""
    push: Any = None
    trace: Any = None
    logger_context: Any = None


def read_run_facts(
    message: bytes, *, run_id: str, queue: str, agent: str, thread_id: str, tenant: str
) -> tuple[RunFacts, RunAddresses]:
    """Read a run's facts and receivers from its record and its message, if that can be decoded."""
    fields = _decoded(message)
    trace = _mapping(fields.trace)
    facts = RunFacts(
        run_id=run_id,
        queue=queue,
        agent=agent,
        thread_id=_text(fields.thread_id) or thread_id,
        tenant=tenant or _text(fields.tenant),
        client_id=_text(fields.client_id),
        project_id=_text(fields.project_id),
        trace={name: value for name, value in trace.items() if isinstance(value, str)},
        logger_context=_mapping(fields.logger_context),
    )
    push = _mapping(fields.push)
    return facts, RunAddresses(_text(fields.webhook), msgspec.json.encode(push).decode() if push else "")


def _decoded(message: bytes) -> _Message:
    try:
        return msgspec.json.decode(message, type=_Message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _Message()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
