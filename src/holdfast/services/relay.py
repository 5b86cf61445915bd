"""The relay brings events to the outside: to the Event API, to webhooks, to A2A clients that want to be told.

It is a part that other processes may run too; :func:`run_relay` is the process of its own. Any number of
relays share the work: a line is held by one of them at a time, and taken over when that one dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from functools import partial
from typing import TYPE_CHECKING

import uvloop

from holdfast.events.courier import Courier
from holdfast.events.notifications import Notifications
from holdfast.events.outbox import Outbox
from holdfast.events.pace import Pace, Slots, Wakeup
from holdfast.events.sinks.destinations import Destinations
from holdfast.events.sinks.eventapi import EventApi
from holdfast.events.sinks.push import Push
from holdfast.events.sinks.webhook import Webhook
from holdfast.events.spreader import Origins, Spreader
from holdfast.leases.keeper import Keeper
from holdfast.leases.lease import Lease, Standing
from holdfast.packages import needs_extra
from holdfast.redis.members import Members
from holdfast.runs.queue import COUNT_SECONDS
from holdfast.services.connections import Connections
from holdfast.services.presence import Presence
from holdfast.services.process import plain_errors
from holdfast.services.rounds import Tolerance, repeat
from holdfast.services.signals import ignore_signals, on_signals
from holdfast.services.store_registration import check_schema
from holdfast.telemetry.exporter import Exporter
from holdfast.telemetry.logs import get_logger
from holdfast.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
    from contextlib import AbstractAsyncContextManager

    from holdfast.config import Settings
    from holdfast.events.outbox import Line
    from holdfast.events.sinks.poster import Poster
    from holdfast.events.sinks.request import Sink
    from holdfast.redis.client import Redis
    from holdfast.runs.partition import Partition
    from holdfast.runs.queue import RunQueue

_GAUGES_SECONDS = 5.0
_GOODBYE_SECONDS = 2.0

_log = get_logger(__name__)


class LineLeases:
    """The lines of one outbox as leases, for the keeper."""

    kind = "relay"

    def __init__(self, outbox: Outbox, owner: str) -> None:
        self._outbox = outbox
        self._owner = owner

    def lease(self, line: Line) -> Lease:
        """The lease on a line that was claimed."""
        return Lease(line.name, self._owner, line.fence)

    async def renew(self, redis: Redis, leases: Sequence[Lease]) -> Sequence[Standing]:
        """Keep the lines that are still ours."""
        kept = await self._outbox.renew(redis, [_line_of(lease) for lease in leases])
        return [Standing.KEPT if each else Standing.LOST for each in kept]

    async def release(self, redis: Redis, leases: Sequence[Lease]) -> Sequence[bool]:
        """Do nothing: a line is put back by its courier, who knows until when."""
        del redis
        return [False for _ in leases]


def _line_of(lease: Lease) -> tuple[str, str, int]:
    run_id, _, sink = lease.key.partition(" ")
    return run_id, sink, lease.fence


class Relay:
    """Delivers the events of all configured queues until it is stopped or cancelled."""

    def __init__(self, connections: Connections, metrics: Metrics, *, name: str = "") -> None:
        settings = connections.settings
        self.name = name or f"relay-{uuid.uuid4()}"
        self._connections = connections
        self._settings = settings
        self._metrics = metrics
        members = Members.of(settings)
        self._sinks = _sinks(settings)
        self._presence = Presence(
            members,
            connections.redis,
            metrics,
            kind="relay",
            name=self.name,
            queues=settings.queue_names(),
            sinks=",".join(self._sinks),
        )
        self._destinations = Destinations(settings.relay)
        self._pace = Pace(settings.relay.poll_seconds, metrics)
        self._notifications = Notifications(connections.open_subscriber)
        self._slots = {sink: Slots(settings.relay.concurrency) for sink in self._sinks}
        self._queues = [connections.queue(settings.queue_named(name)) for name in settings.queue_names()]
        self._outboxes: dict[str, list[Outbox]] = {
            queue.name: [self._outbox(partition) for partition in queue.partitions] for queue in self._queues
        }
        metrics.relay_receivers_down.set_function(self._destinations.open_breakers)

    def request_stop(self) -> None:
        """Stop soon: what is being sent is waited for, and every line is let go for others."""
        self._pace.stop()

    async def run(self) -> None:
        """Deliver until stopped."""
        async with _open_poster(self._settings) as poster, self._keeper() as keeper:
            try:
                async with asyncio.TaskGroup() as group:
                    upkeep = [
                        group.create_task(each)
                        for each in (
                            keeper.watch(),
                            self._presence.beat(),
                            *(self._gauges(queue.name) for queue in self._queues),
                            self._notifications.run(),
                        )
                    ]
                    _log.info("relay ready", name=self.name, queues=list(self._outboxes))
                    async with asyncio.TaskGroup() as delivering:

                        def serve(name: str, outbox: Outbox) -> None:
                            for each in self._loops(poster, keeper, name, outbox):
                                delivering.create_task(each)

                        for name, outboxes in self._outboxes.items():
                            for outbox in outboxes:
                                serve(name, outbox)
                        for queue in self._queues:
                            delivering.create_task(self._look_for_partitions(queue, serve))
                    for task in upkeep:
                        task.cancel()
            finally:
                await self._presence.leave()

    async def _look_for_partitions(self, queue: RunQueue, serve: Callable[[str, Outbox], None]) -> None:
        """Deliver also for partitions that others count on."""
        tolerance = Tolerance(self._metrics, "search for partitions")
        outboxes = self._outboxes[queue.name]
        while not self._pace.stopping:
            with tolerance:
                for partition in await queue.look_around(len(outboxes)):
                    outbox = self._outbox(partition)
                    outboxes.append(outbox)
                    serve(queue.name, outbox)
            await self._pace.either(asyncio.sleep(COUNT_SECONDS))

    def _outbox(self, partition: Partition) -> Outbox:
        settings = self._settings
        return Outbox(
            partition.keys,
            partition.redis,
            owner=self.name,
            ttl_seconds=settings.lease.ttl_seconds,
            event_api=bool(settings.event_api.url),
        )

    def _loops(
        self, poster: Poster, keeper: Keeper, name: str, outbox: Outbox
    ) -> Generator[Coroutine[None, None, None]]:
        """A partition's spreader, and its courier for each sink; notifications wake both."""
        origins, leases = Origins(name, outbox), LineLeases(outbox, self.name)
        wakeups = {sink: Wakeup() for sink in self._sinks}
        couriers = tuple(wakeups.values())
        spreader = Spreader(outbox, origins, self._pace, self._metrics, couriers)
        self._notifications.add(outbox.channel, spreader.notify, (spreader.wakeup, *couriers))
        yield spreader.run()
        for sink in self._sinks.values():
            yield Courier(
                outbox,
                sink,
                self._settings.relay,
                origins=origins,
                poster=poster,
                destinations=self._destinations,
                slots=self._slots[sink.name],
                pace=self._pace,
                hold=_holder(keeper, leases),
                wakeup=wakeups[sink.name],
                metrics=self._metrics,
            ).run()

    def _keeper(self) -> Keeper:
        return Keeper(self._settings.lease, self._connections.for_keeper, self._metrics)

    # -- upkeep

    async def _gauges(self, name: str) -> None:
        tolerance = Tolerance(self._metrics, "gauges of the relay")
        await repeat(partial(self._measure, name), tolerance, every_seconds=_GAUGES_SECONDS)

    async def _measure(self, name: str) -> None:
        metrics, outboxes = self._metrics, self._outboxes[name]
        for sink in self._sinks:
            waiting = await asyncio.gather(*(outbox.waiting(sink) for outbox in outboxes))
            metrics.relay_waiting.labels(name, sink).set(sum(each.runs for each in waiting))
            metrics.relay_events_waiting.labels(name, sink).set(sum(each.events for each in waiting))
        kept = await asyncio.gather(*(outbox.undelivered() for outbox in outboxes))
        metrics.relay_undelivered_kept.labels(name).set(sum(kept))


