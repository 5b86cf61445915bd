"""Notifies open streams of work as soon as there is some: any number of streams on one blocking connection.

One round: read the last ids of the lanes, read the depths, notify the streams, and block until an entry
is added after those ids. An entry that is added between depths and block is after the ids, so none is missed.
Only lanes of queues without work are blocked on: more work does not change a stream's state. During an outage
of Redis streams keep their last state, and other calls of KEDA get the error. In a cluster each trigger's
queues have their own rounds: a server that hangs delays the streams of its own queues only.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from holdfast.errors import ConfigError, HoldfastError, Refused
from holdfast.redis.client import TROUBLE, connect, connect_blocking
from holdfast.redis.connections import Cluster
from holdfast.redis.outages import redis_outages
from holdfast.redis.scripts import load
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from holdfast.config import RedisSettings
    from holdfast.redis.client import Redis
    from holdfast.runs.partition import Depth
    from holdfast.runs.queue import RunQueue
    from holdfast.scaling.asking import Asker, Queues
    from holdfast.scaling.trigger import Trigger

Lanes: TypeAlias = dict[str, str]
"""The lanes of one partition, which are in one cluster slot, with the last id of each."""

_ENDS = load(__package__, "ends")
_FIRST_PAUSE_SECONDS: Final = 0.02
_RETRY_SECONDS: Final = 0.2
_MARGIN_SECONDS: Final = 1.0
_CLUSTER_CONNECTIONS: Final = 10_000

_log = get_logger(__name__)


class Listener:
    """One open stream, with the latest state to send."""

    __slots__ = ("_changed", "_ended", "_fault", "_sent", "active", "trigger")

    def __init__(self, trigger: Trigger) -> None:
        self.trigger = trigger
        self.active: bool | None = None
        self._sent: bool | None = None
        self._changed = asyncio.Event()
        self._ended = False
        self._fault: HoldfastError | None = None

    def tell(self, active: bool) -> bool:
        """Set whether there is work; return whether that is a change."""
        if active is self.active:
            return False
        self.active = active
        self._changed.set()
        return True

    def end(self, fault: HoldfastError | None = None) -> None:
        """End the stream: with an error, or for the shutdown."""
        self._ended, self._fault = True, fault
        self._changed.set()

    async def next(self) -> bool | None:
        """Wait for a change; return whether there is work, None at the end."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if self._fault is not None:
                raise self._fault
            if self._ended:
                return None
            # guard: wake-on-change
            if self.active is not self._sent:  # it may have changed back meanwhile
                self._sent = self.active
                return self.active


class Watches:
    """Watches the queues of all listeners while ``run`` runs."""

    def __init__(self, redis: Redis, settings: RedisSettings, asker: Asker, *, poll_seconds: float) -> None:
        self._new_watch = partial(QueueWatch, redis, settings, asker, poll_seconds=poll_seconds)
        self._is_cluster = isinstance(redis, Cluster)
        self._watches: dict[Queues, QueueWatch] = {}
        self._begun: asyncio.Queue[Queues] = asyncio.Queue()
        self._leaving = False

    @contextlib.contextmanager
    def listening(self, trigger: Trigger) -> Generator[Listener]:
        """Notify a listener of every change, beginning with the present state."""
        with self._watch_of(trigger).listening(trigger) as listener:
            if self._leaving:
                listener.end()
            yield listener

    def leave(self) -> None:
        """End all streams without an error: KEDA connects to the next scaler within seconds."""
        self._leaving = True
        for watch in self._watches.values():
            watch.leave()

    async def run(self) -> None:
        """Notify listeners until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._serve(await self._begun.get()))

    def _watch_of(self, trigger: Trigger) -> QueueWatch:
        """Return the watch of a trigger's queues: on a single server one watch has all queues."""
        queues = trigger.queues if self._is_cluster else ()  # guard: cluster-watch-per-trigger
        watch = self._watches.get(queues)
        if watch is None:
            watch = self._watches[queues] = self._new_watch()
            self._begun.put_nowait(queues)
        return watch

    async def _serve(self, queues: Queues) -> None:
        watch = self._watches[queues]
        while watch.has_listeners:  # one may have joined while the connection was being closed
            await watch.run()
        del self._watches[queues]


