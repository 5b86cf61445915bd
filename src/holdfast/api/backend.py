"""What the API stands on: queues to send to and to look at, feeds, members, the archive."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from holdfast.agents.app import App
    from holdfast.api.unserved import UnservedQueues
    from holdfast.config import Settings
    from holdfast.events.event import Event
    from holdfast.hosts.engine import Engine
    from holdfast.hosts.registry import Registry
    from holdfast.redis.client import Redis
    from holdfast.redis.members import Members
    from holdfast.runs.queue import RunQueue
    from holdfast.store.door import StoreDoor
    from holdfast.telemetry.exporter import Answer


@dataclass(frozen=True, slots=True)
class Line:
    """One queue: ``sender`` submits on a pool of its own; the others look at it and at its runs' feeds."""

    sender: RunQueue
    queue: RunQueue
    follow: Callable[[str, str], AsyncGenerator[Event]]
    read: Callable[[str, str, int], Awaitable[list[Event]]]


@dataclass(slots=True)
class Backend:
    """The system behind the API; ``lines`` holds every configured queue, the default one first."""

    settings: Settings
    redis: Redis
    lines: Mapping[str, Line]
    members: Members
    registry: Registry
    mailbox: Callable[[str], Line]
    """The queue of a resident's messages, by its name."""
    engine: Callable[[], Awaitable[Engine]]
    """What starts, stops and moves agents; raises ModuleNotFoundError where gRPC is not installed."""
    app: App | None
    store: StoreDoor
    metrics: Callable[[str], Answer]
    """What /metrics answers to an Accept header."""
    count: Callable[[str, int, float], None]
    """Counts a request: its route, its status and its seconds."""
    streams: Callable[[int], None]
    """Counts open event streams: one more, one less."""
    unserved: UnservedQueues
    """Queues whose runs wait without a worker."""
    draining: asyncio.Event = field(default_factory=asyncio.Event)
