"""Tells open streams of work as soon as there is some: any number of them on one connection that blocks.

One round: note where the lanes end, look at the depths, tell who has to be told, and block until something
comes after those ends. What comes between the look and the block is after the ends too, so it is not missed.
Only lanes of queues without work are waited for: work on top of work is no news. While Redis can't be asked
nothing is said: what was said last counts, and whoever asks on its own hears the error. In a cluster each
trigger's queues have rounds of their own: a server that hangs delays the streams of its own queues only.
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
"""The lanes of one partition, which are in one cluster slot, and where each ends."""

_ENDS = load(__package__, "ends")
_FIRST_PAUSE_SECONDS: Final = 0.02
_RETRY_SECONDS: Final = 0.2
_MARGIN_SECONDS: Final = 1.0
_CLUSTER_CONNECTIONS: Final = 10_000

_log = get_logger(__name__)


class Listener:
    """One open stream: what it should be told next, and never more than that."""

    __slots__ = ("_ended", "_fault", "_news", "_told", "active", "trigger")

    def __init__(self, trigger: Trigger) -> None:
        self.trigger = trigger
        self.active: bool | None = None
        self._told: bool | None = None
        self._news = asyncio.Event()
        self._ended = False
        self._fault: HoldfastError | None = None

    def tell(self, active: bool) -> bool:
        """Have it told whether there is work; return whether that is news."""
        if active is self.active:
            return False
        self.active = active
        self._news.set()
        return True

    def end(self, fault: HoldfastError | None = None) -> None:
        """End it: with an error, or because we leave."""
        self._ended, self._fault = True, fault
        self._news.set()

    async def next(self) -> bool | None:
        """Wait for news: whether there is work, None at the end."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._fault is not None:
                raise self._fault
            if self._ended:
                return None
            # guard: wake-on-change
            if self.active is not self._told:  # it may have changed there and back meanwhile
                self._told = self.active
                return self.active


class Watches:
    """Watches queues for all listeners while ``run`` runs."""

    def __init__(self, redis: Redis, settings: RedisSettings, asker: Asker, *, poll_seconds: float) -> None:
        self._new_watch = partial(Watch, redis, settings, asker, poll_seconds=poll_seconds)
        self._is_cluster = isinstance(redis, Cluster)
        self._watches: dict[Queues, Watch] = {}
        self._begun: asyncio.Queue[Queues] = asyncio.Queue()
        self._leaving = False

    @contextlib.contextmanager
    def listening(self, trigger: Trigger) -> Generator[Listener]:
        """Have the listener told of every change, beginning with how it is now."""
        with self._watch_of(trigger).listening(trigger) as listener:
            if self._leaving:
                listener.end()
            yield listener

    def leave(self) -> None:
        """End all listeners, politely: then KEDA asks the next scaler in seconds."""
        self._leaving = True
        for watch in self._watches.values():
            watch.leave()

    async def run(self) -> None:
        """Tell listeners until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._serve(await self._begun.get()))

    def _watch_of(self, trigger: Trigger) -> Watch:
        """Return the watch of a trigger's queues: on a single server one watch has all queues."""
        queues = trigger.queues if self._is_cluster else ()  # guard: cluster-watch-per-trigger
        watch = self._watches.get(queues)
        if watch is None:
            watch = self._watches[queues] = self._new_watch()
            self._begun.put_nowait(queues)
        return watch

    async def _serve(self, queues: Queues) -> None:
        watch = self._watches[queues]
        while watch.has_listeners:  # one may have joined while the connection of the others was closed
            await watch.run()
        del self._watches[queues]


