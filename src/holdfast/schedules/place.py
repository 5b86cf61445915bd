"""What every run of a scheduler shares: the app, where agents run, and what it was given by its process."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

from holdfast.redis.keys import ScheduleKeys

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures

    from holdfast.agents.app import App
    from holdfast.agents.memory import Memory
    from holdfast.config import RedisSettings, SchedulerSettings
    from holdfast.schedules.schedule import Schedule


class Submit(Protocol):
    """Asks for a run of a schedule's agent in its target queue."""

    async def __call__(self, schedule: Schedule, turn: str, /) -> None:
        """Ask once: the same ``turn`` again asks for nothing new."""
        ...


class MemoryStore(Protocol):
    """What the memory of a turn is taken from."""

    def memory(self, *, run_id: str, thread_id: str, fence: int, owner: str) -> Memory:
        """Return the memory of one attempt; nothing is read before it is used."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """One scheduler's surroundings."""

    app: App
    settings: SchedulerSettings
    executor: concurrent.futures.Executor
    draining: asyncio.Event
    owner: str
    submit: Submit | None = None
    store: MemoryStore | None = None


def schedule_keys(settings: RedisSettings) -> ScheduleKeys:
    """The keys of the configured set of schedules."""
    keys = settings.scheduler.keys
    return ScheduleKeys.of(
        prefix=settings.key_prefix + keys.prefix,
        waiting=keys.waiting_set,
        working=keys.working_set,
        leader=keys.cleanup_leader_key,
        hash_tag=keys.hash_tag,
    )
