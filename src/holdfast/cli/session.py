"""A command's connection to the system. Names are checked here: a typo is an error, not an empty answer."""

from __future__ import annotations

import contextlib
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from holdfast.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from holdfast.config import Settings
    from holdfast.operations import Operations, QueueAccess, System
    from holdfast.redis.members import Members
    from holdfast.runs.queue import RunQueue
    from holdfast.services.connections import Connections

T = TypeVar("T")


class Session:
    """The system as commands reach it: over Redis, as an operator."""

    def __init__(
        self, settings: Settings, connections: Connections, stack: contextlib.AsyncExitStack
    ) -> None:
        self.settings = settings
        self.redis = connections.redis
        self.store = connections.store
        self._connections = connections
        self._stack = stack

    def queues(self) -> list[RunQueue]:
        """Every configured queue, the default one first."""
        return [self._connections.queue(self.settings.queue_named(n)) for n in self.settings.queue_names()]

    async def queue(self, name: str | None = None) -> RunQueue:
        """The queue of that name, or the default one; it is configured or in use, else NotFound."""
        from holdfast.config.names import checked_queue

        name = self.settings.messaging.queue if name is None else checked_queue(name)
        queue = self._connections.queue(self.settings.queue_named(name))
        if name not in self.settings.queue_names() and not await self._in_use(queue):
            raise NotFound(
                f"no queue {name!r} is configured or in use{meant(name, self.settings.queue_names())}"
            )
        return queue

    async def _in_use(self, queue: RunQueue) -> bool:
        keys = queue.keys
        return bool(await self.redis.exists(*keys.lanes, keys.runs, keys.gate, keys.delayed))

    async def operations(self, queue: str | None = None) -> Operations:
        """Return what a command can ask for; ``queue`` may be one that is in use but not configured."""
        from holdfast.operations import Operations
        from holdfast.operations.caller import OPERATOR

        if queue is not None:
            named = await self.queue(queue)
            self._system.queues[named.name] = self._access(named)
        return Operations(self._system, OPERATOR)

    @cached_property
    def _system(self) -> System:
        from holdfast.hosts.factory import LazyEngine, registry_of
        from holdfast.operations import System

        engines = LazyEngine(self.settings, self.redis)
        self._stack.push_async_callback(engines.close)
        return System(
            settings=self.settings,
            redis=self.redis,
            queues={queue.name: self._access(queue) for queue in self.queues()},
            members=self.members(),
            store=self.store,
            unlisted=self._mailbox,
            registry=lambda: registry_of(self.settings, self.redis),
            engine=engines.require,
        )

    def _access(self, queue: RunQueue, sender: RunQueue | None = None) -> QueueAccess:
        from holdfast.operations import QueueAccess
        from holdfast.runs.feeds import Feeds

        feeds = Feeds(queue, self.settings.redis)
        return QueueAccess(sender or queue, queue, feeds.follow, feeds.read)

    def _mailbox(self, name: str) -> QueueAccess:
        """A resident's mailbox: a message is sent again, with the same key, where a reply was lost."""
        settings = self.settings.queue_named(name)
        return self._access(self._connections.queue(settings), self._connections.sender(settings))

    def members(self) -> Members:
        """The live processes."""
        from holdfast.redis.members import Members

        return Members.of(self.settings)


def in_session(
    settings: Settings,
    work: Callable[[Session], Awaitable[T]],
    *,
    start_server: bool = False,
    any_store: bool = False,
) -> T:
    """Do ``work`` with the Redis that is configured, or else with this directory's embedded server.

    ``start_server`` starts an embedded server that was used here before and does not run now.
    A store other than the registered one is refused, unless ``any_store``.
    """
    from holdfast.redis.locate import located
    from holdfast.services.signals import run_until_interrupted

    with _embedded(settings) if start_server else contextlib.nullcontext():
        return run_until_interrupted(_connected(located(settings), work, any_store=any_store))


@contextlib.contextmanager
def _embedded(settings: Settings) -> Generator[None]:
    """Keep this directory's embedded server running, if there is one and no other Redis is configured."""
    from holdfast.redis.locate import embedded_server

    server = embedded_server(settings.redis)
    if settings.redis.url or not server.directory.is_dir():
        yield
        return
    server.start_sync()
    try:
        yield
    finally:
        server.stop_sync()


async def _connected(settings: Settings, work: Callable[[Session], Awaitable[T]], *, any_store: bool) -> T:
    from holdfast.redis.translate import translate_errors
    from holdfast.services.connections import Connections
    from holdfast.services.store_registration import refuse_other_store

    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(translate_errors(settings.redis.url))
        connections = await stack.enter_async_context(Connections(settings))
        if not any_store:
            refuse_other_store(connections)  # guard: command-store-compared
        return await work(Session(settings, connections, stack))


def meant(name: str, known: tuple[str, ...]) -> str:
    """The end of a refusal: which name is close to this one, or else all there are."""
    close = get_close_matches(name, known, n=1)
    return f": did you mean {close[0]!r}?" if close else f": known are {', '.join(known)}"
