"""Ghost consumers: members of the group whose process died without deregistering.

A consumer is removed only if no process of its name has a heartbeat, it was idle for the threshold, and none
of its leases was renewed within their ttl; its pending entries return to the queue in the same script call.
Where pods can be read, a consumer whose pod is gone is removed sooner, and one whose pod is running is kept.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.leases.streams import Eviction, StreamLeases
from holdfast.redis.groups import group_is_missing
from holdfast.redis.scripts import load
from holdfast.runs.podproof import Proof
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.config import JanitorSettings
    from holdfast.redis.members import Members
    from holdfast.runs.partition import Partition
    from holdfast.telemetry.metrics import Metrics

_CONSUMERS = load(__package__, "consumers")
_FIELDS = 3
_KIND = "worker"

_log = get_logger(__name__)


class Fate(enum.StrEnum):
    """The result of the cleanup for one consumer without a heartbeat."""

    REMOVED = "removed"
    WOULD_REMOVE = "would_remove"
    """Dry run: the consumer would have been removed."""
    BUSY = "busy"
    """One of its leases was renewed within the ttl: its process is alive, although it has no heartbeat."""
    WAITING = "waiting"
    """Not idle for long enough yet."""
    POD_LIVES = "pod_lives"
    """Its pod is running: the process may only have lost its connection to Redis."""


class Consumer(msgspec.Struct, frozen=True):
    """A consumer of the group as Redis lists it, over all lanes."""

    name: str
    idle_seconds: float
    entries: int


class Ghost(msgspec.Struct, frozen=True):
    """A consumer without a heartbeat, the result of its cleanup, and how many entries were released."""

    consumer: Consumer
    fate: Fate
    released: int = 0
    pod: Proof = Proof.UNKNOWN

    @property
    def kept(self) -> bool:
        """Whether the consumer is kept, because it is not certain that its process is dead."""
        return self.fate in {Fate.WAITING, Fate.POD_LIVES}


class Cleaned(msgspec.Struct, frozen=True):
    """The result of one pass."""

    ghosts: list[Ghost]
    dry_run: bool = False

    @property
    def found(self) -> list[str]:
        """Consumers that were dead for long enough."""
        return [ghost.consumer.name for ghost in self.ghosts if not ghost.kept]

    @property
    def removed(self) -> list[str]:
        """Consumers that were removed."""
        return self._with(Fate.REMOVED)

    @property
    def would_remove(self) -> list[str]:
        """Consumers that a dry run would have removed."""
        return self._with(Fate.WOULD_REMOVE)

    @property
    def busy(self) -> list[str]:
        """Consumers whose leases are still renewed."""
        return self._with(Fate.BUSY)

    @property
    def waiting(self) -> list[str]:
        """Consumers that have not been idle for long enough."""
        return self._with(Fate.WAITING)

    @property
    def leaving(self) -> bool:
        """Whether a consumer whose pod is gone was kept: the next pass should follow soon."""
        kept = (Fate.WAITING, Fate.BUSY)
        return any(ghost.pod is Proof.GONE and ghost.fate in kept for ghost in self.ghosts)

    @property
    def released(self) -> int:
        """Entries that were returned to the queue; in a dry run, those that would have been."""
        return sum(ghost.released for ghost in self.ghosts)

    def _with(self, *fates: Fate) -> list[str]:
        return [ghost.consumer.name for ghost in self.ghosts if ghost.fate in fates]


async def list_consumers(queue: Partition) -> list[Consumer]:
    """Every consumer of a queue's group, over all lanes; none where the queue does not exist yet."""
    listed = await _CONSUMERS(queue.redis, queue.keys.lanes, [queue.settings.group])
    rows = (listed[at : at + _FIELDS] for at in range(0, len(listed), _FIELDS))
    return [Consumer(name.decode(errors="replace"), idle / 1000, entries) for name, idle, entries in rows]


