"""Wait until an entry is delivered, then claim its run, and other waiting runs, in one script call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.clock import boot_time
from holdfast.leases.lease import Lease
from holdfast.redis.command import command
from holdfast.redis.groups import group_is_missing
from holdfast.redis.scripts import load
from holdfast.runs.record import counted
from holdfast.store.names import incarnation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.config import QueueSettings
    from holdfast.redis.client import Redis
    from holdfast.runs.partition import Partition

_CLAIM = load("holdfast.runs", "claim")
_TIDY = load("holdfast.runs", "tidy")
_HEAD = 5  # values of a reply before its runs: mode, dropped, adopted, rollbacks, duplicates
_COMMON = 4  # values that runs in a row have in common: lane, fence, attempt, agent
_FIELDS = 2  # values of each run: `id entry-id submitted_at`, with its generation in a thread, and message
_ORDERS = ("1234",) * 4 + ("1324",) + ("1234",) * 4 + ("1432",)
"""Lanes by priority, but of ten claims one begins with the normal and one with the low lane: none starves."""

Woken = list[tuple[int, bytes]]
"""Entries that a blocking read delivered: lane number and entry id."""


class RunLease(Lease, frozen=True):
    """A lease with its entry's lane and id, if the claim returned them; with lane 0 the script finds them."""

    lane: int = 0
    entry: bytes = b""


class Claimed(msgspec.Struct, frozen=True):
    """A run that this worker has claimed, under ``fence``."""

    run_id: str
    fence: int
    attempt: int
    entry_ms: int
    agent: str
    message: bytes
    rollback: tuple[str, ...] = ()
    """Ids in the store of the runs of the same thread whose writes are rolled back first."""
    submitted_ms: int = 0
    lane: int = 0
    """The number of the lane it was read from; 0 if the settle script must read more than its entry."""
    entry: bytes = b""
    generation: int = 0
    """Higher for each attempt of its thread, so that the store refuses late writes; 0 without a thread."""

    def lease(self, owner: str) -> RunLease:
        """The lease of ``owner`` on this run."""
        return RunLease(self.run_id, owner, self.fence, self.lane, self.entry)

    @property
    def kept_as(self) -> str:
        """The id of the run in the store; the run id may be submitted again after Redis has removed it."""
        return incarnation(self.run_id, self.submitted_ms)


class Claims(msgspec.Struct, frozen=True):
    """The reply of one claim; leases are trusted from ``requested_at``, a ``boot_time()`` before the call."""

    runs: list[Claimed]
    requested_at: float
    dropped: int = 0
    adopted: int = 0
    paused: bool = False
    duplicates: list[tuple[str, str]] = msgspec.field(default_factory=list[tuple[str, str]])
    """Run id and entry id of each entry that a producer added again: its correlation id has a run."""


class Returned(NamedTuple):
    """How many entries were returned to the queue, and how many events were appended for them."""

    entries: int
    events: int


class Claimer:
    """Claims runs of one partition for one owner; ``reader`` is a connection for blocking reads only."""

    def __init__(
        self,
        queue: Partition,
        owner: str,
        reader: Redis,
        agent_limits: Mapping[str, int] | None = None,
        *,
        default_agent: str | None = None,
    ) -> None:
        keys, settings = queue.keys, queue.settings
        self._queue = queue
        self._owner = owner
        self._reader = reader
        self._group = settings.group
        self._keys: list[Any] = [
            *keys.lanes,
            keys.gate,
            keys.runs,
            keys.run_prefix,
            keys.ended,
            keys.limits,
            keys.outbox,
            keys.unarchived,
        ]
        self._tail = [
            int(settings.retention_seconds * 1000),
            settings.default_agent if default_agent is None else default_agent,
            int(queue.outside),
            _limits(settings, agent_limits or {}),
        ]
        self._lane_numbers = {lane.encode(): number for number, lane in enumerate(keys.lanes, 1)}
        self._streams = (*keys.lanes, *(">" for _ in keys.lanes))
        self._claims = 0

    async def join(self) -> None:
        """Create the lanes, the group and the owner's consumer."""
        await self._queue.ensure(self._owner)

    async def wait(self, block_ms: int) -> Woken:
        """Block until an entry is delivered, or the time is over; one entry wakes one worker."""
        try:
            read = ("XREADGROUP", "GROUP", self._group, self._owner, "COUNT", 1, "BLOCK", block_ms, "STREAMS")
            reply = await command(self._reader, *read, *self._streams)
        except Exception as exc:
            if not group_is_missing(exc):
                raise
            await self.join()
            return []
        return [(self._lane_numbers[lane], entry) for lane, entries in reply or () for entry, _ in entries]

    async def claim(self, count: int, woken: Woken) -> Claims:
        """Claim up to ``count`` runs: first those of the entries in ``woken``, then other waiting runs."""
        requested_at = boot_time()
        self._claims += 1
        args: list[Any] = [self._group, self._owner, count, lane_order(self._claims), *self._tail]
        for number, entry in woken:
            args += (number, entry)
        reply = await _CLAIM(self._queue.redis, self._keys, args)
        if reply[0] == b"regroup":
            await self.join()
        mode, dropped, adopted, rollbacks, duplicates = reply[:_HEAD]
        names = [name.decode(errors="replace") for name in duplicates]
        duplicated = list(zip(names[::2], names[1::2], strict=True))
        paused = mode == b"paused"
        return Claims(_claimed(reply, rollbacks), requested_at, dropped, adopted, paused, duplicated)

    async def tidy(self, attended: Iterable[str]) -> Returned:
        """Return this worker's pending entries to the queue, except those of the ``attended`` runs."""
        keys = self._queue.keys
        args = [self._group, self._owner, *attended]
        return Returned(*await _TIDY(self._queue.redis, [*keys.lanes, keys.run_prefix], args))


def lane_order(claim: int) -> str:
    """Return the order in which the n-th claim reads the lanes."""
    return _ORDERS[claim % len(_ORDERS)]  # guard: lane-order


def _rollback_of(value: bytes) -> tuple[str, ...]:
    fields = value.split()
    pairs = zip(fields[::2], fields[1::2], strict=False)
    return tuple(incarnation(run_id.decode(errors="replace"), counted(at)) for run_id, at in pairs)


def _limits(settings: QueueSettings, agents: Mapping[str, int]) -> bytes:
    """Return the concurrency limits as the script reads them; empty without limits."""
    if not agents and not settings.tenant_concurrency and not settings.key_concurrency:
        return b""
    limits = {"agents": agents, "tenant": settings.tenant_concurrency, "key": settings.key_concurrency}
    return msgspec.json.encode(limits)


def _claimed(reply: list[Any], rollbacks: list[bytes]) -> list[Claimed]:
    rollback_by_run = dict(zip(rollbacks[::2], rollbacks[1::2], strict=True))
    claimed: list[Claimed] = []
    for row in reply[_HEAD:]:
        lane, fence, attempt, agent = row[:_COMMON]
        name = agent.decode(errors="replace")
        for at in range(_COMMON, len(row), _FIELDS):
            run_id, entry, times = row[at].split(b" ", 2)
            submitted, _, generation = times.partition(b" ")
            claimed.append(
                Claimed(
                    run_id.decode(),
                    fence,
                    attempt,
                    int(entry.partition(b"-")[0]),
                    name,
                    row[at + 1],
                    _rollback_of(rollback_by_run[run_id]) if run_id in rollback_by_run else (),
                    counted(submitted),
                    lane,
                    entry,
                    counted(generation),
                )
            )
    return claimed
