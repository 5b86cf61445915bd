"""The Redis connections of a process: one pool for commands, more for blocking and urgent calls."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from holdfast.redis.breaker import breaker_for_redis
from holdfast.redis.client import Redis, connect, connect_blocking, connect_for_keeper
from holdfast.runs.partition import Partition
from holdfast.runs.queue import RunQueue
from holdfast.store.lazy import LazyStore

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from holdfast.config import QueueSettings, Settings
    from holdfast.telemetry.metrics import Metrics


class Connections:
    """Opens clients and closes every one of them at the end."""

    def __init__(self, settings: Settings, metrics: Metrics | None = None) -> None:
        self.settings = settings
        self._metrics = metrics
        self._outside = bool(settings.event_api.url)
        self.redis = connect(settings.redis)
        self._stack = contextlib.AsyncExitStack()
        self._stack.push_async_callback(self.redis.aclose)
        self.store = LazyStore(settings.database)
        self._stack.push_async_callback(self.store.aclose)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, exc, trace)

    def blocking(self, block_seconds: float) -> Redis:
        """Return a connection for one blocking reader."""
        client = connect_blocking(self.settings.redis, block_seconds)
        self._stack.push_async_callback(client.aclose)
        return client

    def open_subscriber(self) -> Redis:
        """Return a connection for subscriptions, which keep it; the caller closes it."""
        return connect_blocking(self.settings.redis, 0.0)

    def for_keeper(self) -> Redis:
        """Return the keeper's own client, used and closed on its thread."""
        return connect_for_keeper(self.settings.redis, self.settings.lease.renew_every_seconds)

    def queue(self, settings: QueueSettings) -> RunQueue:
        """Return a queue on the shared pool, for workers and operators."""
        return RunQueue(settings, self.redis, prefix=self.settings.redis.key_prefix, outside=self._outside)

    def partition(self, settings: QueueSettings, number: int) -> Partition:
        """Return one partition of a queue, for the worker of a run."""
        own = settings.of_partition(number)
        return Partition(own, self.redis, prefix=self.settings.redis.key_prefix, outside=self._outside)

    def sender(self, settings: QueueSettings) -> RunQueue:
        """Return a queue on a client of its own, with retries and breaker: reads can't delay a submit."""
        client = connect(self.settings.redis)  # guard: sender-own-connection
        self._stack.push_async_callback(client.aclose)  # guard: sender-connection-closed
        breaker = breaker_for_redis(self.settings.redis.breaker)
        if self._metrics is not None:
            gauge = self._metrics.redis_breaker_state.labels(settings.name)
            gauge.set_function(lambda: breaker.state.level)
        queue = RunQueue(
            settings,
            client,
            prefix=self.settings.redis.key_prefix,
            sender=self.settings.sender,
            breaker=breaker,  # guard: sender-breaker
            metrics=self._metrics,
            outside=self._outside,
            private_receivers=self.settings.relay.private_webhooks,
        )
        self._stack.push_async_callback(queue.aclose)
        return queue
