"""Notifications on an outbox's channel: a run has new events, or events must be delivered again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.redis.client import TROUBLE
from holdfast.redis.library import NoPermissionError, RedisTimeoutError
from holdfast.redis.outages import redis_outages
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.events.relay.loop import LoopWakeup
    from holdfast.redis.client import Redis

_RETRY_SECONDS = 1.0
_PING_SECONDS = 5.0
"""Seconds without a message before a PING; after as many without a reply the subscription is renewed."""

_log = get_logger(__name__)


class _Listener:
    """The loops of one outbox, which poll while there is no subscription."""

    def __init__(self, notify: Callable[[], None], loops: Sequence[LoopWakeup]) -> None:
        self.notify = notify
        self._loops = loops

    def set_listening(self, *, listening: bool) -> None:
        for loop in self._loops:
            loop.listening = listening
            loop.set()


class Notifications:
    """Subscribes to the channels of all outboxes of a relay; without a subscription, their loops poll.

    One connection serves all channels: a subscription occupies its connection, and in a cluster every server
    forwards what is published on any of them.
    """

    def __init__(self, connect: Callable[[], Redis]) -> None:
        self._connect: Callable[[], Any] = connect
        self._listeners: dict[str, _Listener] = {}
        self._refused = False
        self._outages = redis_outages("notifications of events", "the relay polls")

    def add(self, channel: str, notify: Callable[[], None], loops: Sequence[LoopWakeup]) -> None:
        """Call ``notify`` for messages on a channel; it is subscribed at the next PING at the latest."""
        self._listeners[channel] = _Listener(notify, loops)

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            redis = self._connect()  # a new client: that of a cluster would try the known servers for ever
            try:
                await self._listen(redis)
            except TROUBLE as exc:
                self._report(exc)
            finally:
                for each in self._listeners.values():
                    each.set_listening(listening=False)
                await redis.aclose()
            await asyncio.sleep(_RETRY_SECONDS)

    async def _listen(self, redis: Any) -> None:
        await redis.initialize()  # a cluster's client has to read the nodes before it selects one
        subscribed: set[str] = set()
        pinged = False
        async with redis.pubsub() as pubsub:
            while True:
                for channel in self._listeners.keys() - subscribed:
                    await pubsub.subscribe(channel)  # one by one: permissions may differ by channel
                    subscribed.add(channel)
                if not subscribed:
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
                try:
                    message = await pubsub.get_message(timeout=_PING_SECONDS)
                except NoPermissionError as exc:
                    self._report(exc)
                    continue
                if message is not None:
                    pinged = False
                    self._pass_on(message)
                elif pinged:
                    raise RedisTimeoutError(f"no reply to a PING for {_PING_SECONDS:g} s")
                else:
                    pinged = True
                    await pubsub.ping()

    def _report(self, exc: Exception) -> None:
        if self._outages.failed(exc):
            return
        if not self._refused:
            _log.warning("relay polls, subscription refused", error=str(exc) or type(exc).__name__)
        self._refused = True

    def _pass_on(self, message: dict[str, Any]) -> None:
        if message["type"] not in {"subscribe", "message"}:
            return
        listener = self._listeners[message["channel"].decode()]
        if message["type"] == "subscribe":
            listener.set_listening(listening=True)
            self._refused = False
            self._outages.answered()
        listener.notify()  # also after subscribing: earlier events had no subscription
