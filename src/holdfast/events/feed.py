"""The feed of a run: reads its events in order, and follows new ones.

Invariant: a follower gets every event after its start, once and in order, also over outages of Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from holdfast.errors import InputError, NotFound, RedisUnavailable
from holdfast.events.event import FINAL, Event
from holdfast.redis.client import connect_blocking
from holdfast.redis.outages import redis_outages
from holdfast.redis.scripts import load
from holdfast.redis.translate import translate_errors

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from holdfast.config import RedisSettings
    from holdfast.redis.client import Redis
    from holdfast.redis.keys import QueueKeys

Entries: TypeAlias = list[tuple[bytes, dict[bytes, bytes]]]
"""Events as Redis returns them: ids and fields."""

NOW: Final = "$"
"""Follow from now on: existing events are skipped."""

PAGE: Final = 200
"""The largest number of events that are read at once."""
PAGE_BYTES: Final = 256 << 10
"""The size after which a page ends: the event that exceeds it is the last one of its page."""
_PAGE = load(__package__, "page")
_BLOCK_SECONDS = 10.0
_TURN_SECONDS = 1.0
_RETRY_SECONDS = 0.2
_ID = re.compile(r"\d{1,19}(-\d{1,19})?")


class FeedPage(NamedTuple):
    """One page of events of a feed, and whether there may be more."""

    events: list[Event]
    more: bool


class Feed:
    """The feeds of one queue's runs.

    Each follower blocks on its own connection, up to ``redis.max_connections`` at once. The others poll until
    a connection is free, which delays their events but loses none.
    """

    def __init__(
        self,
        keys: QueueKeys,
        redis: Redis,
        settings: RedisSettings,
        *,
        turns: asyncio.Semaphore | None = None,
    ) -> None:
        self._keys = keys
        self._redis: Any = redis
        self._settings = settings
        self._outages = redis_outages("events for followers")
        self._turns = turns or asyncio.Semaphore(settings.max_connections)

    async def read(self, run_id: str, after: str = "0", limit: int = PAGE) -> list[Event]:
        """Read one page of the events that exist now, after the given one; none if the run has no feed."""
        return (await self.page(run_id, after, limit)).events

    async def page(self, run_id: str, after: str = "0", limit: int = PAGE) -> FeedPage:
        """Read one page of events after the given one."""
        with translate_errors(self._settings.url):
            return await self._page(run_id, checked_event_id(after), limit)

    async def follow(self, run_id: str, after: str = "0") -> AsyncGenerator[Event]:
        """Yield events after the given one as they come, and end when the run has ended.

        A final event ends the iteration only if it is the newest one and the run's status is final too: the
        event may be of an attempt before a replay, or emitted by the agent.
        To follow a run that is replayed later, call this again with the last id.
        """
        if after == NOW:
            after, events = await self.newest(run_id), list[Event]()
        else:
            events = await self.read(run_id, after)
        async with contextlib.AsyncExitStack() as stack:
            reader: Redis | None = None
            while True:
                for event in events:
                    after = event.id
                    yield event
                if (not events or events[-1].final) and await self.over(run_id, after):
                    return
                reader = reader or await self._own_connection(stack)
                # Without a connection it polls: the run may end before a connection is free.
                events = await (self._next(reader, run_id, after) if reader else self.read(run_id, after))

    async def patient_page(self, run_id: str, after: str) -> FeedPage:
        """Read a page, and retry until Redis answers."""
        return await self._until_answered(lambda: self._page(run_id, after, PAGE))

    async def newest(self, run_id: str) -> str:
        """Return the id of the run's last event; 0 without events."""
        with translate_errors(self._settings.url):
            found = await self._redis.xrevrange(self._keys.feed(run_id), "+", "-", count=1)
        return found[0][0].decode() if found else "0"

    async def over(self, run_id: str, after: str) -> bool:
        """Return whether the run has ended without a later event; the status must be read first."""
        status = await self._until_answered(lambda: self._redis.hget(self._keys.run(run_id), "status"))
        if status is not None and status.decode() not in FINAL:
            return False
        feed = self._keys.feed(run_id)
        if status is None and not await self._until_answered(lambda: self._redis.exists(feed)):
            raise NotFound(f"no run {run_id!r} in queue {self._keys.stream!r}, or it ended too long ago")
        return not await self._until_answered(lambda: self._redis.xrange(feed, f"({after}", "+", count=1))

    async def _page(self, run_id: str, after: str, limit: int) -> FeedPage:
        ((more, entries),) = await read_pages(self._redis, {self._keys.feed(run_id): after}, limit)
        return FeedPage(_events(entries), more)

    async def _own_connection(self, stack: contextlib.AsyncExitStack) -> Redis | None:
        """Return a connection to block on; None if the limit of open connections is reached."""
        try:
            async with asyncio.timeout(_TURN_SECONDS):
                await stack.enter_async_context(self._turns)
        except TimeoutError:
            return None
        reader = connect_blocking(self._settings, _BLOCK_SECONDS)
        stack.push_async_callback(reader.aclose)
        return reader

    async def _next(self, reader: Any, run_id: str, after: str) -> list[Event]:
        """Wait for events; return none after a timeout, so that a deleted feed is detected."""
        streams = {self._keys.feed(run_id): after}
        block_ms = int(_BLOCK_SECONDS * 1000)
        # XREAD has no limit by size: it waits for one event, and the page script reads the rest.
        # guard: feed-follow-count
        reply = await self._until_answered(lambda: reader.xread(streams, count=1, block=block_ms))
        if not reply:
            return []
        first = _events(reply[0][1])
        return [*first, *(await self.patient_page(run_id, first[-1].id)).events]

    async def _until_answered(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat the call until Redis answers: reading after an id is idempotent."""
        while True:
            try:
                with self._outages, translate_errors(self._settings.url):
                    return await call()
            except RedisUnavailable:
                await asyncio.sleep(_RETRY_SECONDS)


def checked_event_id(after: str) -> str:
    """Return ``after`` if it is a valid event id, or raise InputError."""
    if _ID.fullmatch(after):
        return after
    raise InputError(
        f"after must be the id of an event like 1712345678901-0, or 0 for all, got {after[:80]!r}"
    )


async def read_pages(redis: Redis, after: Mapping[str, str], limit: int = PAGE) -> list[tuple[bool, Entries]]:
    """Read one page over several feeds, by their keys: for each whether there may be more, and its entries.

    The size limit is for all feeds together: when it is reached, the last feeds are not in the result.
    """
    pages = await _PAGE(redis, list(after), [limit, PAGE_BYTES, *after.values()])  # guard: feed-page-bytes
    return [(bool(more), [(entry, _fields(parts)) for entry, parts in entries]) for more, entries in pages]


def _fields(parts: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _events(entries: Entries) -> list[Event]:
    return [Event.of(entry, fields) for entry, fields in entries]