class QueueWatch:
    """Watches the queues of its listeners, all on one connection."""

    def __init__(self, redis: Redis, settings: RedisSettings, asker: Asker, *, poll_seconds: float) -> None:
        self._redis = redis
        self._settings = settings
        self._asker = asker
        self._poll_seconds = poll_seconds
        self._listeners: set[Listener] = set()
        self._joined = asyncio.Event()
        self._waiting: asyncio.Timeout | None = None
        self._reader: Any = None
        self._is_refused = False
        self._outages = redis_outages("streams to KEDA", "they stay open and silent")

    @property
    def has_listeners(self) -> bool:
        """Whether there is an open stream."""
        return bool(self._listeners)

    @contextlib.contextmanager
    def listening(self, trigger: Trigger) -> Generator[Listener]:
        """Notify a listener of every change, beginning with the present state."""
        listener = Listener(trigger)
        self._listeners.add(listener)
        try:
            self._joined.set()
            if self._waiting is not None and not self._waiting.expired():
                self._waiting.reschedule(asyncio.get_running_loop().time())  # guard: new-stream-wakes-reader
            yield listener
        finally:
            self._listeners.discard(listener)  # guard: closed-stream-discarded

    def leave(self) -> None:
        """End all streams without an error."""
        for listener in self._listeners:
            listener.end()

    async def run(self) -> None:
        """Notify listeners until there are none."""
        pause, woken = 0.0, False
        try:
            while self._listeners:
                self._joined.clear()
                ends = await self._ends()
                if await self._notify_all() or not woken:
                    pause = 0.0
                else:  # work without a change of state (below an activation) must not make a busy loop
                    # guard: wake-pause-grows
                    pause = min(max(2 * pause, _FIRST_PAUSE_SECONDS), self._poll_seconds)
                woken = await self._wait(ends, pause)
        finally:
            await self._close()

    # -- reading

    async def _ends(self) -> dict[RunQueue, list[Lanes]]:
        """Return the last ids of each queue's lanes; a lane without one is polled instead of blocked on."""
        places = [
            (queue, partition.keys.lanes)
            for queue in _queues(self._listeners)
            for partition in queue.partitions
        ]  # guard: wake-all-partitions
        try:
            async with asyncio.timeout(_MARGIN_SECONDS):
                found = await _ENDS.many(self._redis, [(lanes, ()) for _, lanes in places])
        except (*TROUBLE, HoldfastError) as exc:
            if not self._outages.failed(exc):
                _log.info("ends of lanes not readable", error=str(exc) or type(exc).__name__)
            return {}
        ends: dict[RunQueue, list[Lanes]] = {}
        for (queue, lanes), last in zip(places, found, strict=True):
            if last:
                ends.setdefault(queue, []).append(dict(zip(lanes, map(bytes.decode, last), strict=True)))
        return ends

    async def _notify_all(self) -> bool:
        """Read the depths and notify every listener; return whether any state has changed."""
        listeners = list(self._listeners)
        wanted = list(dict.fromkeys(listener.trigger.queues for listener in listeners))
        replies = await asyncio.gather(*(self._asker.ask(each) for each in wanted), return_exceptions=True)
        found = dict(zip(wanted, replies, strict=True))
        changes = [self._notify(listener, found[listener.trigger.queues]) for listener in listeners]
        return any(changes)

    def _notify(self, listener: Listener, answer: list[Depth] | BaseException) -> bool:
        if isinstance(answer, (Refused, ConfigError)):  # guard: outage-keeps-streams
            # The stream stays open: after every error KEDA waits longer before it opens the next one.
            self._report_outage(answer)
            return False
        if isinstance(answer, HoldfastError):
            listener.end(answer)
            self._listeners.discard(listener)
            return True
        if isinstance(answer, BaseException):
            raise answer
        self._is_refused = False
        self._outages.answered()
        return listener.tell(listener.trigger.is_active(listener.trigger.demand(answer)))

    def _report_outage(self, fault: HoldfastError) -> None:
        if self._outages.failed(fault):
            return
        if not self._is_refused:
            _log.warning("streams to KEDA silent until Redis is available", error=str(fault))
        self._is_refused = True

    # -- waiting

    async def _wait(self, ends: dict[RunQueue, list[Lanes]], pause: float) -> bool:
        """Wait for entries after these ids, a new listener, or the poll time; return whether entries came."""
        if self._joined.is_set():
            return False
        # guard: wake-idle-queues-only
        idle = _queues(listener for listener in self._listeners if not listener.active)
        lanes = [each for queue in idle for each in ends.get(queue, ())]
        # The ends of these lanes could not be read, so no blocking read can wake the watch: poll again
        # within a second.
        unwatched = bool(idle) and not lanes  # guard: unwatched-lanes-soon
        rest = min(self._poll_seconds, _MARGIN_SECONDS) if unwatched else self._poll_seconds
        waiting = self._waiting = asyncio.timeout(pause + self._poll_seconds + _MARGIN_SECONDS)
        try:
            try:
                async with waiting:
                    await asyncio.sleep(pause)
                    if lanes:  # guard: wake-by-read
                        return await self._read(lanes)
                    await asyncio.sleep(rest)
            finally:  # before anything else is waited for: a timeout that is over can't be moved
                self._waiting = None
        except (*TROUBLE, HoldfastError) as exc:
            # guard: wake-reconnects
            if waiting.expired():  # a listener joined, or the reader hangs: the next read raises its error
                return False
            if not self._outages.failed(exc):
                _log.info("blocking read failed, connecting again", error=str(exc) or type(exc).__name__)
            await self._close()
            await asyncio.sleep(_RETRY_SECONDS)
        return False

    async def _read(self, lanes: list[Lanes]) -> bool:
        """Block until one of the lanes has an entry; on one connection, except in a cluster."""
        if not isinstance(self._redis, Cluster):  # guard: wake-cluster-readers
            if self._reader is None:
                self._reader = connect_blocking(self._settings, self._poll_seconds)
            return await self._block({lane: end for each in lanes for lane, end in each.items()})
        if self._reader is None:
            self._reader = _connect_to_cluster(self._settings, self._poll_seconds)
        reads = [asyncio.ensure_future(self._block(each)) for each in lanes]
        try:
            done, _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
            return any([read.result() for read in done])  # noqa: C419  all results: an error must not be missed
        finally:
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)

    async def _block(self, lanes: Lanes) -> bool:
        # One entry of each lane is enough: its content is not used.
        # guard: wake-read-position
        return bool(await self._reader.xread(lanes, count=1, block=max(int(self._poll_seconds * 1000), 1)))

    async def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.aclose()


def _queues(listeners: Iterable[Listener]) -> list[RunQueue]:
    return list(dict.fromkeys(queue for listener in listeners for queue in listener.trigger.queues))


def _connect_to_cluster(settings: RedisSettings, block_seconds: float) -> Redis:
    """Return a client for one blocking read per partition: partitions are on different nodes and slots."""
    timeout = settings.socket_timeout_seconds + block_seconds
    return connect(
        msgspec.structs.replace(
            settings, socket_timeout_seconds=timeout, max_connections=_CLUSTER_CONNECTIONS
        )
    )
