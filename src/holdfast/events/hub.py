"""The hub follows the feeds of any number of runs on one blocking connection.

Invariant: like a ``Feed``, it yields every event after the start, once and in order, also over outages of
Redis. A follower reads pages itself until it has caught up; from then on the hub passes it new events.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import random
from typing import TYPE_CHECKING, Any

from holdfast.events.event import Event, order
from holdfast.events.feed import NOW, PAGE_BYTES, Feed, FeedPage, read_pages
from holdfast.redis.client import DISCONNECTS, REFUSALS, connect_blocking
from holdfast.redis.command import command
from holdfast.redis.connections import Cluster
from holdfast.redis.outages import redis_outages
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from types import TracebackType
    from typing import Self

    from holdfast.config import RedisSettings
    from holdfast.events.feed import Entries
    from holdfast.redis.client import Redis
    from holdfast.redis.keys import QueueKeys

_BLOCK_SECONDS = 2.0
_SHORT_BLOCK_SECONDS = 0.1
"""The block time of a reader that can't be unblocked (in a cluster, or if forbidden)."""
_POLL_SECONDS = 10.0
_RETRY_SECONDS = 0.2
_WAKE_SECONDS = 0.01
_BUFFERED_MOST = 1000
_BUFFERED_BYTES = PAGE_BYTES
"""The limit of a follower's buffer; a slower follower reads pages itself again."""

_log = get_logger(__name__)


class _Follower:
    """The buffer of one follower; on overflow it is cleared, and the follower reads pages itself again."""

    __slots__ = ("_size", "behind", "events", "more")

    def __init__(self) -> None:
        self.events: collections.deque[Event] = collections.deque()
        self._size = 0
        self.more = asyncio.Event()
        self.behind = False

    def add(self, events: list[Event], size: int) -> None:
        # guard: hub-buffer-bytes
        if len(self.events) + len(events) > _BUFFERED_MOST or self._size + size > _BUFFERED_BYTES:
            self.forget()
            self.behind = True
        elif not self.behind:
            self.events.extend(events)
            self._size += size
        self.more.set()

    def forget(self) -> None:
        """Clear the buffer."""
        self.events.clear()
        self._size = 0

    async def take(self, seconds: float) -> list[Event]:
        """Wait for events; return none after a timeout, or after an overflow of the buffer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.more.wait()
        events = list(self.events)
        self.forget()
        self.more.clear()
        return events


class _Stream:
    """A followed feed, and the id of the last event that was read."""

    __slots__ = ("followers", "read")

    def __init__(self, read: str) -> None:
        self.read = read
        self.followers: set[_Follower] = set()


class _Reader:
    """Reads all followed feeds of one Redis (of one queue, in a cluster) on one connection."""

    def __init__(self, redis: Redis, settings: RedisSettings) -> None:
        self._redis = redis
        self._settings = settings
        self._outages = redis_outages("events for followers")
        self._wakes = not isinstance(redis, Cluster)
        self._streams: dict[str, _Stream] = {}
        self._changed = asyncio.Event()
        self._blocked_client = 0
        self._requested: dict[str, str] = {}

    def add(self, feed: str, after: str) -> _Follower:
        """Return a new follower that gets the events after ``after``."""
        follower = _Follower()
        stream = self._streams.get(feed)
        if stream is None:
            # A read for former followers of the feed may be in progress: its reply is for this one too.
            stream = self._streams[feed] = _Stream(max(after, self._requested.get(feed, "0"), key=order))
            self._changed.set()
        follower.behind = order(stream.read) > order(after)
        stream.followers.add(follower)
        return follower

    def remove(self, feed: str, follower: _Follower) -> None:
        """Remove a follower, and its feed if it has no other follower."""
        stream = self._streams[feed]
        stream.followers.discard(follower)
        if not stream.followers:
            del self._streams[feed]

    async def run(self) -> None:
        """Read until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._wake())
            while True:
                reader = connect_blocking(self._settings, _BLOCK_SECONDS)
                try:
                    await self._read(reader)
                except (*DISCONNECTS, *REFUSALS) as exc:
                    if not self._outages.failed(exc):
                        _log.warning("feeds not readable", error=str(exc))
                    await asyncio.sleep(_RETRY_SECONDS)
                finally:
                    self._blocked_client = 0
                    await reader.aclose()

    async def _read(self, reader: Any) -> None:
        """Read on one connection until it fails."""
        client: int = await command(reader, "CLIENT ID") if self._wakes else 0
        earlier: set[str] = set()
        full: list[str] = []
        while True:
            if not self._streams:
                await self._changed.wait()
            self._changed.clear()
            full = [feed for feed in full if feed in self._streams]
            active, size = await self._wait(reader, client, without=set(full))  # guard: hub-wait-without-full
            # A feed with events twice in a row, or with large ones, may have many more: it is read by pages.
            full += [feed for feed in active if feed in earlier or size > PAGE_BYTES]  # guard: hub-full-feeds
            earlier = active.difference(full)
            if full:
                full = await self._read_page(reader, full)

    async def _wait(self, reader: Any, client: int, *, without: set[str]) -> tuple[set[str], int]:
        """Wait for events, without blocking if feeds are left out; return the feeds with events and a size.

        XREAD has no limit by size, and a quiet feed may have many large events next: one per feed is read.
        """
        feeds = {feed: stream.read for feed, stream in self._streams.items() if feed not in without}
        if not feeds:
            return set(), 0
        seconds = _BLOCK_SECONDS if self._wakes else _SHORT_BLOCK_SECONDS
        block_ms = None if without else int(seconds * 1000)
        self._requested, self._blocked_client = feeds, 0 if without else client
        # guard: hub-read-count
        reply: list[tuple[bytes, Entries]] = await reader.xread(feeds, count=1, block=block_ms)
        self._blocked_client = 0
        self._outages.answered()
        size = sum(self._pass_on(feed.decode(), entries) for feed, entries in reply)
        return {feed.decode() for feed, _ in reply}, size

    async def _read_page(self, reader: Any, feeds: list[str]) -> list[str]:
        """Read one page over feeds; return the feeds that may have more, those that were not read first."""
        self._requested = {feed: self._streams[feed].read for feed in feeds if feed in self._streams}
        requested = list(self._requested)
        more: list[str] = []
        pages = await read_pages(reader, self._requested)
        for feed, (there_is_more, entries) in zip(requested, pages, strict=False):
            self._pass_on(feed, entries)
            if there_is_more:
                more.append(feed)
        return requested[len(pages) :] + more

    def _pass_on(self, feed: str, entries: Entries) -> int:
        """Add the events of a feed to its followers' buffers; return their size."""
        size = sum(len(value) for _, fields in entries for value in fields.values())
        events = [Event.of(entry, fields) for entry, fields in entries]
        stream = self._streams.get(feed)
        # Otherwise all followers left meanwhile, or new ones started at a later event.
        if stream is not None and events and order(events[-1].id) > order(stream.read):
            stream.read = events[-1].id
            for follower in stream.followers:
                follower.add(events, size)
        return size

    async def _wake(self) -> None:
        """Unblock the reader when a feed was added that it does not read yet."""
        while True:
            await self._changed.wait()
            blocked_client = self._blocked_client
            if self._wakes and blocked_client and not self._streams.keys() <= self._requested.keys():
                await self._unblock(blocked_client)
            # The reader may not have been blocked yet: repeat until it has read the change.
            await asyncio.sleep(_WAKE_SECONDS)

    async def _unblock(self, blocked_client: int) -> None:
        try:
            await command(self._redis, "CLIENT UNBLOCK", blocked_client)
        except REFUSALS as exc:
            self._wakes = False
            _log.warning("reader of the hub can't be unblocked", error=str(exc))
        except DISCONNECTS:
            await asyncio.sleep(_RETRY_SECONDS)


