"""What operations need of the process they run in: queues, members, the store, the registry of residents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from holdfast.config.names import checked_queue, unknown_queue
from holdfast.config.queues import MAILBOX

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from holdfast.agents.app import App
    from holdfast.config import Settings
    from holdfast.events.event import Event
    from holdfast.hosts.engine import HostEngine
    from holdfast.hosts.registry import AgentRegistry
    from holdfast.redis.client import Redis
    from holdfast.redis.members import Members
    from holdfast.runs.queue import RunQueue
    from holdfast.store.store import Store


@dataclass(frozen=True, slots=True)
class QueueAccess:
    """One queue: ``sender`` submits on a pool of its own; the others read it and the feeds of its runs."""

    sender: RunQueue
    queue: RunQueue
    follow: Callable[[str, str], AsyncGenerator[Event]]
    read: Callable[[str, str, int], Awaitable[list[Event]]]


class StoreAccess(Protocol):
    """A store that is opened when it is first needed."""

    async def get(self) -> Store:
        """Return the store; a SQLite file that is missing is made."""
        ...

    async def found(self) -> Store | None:
        """Return the store if there is one."""
        ...


async def _no_engine() -> HostEngine:
    raise NotImplementedError("this process starts, stops and moves no residents")


@dataclass(slots=True)
class System:
    """The system behind operations; ``queues`` holds every configured queue, the default one first."""

    settings: Settings
    redis: Redis
    queues: dict[str, QueueAccess]
    members: Members
    store: StoreAccess
    unlisted: Callable[[str], QueueAccess]
    """Opens a queue that is not configured here: the mailbox of a resident."""
    registry: Callable[[], AgentRegistry]
    engine: Callable[[], Awaitable[HostEngine]] = _no_engine
    """Starts, stops and moves residents; raises ModuleNotFoundError where gRPC is not installed."""
    app: App | None = None
    makes_store: bool = False
    """Whether a missing SQLite file is made. A command that only reads leaves no empty file behind."""

    async def archive(self) -> Store | None:
        """Return the store, which keeps ended runs and schedules that were made, if there is one."""
        return await (self.store.get() if self.makes_store else self.store.found())

    def queue(self, name: str | None = None) -> QueueAccess:
        """Return the configured queue of that name, or the default one."""
        if not name:
            return next(iter(self.queues.values()))
        found = self.queues.get(name)
        if found is None:
            raise unknown_queue(name, tuple(self.queues))
        return found

    def selected(self, name: str = "") -> list[QueueAccess]:
        """Return the named queue, or all configured ones. A mailbox can be named, too."""
        if name.startswith(MAILBOX):
            return [self.unlisted(checked_queue(name))]
        return [self.queue(checked_queue(name))] if name else list(self.queues.values())
