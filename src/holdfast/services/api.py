"""The api process: HTTP in front of the queues; its settings may add a janitor and a relay.

::

    SIGTERM ─> /readyz fails, event streams end with a hint to reconnect, connections are not kept alive
            ─> after linger_seconds no new connection is accepted
            ─> open requests finish within drain_seconds, exit 0 (a second signal: now)

A parent's listening socket (``--fd``) is closed first: new connections wait there for the next process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

import uvicorn
import uvloop

from holdfast.api.app import create_app
from holdfast.api.auth import check_exposure
from holdfast.api.backend import Backend
from holdfast.api.connection import Connection
from holdfast.api.unserved import UnservedQueues
from holdfast.errors import ConfigError
from holdfast.events.hub import Hub
from holdfast.hosts.factory import LazyEngine, registry_of
from holdfast.operations import QueueAccess, System
from holdfast.redis.client import REFUSALS, TROUBLE
from holdfast.redis.connections import Cluster
from holdfast.redis.members import Members, OwnRecord
from holdfast.redis.outages import explain, is_outage, redis_outages
from holdfast.runs.feeds import Feeds
from holdfast.scaling.depth import needs
from holdfast.services.announcing import AnnouncedAgents
from holdfast.services.connections import Connections
from holdfast.services.janitor import Janitor
from holdfast.services.process import leave_at_once, run_process
from holdfast.services.relay import Relay
from holdfast.services.signals import on_signals
from holdfast.services.store_registration import StoreRegistration
from holdfast.telemetry.exporter import Exporter
from holdfast.telemetry.logs import get_logger
from holdfast.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from holdfast.agents.app import App
    from holdfast.config import QueueSettings, Settings
    from holdfast.redis.client import Redis
    from holdfast.runs.queue import RunQueue
    from holdfast.scaling.depth import Need

_LEAVE_SECONDS = 2.0
_FIRST_GROUPS_SECONDS = 2.0
_BACKLOG = 2048
_HANDOVER_SECONDS = 0.3
"""How long the request of a connection that was accepted last may take to arrive."""
_KEEP_ALIVE_SECONDS = 75
"""Longer than a load balancer keeps an idle connection, so that it is the one to close it."""
_log = get_logger(__name__)


class Part(Protocol):
    """A service that runs beside HTTP in the same process."""

    async def run(self) -> None:
        """Work until stopped."""

    def request_stop(self) -> None:
        """Stop soon."""


class Server(uvicorn.Server):
    """uvicorn, without its signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Capture none."""
        yield


class _RejectedQueues:
    """Logs one warning for each queue whose commands Redis rejects, until it accepts them again."""

    def __init__(self, event: str) -> None:
        self._event = event
        self._names: frozenset[str] = frozenset()

    def observe(self, errors: Mapping[str, Exception]) -> None:
        """Log the queues that were not rejected in the pass before."""
        for name, exc in errors.items():
            if name not in self._names:
                _log.warning(self._event, queue=name, error=explain(exc))
        self._names = frozenset(errors)


class ApiProcess:
    """Serves HTTP until it is stopped, then lets open requests finish."""

    def __init__(
        self, settings: Settings, app: App | None = None, *, inherited: socket.socket | None = None
    ) -> None:
        check_exposure(settings.api)
        self._settings = settings
        self._app = app
        self._inherited = inherited
        self.name = f"api-{uuid.uuid4()}"
        self.metrics = Metrics(app.agents if app is not None else None)
        self.port = 0
        self.ready = False
        self._outages = redis_outages("heartbeats of the API")
        self._group_outages = redis_outages("consumer groups of the API")
        self._groupless = _RejectedQueues("consumer group creation failed")
        self._unread = _RejectedQueues("queue is not checked for runs without a worker")
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._members = Members.of(settings)
        self._record = OwnRecord(self._members, "api", self.name)
        self._agents = AnnouncedAgents(app, self._members)
        self._unserved = UnservedQueues(settings.api.unserved_seconds)

    def request_stop(self) -> None:
        """Begin the shutdown; a second call ends it at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self) -> None:
        """Serve until stopped."""
        settings = self._settings
        async with contextlib.AsyncExitStack() as stack:
            listener = stack.enter_context(self._inherited or _listen(settings.api.host, settings.api.port))
            self.port = listener.getsockname()[1]
            connections = await stack.enter_async_context(Connections(settings, self.metrics))
            registration = StoreRegistration(connections, "api", self.name)
            await registration.check()
            exporter = stack.enter_context(Exporter(self.metrics, settings.metrics, ready=lambda: self.ready))
            hub = await stack.enter_async_context(Hub(connections.redis, settings.redis))
            engines = LazyEngine(settings, connections.redis)
            stack.push_async_callback(engines.close)
            backend = self._backend(connections, hub, exporter, engines)
            server = Server(self._config(backend))
            await self._serve(connections, registration, backend, server, listener)

    # -- wiring

    def _backend(
        self, connections: Connections, hub: Hub, exporter: Exporter, engines: LazyEngine
    ) -> Backend:
        settings = self._settings
        registry = registry_of(settings, connections.redis, self.metrics)
        system = System(
            settings=settings,
            redis=connections.redis,
            queues={
                name: self._queue_access(connections, hub, settings.queue_named(name))
                for name in settings.queue_names()
            },
            members=self._members,
            store=connections.store,
            unlisted=partial(self._mailbox, connections, hub),
            registry=lambda: registry,
            engine=engines.get,
            app=self._app,
            makes_store=True,
        )
        return Backend(
            system=system,
            metrics=partial(exporter.answer, "/metrics"),
            count=self._count,
            streams=self.metrics.http_streams.inc,
            unserved=self._unserved,
        )

    def _queue_access(self, connections: Connections, hub: Hub, settings: QueueSettings) -> QueueAccess:
        queue = connections.queue(settings)
        feeds = Feeds(queue, self._settings.redis, hub)
        # guard: api-submit-breaker
        return QueueAccess(connections.sender(settings), queue, feeds.follow, feeds.read)

    def _mailbox(self, connections: Connections, hub: Hub, name: str) -> QueueAccess:
        """Return access to a resident's mailbox: there may be many, so they have no own pools and labels."""
        queue = connections.queue(self._settings.queue_named(name))
        feeds = Feeds(queue, self._settings.redis, hub)
        return QueueAccess(queue, queue, feeds.follow, feeds.read)

    def _parts(self, connections: Connections) -> list[Part]:
        api = self._settings.api
        janitor = [Janitor(connections, self.metrics)] if api.janitor else []
        relay = [Relay(connections, self.metrics)] if api.relay else []
        return [*janitor, *relay]

    def _config(self, backend: Backend) -> uvicorn.Config:
        return uvicorn.Config(
            create_app(backend),
            http=cast("type[asyncio.Protocol]", partial(Connection, settings=self._settings.api)),
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            server_header=False,
            # Callers are identified by the peer's own address: a header can claim any address.
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=max(1, round(self._settings.api.drain_seconds)),
        )

    def _count(self, route: str, status: int, seconds: float) -> None:
        self.metrics.http_requests.child(route, str(status)).inc()
        self.metrics.http_request_seconds.child(route).observe(seconds)

    # -- serving

    async def _serve(
        self,
        connections: Connections,
        registration: StoreRegistration,
        backend: Backend,
        server: Server,
        listener: socket.socket,
    ) -> None:
        parts = self._parts(connections)
        with contextlib.suppress(TimeoutError):  # a Redis that does not respond must not delay readiness
            async with asyncio.timeout(_FIRST_GROUPS_SECONDS):
                await self._ensure_groups(backend)
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(server.serve([listener]), name="http")
            working = [group.create_task(part.run(), name=type(part).__name__) for part in parts]
            rounds = [
                group.create_task(self._heartbeat(connections), name="heartbeat"),
                group.create_task(registration.keep(), name="store registration"),
                group.create_task(self._keep_groups(backend), name="groups"),
                group.create_task(self._report_unserved(backend), name="unserved"),
            ]
            self.ready = True
            _log.info("api ready", name=self.name, host=self._settings.api.host, port=self.port)
            await self._stop.wait()
            self.ready = False
            backend.draining.set()
            await self._drain(server, serving)
            for part in parts:
                part.request_stop()
            await self._stopped(working)
            for task in rounds:
                task.cancel()
        with contextlib.suppress(*TROUBLE, TimeoutError):  # else the record expires
            async with asyncio.timeout(_LEAVE_SECONDS):
                await self._record.leave(connections.redis)
        _log.info("api left", name=self.name)

    async def _drain(self, server: Server, serving: asyncio.Task[None]) -> None:
        """Accept no new connections after linger_seconds, and wait for open requests."""
        _log.info("api draining", open_requests=len(server.server_state.tasks))
        hurry = asyncio.create_task(self._hurry.wait())
        linger_seconds = self._settings.api.linger_seconds
        if self._inherited is not None and server.started:
            for each in server.servers:  # the port stays open: the parent holds the socket, too
                each.close()
            linger_seconds = min(linger_seconds, _HANDOVER_SECONDS)
        try:
            await asyncio.wait((hurry,), timeout=linger_seconds)
            server.should_exit = True
            await asyncio.wait((hurry, serving), return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                server.force_exit = True
                for task in list(server.server_state.tasks):
                    task.cancel()
        finally:
            hurry.cancel()

    async def _stopped(self, working: list[asyncio.Task[None]]) -> None:
        """Wait for the parts, with a timeout: other processes take over their work."""
        if working:
            _, left = await asyncio.wait(working, timeout=_LEAVE_SECONDS)
            for task in left:
                task.cancel()

    async def _ensure_groups(self, backend: Backend) -> None:
        """Create missing consumer groups: with workers scaled to zero no other process does."""
        queues = [each.queue for each in backend.system.queues.values()]
        # A damaged queue must not prevent the groups of the others.
        errors = await asyncio.gather(*(_ensure_error(queue) for queue in queues))
        failed = {queue.name: exc for queue, exc in zip(queues, errors, strict=True) if exc is not None}
        if outage := next((exc for exc in failed.values() if is_outage(exc)), None):
            self._group_outages.failed(outage)
        else:
            self._group_outages.answered()
            self._groupless.observe(failed)  # guard: group-errors-logged

    async def _keep_groups(self, backend: Backend) -> None:
        while True:
            await self._ensure_groups(backend)
            await asyncio.sleep(self._members.heartbeat_seconds)

    async def _heartbeat(self, connections: Connections) -> None:
        fields = {
            "address": f"{self._settings.api.host}:{self.port}",
            **self._agents.fields,
        }
        while True:
            with contextlib.suppress(*TROUBLE), self._outages:
                await self._record.announce(connections.redis, fields)
                await self._agents.keep(connections.redis)
            await asyncio.sleep(self._members.heartbeat_seconds)

    async def _report_unserved(self, backend: Backend) -> None:
        """Log queues whose runs wait without a worker, once until they are served again."""
        after = self._settings.api.unserved_seconds
        queues = [each.queue for each in backend.system.queues.values()]
        while after:
            try:
                found, unread = await _read_needs(backend.system.redis, queues)
                workers = await self._members.all(backend.system.redis, "worker")
            except TROUBLE as exc:
                self._unserved.forget_times()
                if not is_outage(exc):  # of the members: no queue can be checked
                    self._unread.observe({queue.name: exc for queue in queues})
            else:
                # An outage has its own log lines.
                self._unread.observe({name: exc for name, exc in unread.items() if not is_outage(exc)})
                began, ended = self._unserved.observe(time.monotonic(), found, workers, unread)
                for need in began:
                    _log.warning(
                        "runs wait in a queue that no worker serves",
                        queue=need.queue,
                        waiting=need.undelivered + need.due,
                        hint="start a worker of this queue, or correct messaging.queue or worker.queues",
                    )
                for name in ended:
                    _log.info("runs no longer wait in a queue without a worker", queue=name)
            await asyncio.sleep(min(self._members.heartbeat_seconds, after / 2))


async def _ensure_error(queue: RunQueue) -> Exception | None:
    """Create the group of a queue; return the error of Redis, if it is one."""
    try:
        await queue.ensure()
    except TROUBLE as exc:
        return exc
    return None


async def _read_needs(redis: Redis, queues: Sequence[RunQueue]) -> tuple[list[Need], dict[str, Exception]]:
    """Read all queues in one round trip; each by itself on a cluster, or if Redis rejects one.

    Returns also why queues could not be read. Raises if Redis is unavailable; on a cluster, if no server of a
    queue responds.
    """
    on_cluster = isinstance(redis, Cluster)
    if not on_cluster:
        try:
            return await needs(redis, queues), {}
        except REFUSALS as exc:
            if is_outage(exc):
                raise
    read = (needs(redis, [queue]) for queue in queues)  # guard: unserved-queue-by-queue
    found, unread = list["Need"](), dict[str, Exception]()
    for queue, result in zip(queues, await asyncio.gather(*read, return_exceptions=True), strict=True):
        if isinstance(result, TROUBLE):
            unread[queue.name] = result
        elif isinstance(result, BaseException):
            raise result
        else:
            found += result
    outage = next(filter(is_outage, unread.values()), None)
    if outage is not None and not (on_cluster and found):
        raise outage
    return found, unread


def run_api(settings: Settings, app: App | None = None, *, inherited: socket.socket | None = None) -> int:
    """Run the API until SIGTERM or SIGINT; return its exit code."""
    return run_process(lambda: _until_signal(settings, app, inherited), loop_factory=uvloop.new_event_loop)


async def _until_signal(settings: Settings, app: App | None, inherited: socket.socket | None) -> None:
    process = ApiProcess(settings, app, inherited=inherited)
    requests = 0

    def stop() -> None:
        nonlocal requests
        requests += 1
        process.request_stop()
        if requests > 1:  # exit even if a task does not end
            asyncio.get_running_loop().call_later(_LEAVE_SECONDS, leave_at_once)

    on_signals(stop)
    await process.run()


@contextlib.contextmanager
def _listen(host: str, port: int) -> Generator[socket.socket]:
    """Open the port; raise an error that names the setting to change."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)  # from here on callers wait rather than being refused
            listener.settimeout(0)
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as exc:
        raise ConfigError(
            f"api.port (HOLDFAST_API_PORT) {port} can't be opened on api.host (HOLDFAST_API_HOST) {host!r}: "
            f"{exc}; choose another"
        ) from exc
    with listener:
        yield listener