class Hub:
    """Follows feeds of one Redis: ``async with Hub(redis, settings) as hub``."""

    def __init__(self, redis: Redis, settings: RedisSettings) -> None:
        self._redis = redis
        self._settings = settings
        self._readers: dict[str, tuple[_Reader, asyncio.Task[None]]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks = [task for _, task in self._readers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def follow(self, keys: QueueKeys, run_id: str, after: str = "0") -> AsyncGenerator[Event]:
        """Yield events after the given one as they come, and end with the run; see ``Feed.follow``."""
        feed = Feed(keys, self._redis, self._settings)
        if after == NOW:
            after, (events, more) = await feed.newest(run_id), FeedPage([], more=False)
        else:
            events, more = await feed.page(run_id, after)
        reader, name = self._reader(keys), keys.feed(run_id)
        follower: _Follower | None = None
        try:
            while True:
                for event in events:
                    after = event.id
                    yield event
                if (not events or events[-1].final) and await feed.over(run_id, after):
                    return
                if follower is None and not more:
                    follower = reader.add(name, after)
                if follower is None:
                    events, more = await feed.patient_page(run_id, after)
                else:
                    events = await self._next(feed, follower, run_id, after)
        finally:
            if follower is not None:
                reader.remove(name, follower)

    async def final_event(self, keys: QueueKeys, run_id: str, *, after: str) -> None:
        """Return when a later event ends the run, or after a timeout: the caller reads the status."""
        reader, name = self._reader(keys), keys.feed(run_id)
        follower = reader.add(name, after)
        try:
            while not follower.behind:
                events = await follower.take(_POLL_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311
                if not events or any(event.final and order(event.id) > order(after) for event in events):
                    return
        finally:
            reader.remove(name, follower)

    async def _next(self, feed: Feed, follower: _Follower, run_id: str, after: str) -> list[Event]:
        """Return the follower's buffered events, or a page that it reads itself."""
        if not follower.behind:
            events = await follower.take(_POLL_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311
            if events and not follower.behind:
                return [event for event in events if order(event.id) > order(after)]
        follower.behind = False
        follower.forget()
        events, more = await feed.patient_page(run_id, after)
        follower.behind = follower.behind or more
        return events

    def _reader(self, keys: QueueKeys) -> _Reader:
        """Return the reader of a queue: one for all queues, except in a cluster, where nodes differ."""
        name = keys.run_prefix if isinstance(self._redis, Cluster) else ""
        found = self._readers.get(name)
        if found is None or found[1].done():
            if found is not None and not found[1].cancelled():
                # A reader never ends by itself; new followers get a new one.
                _log.error("reader of the hub failed, a new one is started", error=repr(found[1].exception()))
            reader = _Reader(self._redis, self._settings)
            found = (reader, asyncio.create_task(reader.run(), name="hub"))
            self._readers[name] = found
        return found[0]
