"""The control channel: what a worker must hear at once (cancel, pause).

Whatever is missed here, the next lease beat or poll brings.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.redis.client import TROUBLE
from holdfast.redis.outages import redis_outages
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from holdfast.redis.client import Redis
    from holdfast.runs.execution.worker import Worker

_RETRY_SECONDS = 1.0

_log = get_logger(__name__)


class Control:
    """Listens on one queue's channel and tells its worker."""

    def __init__(self, channel: str, worker: Worker, redis: Redis) -> None:
        self._channel = channel
        self._worker = worker
        self._redis: Any = redis
        self._outages = redis_outages(
            "requests to cancel and to pause", "lease renewals and claims bring them"
        )

    async def run(self) -> None:
        """Listen until cancelled."""
        while True:
            try:
                await self._listen()
            except TROUBLE as exc:
                if not self._outages.failed(exc):
                    _log.warning("control channel refused", channel=self._channel, error=str(exc))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _listen(self) -> None:
        await self._redis.initialize()  # a cluster's client must know the nodes before it can choose one
        async with self._redis.pubsub(ignore_subscribe_messages=True) as channel:
            await channel.subscribe(self._channel)
            self._outages.answered()
            while True:
                message = await channel.get_message(timeout=None)
                if message is not None:
                    self._hear(message["data"].decode(errors="replace"))

    def _hear(self, text: str) -> None:
        word, _, rest = text.partition(" ")
        if word == "cancel":
            run_id, _, reason = rest.partition(" ")
            self._worker.cancel(run_id, reason)
        elif word == "gate":
            self._worker.gate_moved()