class Cleanup:
    """Finds and removes the ghost consumers of one queue."""

    def __init__(
        self,
        queue: Partition,
        members: Members,
        settings: JanitorSettings,
        metrics: Metrics,
        *,
        ttl_seconds: float,
        pods: Callable[[str], Awaitable[Proof]] | None = None,
    ) -> None:
        self._queue = queue
        self._members = members
        self._pods = pods
        self._threshold = settings.idle_threshold_seconds
        self._metrics = metrics
        self._ttl_ms = int(ttl_seconds * 1000)
        self._found: set[str] = set()
        self._leases = StreamLeases(queue.keys, group=queue.settings.group, owner="", ttl_ms=self._ttl_ms)

    async def run_once(self, *, dry_run: bool = False) -> Cleaned:
        """Check every consumer once; ``dry_run`` changes nothing and returns what would be done."""
        ghosts = [
            await self._clean(consumer, dry_run=dry_run)
            for consumer in await self.consumers()
            if not await self._alive(consumer)
        ]
        cleaned = Cleaned(ghosts, dry_run)
        self._report(cleaned)
        return cleaned

    async def consumers(self) -> list[Consumer]:
        """Every consumer of the group, over all lanes; none where the queue does not exist yet."""
        return await list_consumers(self._queue)

    async def _alive(self, consumer: Consumer) -> bool:
        return await self._members.alive(self._queue.redis, _KIND, consumer.name)

    async def _clean(self, consumer: Consumer, *, dry_run: bool) -> Ghost:
        proof = await self._pods(consumer.name) if self._pods is not None else Proof.UNKNOWN
        if proof is Proof.LIVES:  # guard: live-pod-consumer
            _log.debug(
                "consumer without heartbeat kept: its pod is running",
                queue=self._queue.name,
                consumer=consumer.name,
            )
            return Ghost(consumer, Fate.POD_LIVES, pod=proof)
        # Even then it must be idle for the ttl: a new process of the same name may be joining the group.
        # guard: gone-pod-idle-time
        least = min(self._threshold, self._ttl_ms / 1000) if proof is Proof.GONE else self._threshold
        if consumer.idle_seconds < least:
            _log.debug(
                "consumer without heartbeat kept: not idle for the threshold",
                queue=self._queue.name,
                consumer=consumer.name,
                idle_seconds=round(consumer.idle_seconds),
            )
            return Ghost(consumer, Fate.WAITING, pod=proof)
        ghost = msgspec.structs.replace(await self._evict(consumer, dry_run=dry_run), pod=proof)
        _log.info(
            _MESSAGES[ghost.fate],
            queue=self._queue.name,
            consumer=consumer.name,
            idle_seconds=round(consumer.idle_seconds),
            entries=ghost.released,
            pod=proof,
        )
        return ghost

    async def _evict(self, consumer: Consumer, *, dry_run: bool) -> Ghost:
        redis: Any = self._queue.redis
        try:
            if not dry_run:
                await self._queue.ensure()
            # guard: gone-pod-leases
            evicted = await self._leases.evict(
                redis, consumer.name, min_idle_ms=self._ttl_ms, dry_run=dry_run
            )
        except Exception as exc:
            if not (dry_run and group_is_missing(exc)):
                raise
            return Ghost(consumer, Fate.WOULD_REMOVE, consumer.entries)
        self._metrics.events_appended.labels(self._queue.name).inc(evicted.events)
        return Ghost(consumer, _FATES[evicted.how], evicted.entries)

    def _report(self, cleaned: Cleaned) -> None:
        name, metrics, found = self._queue.name, self._metrics, set(cleaned.found)
        metrics.ghost_consumers_found.labels(name).inc(len(found - self._found))  # not again at each pass
        self._found = found
        summary = {"removed": len(cleaned.removed), "released": cleaned.released}
        if cleaned.dry_run:
            summary = {"would_remove": len(cleaned.would_remove), "would_release": cleaned.released}
        else:
            metrics.ghost_consumers_removed.labels(name).inc(len(cleaned.removed))
            metrics.entries_released.labels(name).inc(cleaned.released)
        _log.info(
            "consumer cleanup complete (dry run)" if cleaned.dry_run else "consumer cleanup complete",
            queue=name,
            found=len(found),
            busy=len(cleaned.busy),
            waiting=len(cleaned.waiting),
            **summary,
        )


_FATES = {Eviction.GONE: Fate.REMOVED, Eviction.BUSY: Fate.BUSY, Eviction.WOULD: Fate.WOULD_REMOVE}
_MESSAGES = {
    Fate.REMOVED: "dead consumer removed, its pending entries released",
    Fate.WOULD_REMOVE: "dead consumer not removed: dry run",
    Fate.BUSY: "consumer without heartbeat kept: one of its leases has not expired",
}
