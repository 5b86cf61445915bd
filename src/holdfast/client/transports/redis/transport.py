"""The transport over Redis: the errors of redis-py become those of Holdfast."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from holdfast.client.transports.redis.rollouts import Rollouts
from holdfast.config.names import checked_queue
from holdfast.errors import HoldfastError, NotFound, RedisUnavailable
from holdfast.events.hub import Hub
from holdfast.redis.breaker import breaker_for_redis
from holdfast.redis.client import connect
from holdfast.redis.connections import Cluster
from holdfast.redis.locate import located
from holdfast.redis.members import Members
from holdfast.redis.translate import translate_errors
from holdfast.runs.feeds import Feeds
from holdfast.runs.past import expired, past_run, unchangeable
from holdfast.runs.queue import RunQueue
from holdfast.runs.store_match import require_registered
from holdfast.runs.waiting import EndWaiter
from holdfast.store.lazy import LazyStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from types import TracebackType

    from holdfast.client.transports.redis.agents import RedisAgents
    from holdfast.client.transports.redis.residents import RedisResidents
    from holdfast.client.transports.redis.schedules import RedisSchedules
    from holdfast.config import RedisSettings, Settings
    from holdfast.events.event import Event
    from holdfast.operations import Operations, QueueAccess
    from holdfast.redis.client import Redis
    from holdfast.reliability.breaker import Breaker
    from holdfast.runs.past import Change
    from holdfast.runs.run import Run, Submission, Ticket
    from holdfast.store.store import Store


class RedisQueueClient:
    """One queue on Redis; a flood of reads can't delay ``sender``, which has its own pool.

    What Redis does not know any more is looked for in the archive, if this machine has a way to it.
    """

    def __init__(
        self, sender: RunQueue, reader: RunQueue, hub: Hub, archive: LazyStore, redis: RedisSettings
    ) -> None:
        self._sender = sender
        self._reader = reader
        self._feed = Feeds(reader, redis, hub)
        self._ends = EndWaiter(reader, hub)
        self._archive = archive
        self._url = redis.url

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._reader.name

    def access(self) -> QueueAccess:
        """Return the queue as operations use it."""
        from holdfast.operations import QueueAccess  # noqa: PLC0415 - most clients need no operations

        return QueueAccess(self._sender, self._reader, self._feed.follow, self._feed.read)

    async def submit(self, wanted: Submission) -> Ticket:
        """Submit a run; concurrent calls travel together."""
        with translate_errors(self._url):
            return await self._sender.submit(wanted)

    async def submit_many(self, wanted: Sequence[Submission]) -> Sequence[Ticket | Exception]:
        """Ask for many in as few calls as possible."""
        with translate_errors(self._url):
            answers = await self._sender.submit_many(wanted)
        return [_ours(each, self._url) if isinstance(each, Exception) else each for each in answers]

    async def get(self, run_id: str) -> Run:
        """Read a run, live or archived."""
        try:
            with translate_errors(self._url):
                return await self._reader.get(run_id)
        except NotFound as missing:
            return await self._past(run_id, missing)

    async def ended(self, run_id: str) -> Run:
        """Wait until a run has ended; all waiters share one blocked connection."""
        run, answered = None, False
        while run is None:
            try:
                with translate_errors(self._url):
                    run = await self._ends.wait(run_id)
                answered = True
            except NotFound as missing:
                # A run may leave Redis while it is waited for: the archive has how it ended.
                run = await self._past(run_id, missing)  # guard: awaited-run-archived-client
            except RedisUnavailable as exc:
                if not answered:
                    raise
                await asyncio.sleep(exc.retry_after)
        return run

    async def follow(self, run_id: str, after: str) -> AsyncGenerator[Event]:
        """Yield events until the run has ended."""
        try:
            async with contextlib.aclosing(self._feed.follow(run_id, after)) as events:
                async for event in events:
                    yield event
        except NotFound as missing:
            raise expired(await self._past(run_id, missing)) from None

    async def cancel(self, run_id: str, reason: str) -> str:
        """Cancel a run."""
        async with self._changing(run_id, "cancel"):
            return await self._reader.cancel(run_id, reason)

    async def resume(self, run_id: str, answer: Any) -> None:
        """Answer an interrupted run."""
        async with self._changing(run_id, "resume"):
            await self._reader.resume_run(run_id, answer)

    async def retry(self, run_id: str) -> None:
        """Queue a run again that ended badly."""
        async with self._changing(run_id, "retry"):
            await self._reader.replay(run_id)

    @contextlib.asynccontextmanager
    async def _changing(self, run_id: str, change: Change) -> AsyncGenerator[None]:
        try:
            with translate_errors(self._url):
                yield
        except NotFound as missing:
            raise unchangeable(await self._past(run_id, missing), change) from None

    async def _past(self, run_id: str, missing: NotFound) -> Run:
        return await past_run(self._archive, run_id, missing, queue=self.name)


def _ours(exc: Exception, url: str) -> Exception:
    """An error that stands in a list as it would have been raised: of a partition, say."""
    try:
        with translate_errors(url):
            raise exc
    except HoldfastError as ours:
        return ours


class _ComparedStore:
    """The store, once it was compared with the one that the system has registered."""

    def __init__(self, store: LazyStore, redis: Redis, settings: Settings) -> None:
        self._store = store
        self._redis = redis
        self._settings = settings
        self._compared: Store | None = None

    async def get(self) -> Store:
        """Return the store."""
        return await self._admitted(await self._store.get())

    async def found(self) -> Store | None:
        """Return the store if there is one."""
        store = await self._store.found()
        return None if store is None else await self._admitted(store)

    async def _admitted(self, store: Store) -> Store:
        if store is not self._compared:
            # guard: client-store-compared
            await require_registered(store, self._redis, self._settings, "client")
            self._compared = store
        return store


class RedisTransport:
    """Connections to the configured Redis, or to the embedded server of this directory if one runs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = located(settings)
        redis = self._settings.redis
        self._reading, self._sending = connect(redis), connect(redis)
        self.breaker = breaker_for_redis(redis.breaker)
        self._queues: dict[str, RedisQueueClient] = {}
        self._stack = contextlib.AsyncExitStack()
        self._archive = LazyStore(settings.database)
        self._hub = Hub(self._reading, redis)
        self._system_store = _ComparedStore(self._archive, self._reading, self._settings)
        for opened in (self._reading, self._sending, self._archive):
            self._stack.push_async_callback(opened.aclose)

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._hub)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, exc, trace)

    def queue(self, name: str | None) -> RedisQueueClient:
        """The queue of that name, or the default one."""
        name = name or self._settings.messaging.queue
        if name not in self._queues:
            self._queues[name] = self._connect(checked_queue(name))
        return self._queues[name]

    def rollouts(self) -> Rollouts:
        """The roll-outs."""
        return Rollouts(self._sending, prefix=self._settings.redis.key_prefix)

    def breaker_apart(self) -> Breaker:
        """A breaker for keys that are not a queue's: in a cluster their server fails on its own."""
        return self.breaker.twin() if isinstance(self._sending, Cluster) else self.breaker

    def schedules(self) -> RedisSchedules:
        """The schedules."""
        from holdfast.client.transports.redis.schedules import RedisSchedules  # noqa: PLC0415 - most clients need none
        from holdfast.operations.schedules import ScheduleOperations  # noqa: PLC0415 - as above

        system = replace(self._operations.system, store=self._system_store)
        return RedisSchedules(ScheduleOperations(system, self._operations.caller), self._settings.redis.url)

    @cached_property
    def _operations(self) -> Operations:
        """What an operator can ask: who reaches Redis may do everything."""
        from holdfast.hosts.factory import LazyEngine, registry_of  # noqa: PLC0415 - most clients need no operations
        from holdfast.operations import Operations, System  # noqa: PLC0415
        from holdfast.operations.caller import OPERATOR  # noqa: PLC0415

        settings = self._settings
        engines = LazyEngine(settings, self._reading)
        self._stack.push_async_callback(engines.close)
        system = System(
            settings=settings,
            redis=self._reading,
            queues={name: self.queue(name).access() for name in settings.queue_names()},
            members=Members.of(settings),
            store=self._archive,
            unlisted=lambda name: self.queue(name).access(),
            registry=lambda: registry_of(settings, self._reading),
            engine=engines.require,
        )
        return Operations(system, OPERATOR)

    def agents(self) -> RedisAgents:
        """The registered agents."""
        from holdfast.client.transports.redis.agents import RedisAgents  # noqa: PLC0415 - most clients need none

        return RedisAgents(self._operations.agents, self._settings.redis.url)

    def residents(self) -> RedisResidents:
        """The long-lived agents, which live on hosts."""
        from holdfast.client.transports.redis.residents import RedisResidents  # noqa: PLC0415 - most clients need none

        return RedisResidents(self._operations, self._settings.redis.url)

    def _connect(self, name: str) -> RedisQueueClient:
        settings, redis = self._settings, self._settings.redis
        queue = settings.queue_named(name)
        sender = RunQueue(
            queue,
            self._sending,
            prefix=redis.key_prefix,
            sender=settings.sender,
            breaker=self.breaker,
            outside=bool(settings.event_api.url),
            private_receivers=settings.relay.private_webhooks,
        )
        self._stack.push_async_callback(sender.aclose)
        reader = RunQueue(queue, self._reading, prefix=redis.key_prefix)
        return RedisQueueClient(sender, reader, self._hub, self._archive, redis)
