"""A command's connection to the system. Names are checked here: a typo is an error, not an empty answer."""

from __future__ import annotations

import contextlib
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

from holdfast.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from holdfast.config import Settings
    from holdfast.redis.members import Members
    from holdfast.runs.feeds import Feeds
    from holdfast.runs.queue import RunQueue
    from holdfast.runs.run import Run
    from holdfast.services.connections import Connections

T = TypeVar("T")


class Station:
    """The queues, runs and members that a command may ask for."""

    def __init__(self, settings: Settings, connections: Connections) -> None:
        self.settings = settings
        self.redis = connections.redis
        self.store = connections.store
        self._connections = connections

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

    async def queue_of(self, run_id: str, name: str | None) -> RunQueue:
        """The queue that holds this run: the one that was named, or whichever does."""
        queues = [await self.queue(name)] if name is not None else self.queues()
        for queue in queues:
            if await queue.has(run_id):
                return queue
        where = " or ".join(repr(queue.name) for queue in queues)
        raise NotFound(
            f"no run {run_id!r} in queue {where}: ended runs are kept for a while only; "
            "`holdfast runs list` shows what is there"
        )

    async def run(self, run_id: str, name: str | None) -> tuple[Run, bool]:
        """Everything known of a run, and whether only the archive has it."""
        try:
            return await (await self.queue_of(run_id, name)).get(run_id), False
        except NotFound as missing:
            return await self.past(run_id, name, missing), True

    async def past(self, run_id: str, name: str | None, missing: NotFound) -> Run:
        """A run that only the archive knows, else ``missing``."""
        from holdfast.runs.past import past_run

        return await past_run(self.store, run_id, missing, queue=name or "")

    def feed(self, queue: RunQueue) -> Feeds:
        """The feeds of a queue's runs."""
        from holdfast.runs.feeds import Feeds

        return Feeds(queue, self.settings.redis)

    def members(self) -> Members:
        """The live processes."""
        from holdfast.redis.members import Members

        return Members.of(self.settings)


def at_station(
    settings: Settings,
    work: Callable[[Station], Awaitable[T]],
    *,
    start_server: bool = False,
    any_store: bool = False,
) -> T:
    """Do ``work`` with the Redis that is configured, or else with this directory's embedded server.

    ``start_server`` starts an embedded server that was used here before and does not run now.
    A store other than the registered one is refused, unless ``any_store``.
    """
    from holdfast.redis.nearby import located
    from holdfast.services.signals import run_until_interrupted

    with _embedded(settings) if start_server else contextlib.nullcontext():
        return run_until_interrupted(_connected(located(settings), work, any_store=any_store))


@contextlib.contextmanager
def _embedded(settings: Settings) -> Generator[None]:
    """Keep this directory's embedded server running, if there is one and no other Redis is configured."""
    from holdfast.redis.nearby import embedded_server

    server = embedded_server(settings.redis)
    if settings.redis.url or not server.directory.is_dir():
        yield
        return
    server.start_sync()
    try:
        yield
    finally:
        server.stop_sync()


async def _connected(settings: Settings, work: Callable[[Station], Awaitable[T]], *, any_store: bool) -> T:
    from holdfast.redis.edge import answering
    from holdfast.services.connections import Connections
    from holdfast.services.store_registration import refuse_other_store

    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(answering(settings.redis.url))
        connections = await stack.enter_async_context(Connections(settings))
        if not any_store:
            refuse_other_store(connections)  # guard: command-store-compared
        return await work(Station(settings, connections))


def meant(name: str, known: tuple[str, ...]) -> str:
    """The end of a refusal: which name is close to this one, or else all there are."""
    close = get_close_matches(name, known, n=1)
    return f": did you mean {close[0]!r}?" if close else f": known are {', '.join(known)}"
