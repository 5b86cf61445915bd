"""The relay process: delivers events to the Event API, to webhooks and to A2A clients (``events/relay``).

:class:`Relay` also runs inside other processes; :func:`run_relay` is the process of its own. Any number of
relays share the work: an outbox entry is held by one of them at a time, and taken over when that one dies.
"""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from typing import TYPE_CHECKING

import uvloop

from holdfast.events.relay.delivery import Delivery, SinkResources
from holdfast.events.relay.fan_out import FanOut
from holdfast.events.relay.leases import EntryLeases
from holdfast.events.relay.loop import DeliverySlots, LoopControl, LoopWakeup
from holdfast.events.relay.notifications import Notifications
from holdfast.events.relay.outbox import Outbox
from holdfast.events.relay.retry import RetryPolicy
from holdfast.events.relay.run_facts import RunFactsCache
from holdfast.events.relay.sender import Sender
from holdfast.events.sinks.destinations import Destinations
from holdfast.events.sinks.eventapi import EventApi
from holdfast.events.sinks.push import PushSink
from holdfast.events.sinks.webhook import Webhook
from holdfast.leases.keeper import Keeper
from holdfast.packages import needs_extra
from holdfast.redis.members import Members
from holdfast.runs.queue import COUNT_SECONDS
from holdfast.services.connections import Connections
from holdfast.services.heartbeat import Heartbeat
from holdfast.services.process import run_process
from holdfast.services.rounds import Tolerance, repeat
from holdfast.services.signals import on_signals
from holdfast.services.store_registration import check_schema
from holdfast.telemetry.exporter import Exporter
from holdfast.telemetry.logs import get_logger
from holdfast.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Sequence

    from holdfast.config import Settings
    from holdfast.events.sinks.poster import Poster
    from holdfast.events.sinks.request import Sink
    from holdfast.runs.partition import Partition
    from holdfast.runs.queue import RunQueue

_GAUGES_SECONDS = 5.0
_LEAVE_SECONDS = 2.0

_log = get_logger(__name__)


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
        self._heartbeat = Heartbeat(
            members,
            connections.redis,
            metrics,
            kind="relay",
            name=self.name,
            queues=settings.queue_names(),
            sinks=",".join(self._sinks),
        )
        self._destinations = Destinations(settings.relay)
        self._loops = LoopControl(settings.relay.poll_seconds, metrics)
        self._notifications = Notifications(connections.open_subscriber)
        self._queues = [connections.queue(settings.queue_named(name)) for name in settings.queue_names()]
        self._outboxes: dict[str, list[Outbox]] = {
            queue.name: [self._outbox(partition) for partition in queue.partitions] for queue in self._queues
        }
        metrics.relay_receivers_down.set_function(self._destinations.open_breakers)

    def request_stop(self) -> None:
        """Stop soon: requests under way are awaited, and every entry is released for other relays."""
        self._loops.stop()

    async def run(self) -> None:
        """Deliver until stopped."""
        async with _open_poster(self._settings) as poster, self._keeper() as keeper:
            sinks = [self._resources_of(each, poster) for each in self._sinks.values()]
            try:
                async with asyncio.TaskGroup() as group:
                    upkeep = [
                        group.create_task(each)
                        for each in (
                            keeper.watch(),
                            self._heartbeat.beat(),
                            *(self._gauges(queue.name) for queue in self._queues),
                            self._notifications.run(),
                        )
                    ]
                    _log.info("relay ready", name=self.name, queues=list(self._outboxes))
                    async with asyncio.TaskGroup() as delivering:

                        def serve(name: str, outbox: Outbox) -> None:
                            for each in self._loops_of(sinks, keeper, name, outbox):
                                delivering.create_task(each)

                        for name, outboxes in self._outboxes.items():
                            for outbox in outboxes:
                                serve(name, outbox)
                        for queue in self._queues:
                            delivering.create_task(self._find_partitions(queue, serve))
                    for task in upkeep:
                        task.cancel()
            finally:
                await self._heartbeat.leave()

    async def _find_partitions(self, queue: RunQueue, serve: Callable[[str, Outbox], None]) -> None:
        """Deliver also for partitions that other processes have added."""
        tolerance = Tolerance(self._metrics, "search for partitions")
        outboxes = self._outboxes[queue.name]
        while not self._loops.stopping:
            with tolerance:
                for partition in await queue.look_around(len(outboxes)):
                    outbox = self._outbox(partition)
                    outboxes.append(outbox)
                    serve(queue.name, outbox)
            await self._loops.wait_or_stop(asyncio.sleep(COUNT_SECONDS))

    def _outbox(self, partition: Partition) -> Outbox:
        settings = self._settings
        return Outbox(
            partition.keys,
            partition.redis,
            owner=self.name,
            ttl_seconds=settings.lease.ttl_seconds,
            event_api=bool(settings.event_api.url),
        )

    def _loops_of(
        self, sinks: Sequence[SinkResources], keeper: Keeper, queue: str, outbox: Outbox
    ) -> Generator[Coroutine[None, None, None]]:
        """Return a partition's fan-out and its deliveries to each sink; notifications wake all of them."""
        runs, leases = RunFactsCache(queue, outbox), EntryLeases(outbox, self.name, keeper)
        wakeups = tuple(LoopWakeup() for _ in sinks)
        fan_out = FanOut(outbox, runs, self._loops, self._metrics, wakeups)
        self._notifications.add(outbox.channel, fan_out.notify, (fan_out.wakeup, *wakeups))
        yield fan_out.run()
        for sink, wakeup in zip(sinks, wakeups, strict=True):
            yield Delivery(sink, outbox, runs=runs, leases=leases, wakeup=wakeup).run()

    def _resources_of(self, sink: Sink, poster: Poster) -> SinkResources:
        settings, metrics = self._settings.relay, self._metrics
        return SinkResources(
            Sender(sink, settings, poster, self._destinations, metrics),
            RetryPolicy(settings, ours=sink.ours),
            DeliverySlots(settings.concurrency),
            self._loops,
            metrics,
        )

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


def _sinks(settings: Settings) -> dict[str, Sink]:
    sinks: list[Sink] = [Webhook(settings.relay.webhook_secret), PushSink()]
    if settings.event_api.url:
        sinks.append(EventApi(settings.event_api))
    return {sink.name: sink for sink in sinks}


def _open_poster(settings: Settings) -> Poster:
    """Return the HTTP client, loaded only for a relay."""
    with needs_extra("the relay", "relay"):
        from holdfast.events.sinks.poster import Poster  # noqa: PLC0415
    return Poster(settings.relay)


def run_relay(settings: Settings) -> int:
    """Run a relay until SIGTERM or SIGINT; return its exit code."""
    return run_process(lambda: _until_signal(settings), loop_factory=uvloop.new_event_loop)


async def _until_signal(settings: Settings) -> None:
    metrics = Metrics()
    async with Connections(settings) as connections:
        relay = Relay(connections, metrics)
        on_signals(_stop_on_signals(relay))
        await check_schema(settings.database)
        with Exporter(metrics, settings.metrics, ready=lambda: True):
            await relay.run()


def _stop_on_signals(relay: Relay) -> Callable[[], None]:
    """Return a handler: the first signal asks the relay to stop, the second cancels it."""
    task = asyncio.current_task()
    stopping = False

    def stop() -> None:
        nonlocal stopping
        if stopping and task is not None:
            task.cancel()
        stopping = True
        relay.request_stop()

    return stop