def _holder(keeper: Keeper, leases: LineLeases) -> Callable[[Line, float], AbstractAsyncContextManager[None]]:
    @contextlib.asynccontextmanager
    async def hold(line: Line, asked: float) -> AsyncGenerator[None]:
        held = keeper.hold(leases, leases.lease(line), granted_at=asked)
        try:
            async with held:
                yield
        finally:
            held.drop()

    return hold


def _sinks(settings: Settings) -> dict[str, Sink]:
    sinks: list[Sink] = [Webhook(settings.relay.webhook_secret), Push()]
    if settings.event_api.url:
        sinks.append(EventApi(settings.event_api))
    return {sink.name: sink for sink in sinks}


def _open_poster(settings: Settings) -> Poster:
    """The HTTP client, loaded only where there is a relay."""
    with needs_extra("the relay", "relay"):
        from holdfast.events.sinks.poster import Poster  # noqa: PLC0415
    return Poster(settings.relay)


def run_relay(settings: Settings) -> int:
    """Run a relay until SIGTERM or SIGINT; return its exit code."""
    with plain_errors():
        uvloop.run(_until_signal(settings))
    ignore_signals()
    return 0


async def _until_signal(settings: Settings) -> None:
    metrics = Metrics()
    async with Connections(settings) as connections:
        relay = Relay(connections, metrics)
        on_signals(_politely(relay))
        await check_schema(settings.database)
        with Exporter(metrics, settings.metrics, ready=lambda: True):
            await relay.run()


def _politely(relay: Relay) -> Callable[[], None]:
    """The first signal asks the relay to stop, the second ends what it still waits for."""
    task = asyncio.current_task()
    asked = False

    def stop() -> None:
        nonlocal asked
        if asked and task is not None:
            task.cancel()
        asked = True
        relay.request_stop()

    return stop