class Watch:
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
        """Whether there is a stream to tell."""
        return bool(self._listeners)

    @contextlib.contextmanager
    def listening(self, trigger: Trigger) -> Generator[Listener]:
        """Have the listener told of every change, beginning with how it is now."""
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
        """End all listeners, politely."""
        for listener in self._listeners:
            listener.end()

    async def run(self) -> None:
        """Tell listeners until there are none."""
        pause, woken = 0.0, False
        try:
            while self._listeners:
                self._joined.clear()
                ends = await self._ends()
                if await self._look() or not woken:
                    pause = 0.0
                else:  # work that is no news, as below an activation, must not have us look without a rest
                    # guard: wake-pause-grows
                    pause = min(max(2 * pause, _FIRST_PAUSE_SECONDS), self._poll_seconds)
                woken = await self._wait(ends, pause)
        finally:
            await self._close()

    # -- looking

    async def _ends(self) -> dict[RunQueue, list[Lanes]]:
        """Where the lanes of each queue end; what can't be told is not waited for, only looked at."""
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
                _log.info("the lanes can't be watched", error=str(exc) or type(exc).__name__)
            return {}
        ends: dict[RunQueue, list[Lanes]] = {}
        for (queue, lanes), last in zip(places, found, strict=True):
            if last:
                ends.setdefault(queue, []).append(dict(zip(lanes, map(bytes.decode, last), strict=True)))
        return ends

    async def _look(self) -> bool:
        """Tell every listener what there is to tell; return whether anything was news."""
        listeners = list(self._listeners)
        asked = list(dict.fromkeys(listener.trigger.queues for listener in listeners))
        answers = await asyncio.gather(*(self._asker.ask(queues) for queues in asked), return_exceptions=True)
        found = dict(zip(asked, answers, strict=True))
        news = [self._tell(listener, found[listener.trigger.queues]) for listener in listeners]
        return any(news)

    def _tell(self, listener: Listener, answer: list[Depth] | BaseException) -> bool:
        if isinstance(answer, (Refused, ConfigError)):  # guard: outage-keeps-streams
            # Not now. The stream stays open: after every error KEDA waits longer to open the next one.
            self._say_away(answer)
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

    def _say_away(self, fault: HoldfastError) -> None:
        if self._outages.failed(fault):
            return
        if not self._is_refused:
            _log.warning("streams are silent until Redis can be asked again", error=str(fault))
        self._is_refused = True

    # -- waiting

    async def _wait(self, ends: dict[RunQueue, list[Lanes]], pause: float) -> bool:
        """Wait for entries after these ends, a new listener or the time to look; return if entries came."""
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
            if waiting.expired():  # somebody joined, or the reader hangs: the next look will tell
                return False
            if not self._outages.failed(exc):
                _log.info("the wake-up is lost: connecting again", error=str(exc) or type(exc).__name__)
            await self._close()
            await asyncio.sleep(_RETRY_SECONDS)
        return False

    async def _read(self, lanes: list[Lanes]) -> bool:
        """Block until one of the lanes has something; all on one connection, but for a cluster."""
        if not isinstance(self._redis, Cluster):  # guard: wake-cluster-readers
            if self._reader is None:
                self._reader = connect_blocking(self._settings, self._poll_seconds)
            return await self._block({lane: end for each in lanes for lane, end in each.items()})
        if self._reader is None:
            self._reader = _connect_to_cluster(self._settings, self._poll_seconds)
        reads = [asyncio.ensure_future(self._block(each)) for each in lanes]
        try:
            done, _ = await asyncio.wait(reads, return_when=asyncio.FIRST_COMPLETED)
            return any([read.result() for read in done])  # noqa: C419  each of them: a fault must not be missed
        finally:
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)

    async def _block(self, lanes: Lanes) -> bool:
        # Only one entry of each lane: what it says does not matter.
        # guard: wake-read-position
        return bool(await self._reader.xread(lanes, count=1, block=max(int(self._poll_seconds * 1000), 1)))

    async def _close(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.aclose()


def _queues(listeners: Iterable[Listener]) -> list[RunQueue]:
    return list(dict.fromkeys(queue for listener in listeners for queue in listener.trigger.queues))


def _connect_to_cluster(settings: RedisSettings, block_seconds: float) -> Redis:
    """A client for one blocking read per partition: they are on different nodes, in different slots."""
    patience = settings.socket_timeout_seconds + block_seconds
    return connect(
        msgspec.structs.replace(
            settings, socket_timeout_seconds=patience, max_connections=_CLUSTER_CONNECTIONS
        )
    )
