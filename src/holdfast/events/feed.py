"""The feed of a run: its events in order, as they are and as they come.

Invariant: a follower sees every event after the one it starts at, once and in order, whatever Redis does.
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
"""What Redis has of events: ids and fields."""

NOW: Final = "$"
"""Follow from here on: events that are already there are passed over."""

PAGE: Final = 200
"""Events that are read at a time, if they are small."""
PAGE_BYTES: Final = 256 << 10
"""Large events are read fewer at a time: the one that passes this is the last of its page."""
_PAGE = load(__package__, "page")
_BLOCK_SECONDS = 10.0
_TURN_SECONDS = 1.0
_RETRY_SECONDS = 0.2
_ID = re.compile(r"\d{1,19}(-\d{1,19})?")


class Page(NamedTuple):
    """Some events of a feed, and whether there may be more."""

    events: list[Event]
    more: bool


class Feed:
    """The feeds of one queue's runs.

    Whoever waits has a connection of its own, and as many wait at once as ``redis.max_connections``
    allows; the others wait for their turn, which costs them time but no event.
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
        """Read some events that are there now, after the given one; a run without a feed has none."""
        return (await self.page(run_id, after, limit)).events

    async def page(self, run_id: str, after: str = "0", limit: int = PAGE) -> Page:
        """Read as many events after the given one as fit into a page."""
        with translate_errors(self._settings.url):
            return await self._page(run_id, checked_event_id(after), limit)

    async def follow(self, run_id: str, after: str = "0") -> AsyncGenerator[Event]:
        """Yield events after the given one as they come, and end when the run has.

        A final event ends the following only while it is the newest and the run's status agrees, so
        that neither an old end before a replay nor a word of the agent's own is taken for the end.
        A run that is replayed later is followed again by asking again, after the last id seen.
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
                # Without a connection of our own yet we look now and then: the run may end before our turn.
                events = await (self._next(reader, run_id, after) if reader else self.read(run_id, after))

    async def patient_page(self, run_id: str, after: str) -> Page:
        """Read a page as soon as Redis answers."""
        return await self._patiently(lambda: self._page(run_id, after, PAGE))

    async def newest(self, run_id: str) -> str:
        """The id of the run's last event, or 0 if it has none."""
        with translate_errors(self._settings.url):
            found = await self._redis.xrevrange(self._keys.feed(run_id), "+", "-", count=1)
        return found[0][0].decode() if found else "0"

    async def over(self, run_id: str, after: str) -> bool:
        """Whether the run has ended and nothing came after; the order of the two questions matters."""
        status = await self._patiently(lambda: self._redis.hget(self._keys.run(run_id), "status"))
        if status is not None and status.decode() not in FINAL:
            return False
        feed = self._keys.feed(run_id)
        if status is None and not await self._patiently(lambda: self._redis.exists(feed)):
            raise NotFound(f"no run {run_id!r} in queue {self._keys.stream!r}, or it ended too long ago")
        return not await self._patiently(lambda: self._redis.xrange(feed, f"({after}", "+", count=1))

    async def _page(self, run_id: str, after: str, limit: int) -> Page:
        ((more, entries),) = await read_pages(self._redis, {self._keys.feed(run_id): after}, limit)
        return Page(_events(entries), more)

    async def _own_connection(self, stack: contextlib.AsyncExitStack) -> Redis | None:
        """A connection to block on, or None if all that may be open are taken for now."""
        try:
            async with asyncio.timeout(_TURN_SECONDS):
                await stack.enter_async_context(self._turns)
        except TimeoutError:
            return None
        reader = connect_blocking(self._settings, _BLOCK_SECONDS)
        stack.push_async_callback(reader.aclose)
        return reader

    async def _next(self, reader: Any, run_id: str, after: str) -> list[Event]:
        """Wait for events; none after a while, so that a feed that has vanished is noticed."""
        streams = {self._keys.feed(run_id): after}
        block_ms = int(_BLOCK_SECONDS * 1000)
        # Redis bounds a reading by count alone: it waits for one, and the rest comes by the page.
        # guard: feed-follow-count
        reply = await self._patiently(lambda: reader.xread(streams, count=1, block=block_ms))
        if not reply:
            return []
        first = _events(reply[0][1])
        return [*first, *(await self.patient_page(run_id, first[-1].id)).events]

    async def _patiently(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Ask until Redis answers: reading after an id is the same however often it is done."""
        while True:
            try:
                with self._outages, translate_errors(self._settings.url):
                    return await call()
            except RedisUnavailable:
                await asyncio.sleep(_RETRY_SECONDS)


def checked_event_id(after: str) -> str:
    """Return ``after`` if it can be the id of an event."""
    if _ID.fullmatch(after):
        return after
    raise InputError(
        f"after must be the id of an event like 1712345678901-0, or 0 for all, got {after[:80]!r}"
    )


async def read_pages(redis: Redis, after: Mapping[str, str], limit: int = PAGE) -> list[tuple[bool, Entries]]:
    """Read one page over feeds, by their keys: for each whether there may be more, and its entries.

    The bytes of a page are for all of them together: when they are used up, the last feeds are left out.
    """
    pages = await _PAGE(redis, list(after), [limit, PAGE_BYTES, *after.values()])  # guard: feed-page-bytes
    return [(bool(more), [(entry, _fields(parts)) for entry, parts in entries]) for more, entries in pages]


def _fields(parts: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _events(entries: Entries) -> list[Event]:
    return [Event.of(entry, fields) for entry, fields in entries]
