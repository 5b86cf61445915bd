"""The control channel of a queue: requests to cancel a run, and changes of the gate.

A lost message does no harm: the next lease renewal brings the cancellation, the next claim the gate.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.redis.client import TROUBLE
from holdfast.redis.outages import redis_outages
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.redis.client import Redis

_RETRY_SECONDS = 1.0

_log = get_logger(__name__)


class Control:
    """Subscribes to one channel; ``on_cancel`` is called with the run and the reason."""

    def __init__(
        self,
        channel: str,
        redis: Redis,
        *,
        on_cancel: Callable[[str, str], None],
        on_gate: Callable[[], None],
    ) -> None:
        self._channel = channel
        self._redis: Any = redis
        self._on_cancel = on_cancel
        self._on_gate = on_gate
        self._outages = redis_outages(
            "requests to cancel and to pause", "lease renewals and claims bring them"
        )

    async def run(self) -> None:
        """Receive until cancelled."""
        while True:
            try:
                await self._receive()
            except TROUBLE as exc:
                if not self._outages.failed(exc):
                    _log.warning("control channel refused", channel=self._channel, error=str(exc))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _receive(self) -> None:
        await self._redis.initialize()  # a cluster's client must know the nodes before it can choose one
        async with self._redis.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(self._channel)
            self._outages.answered()
            while True:
                message = await channel.get_message(timeout=None)
                if message is not None:
                    self._dispatch(message["data"].decode(errors="replace"))

    def _dispatch(self, text: str) -> None:
        request, _, arguments = text.partition(" ")
        if request == "cancel":
            run_id, _, reason = arguments.partition(" ")
            self._on_cancel(run_id, reason)
        elif request == "gate":
            self._on_gate()
