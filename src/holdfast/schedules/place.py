"""What every run of a scheduler shares: the app, where agents run, and what it was given by its process."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from holdfast.agents.deadlines import Deadlines
from holdfast.config.checks import key_slot
from holdfast.config.shown import redacted
from holdfast.errors import ConfigError
from holdfast.redis.keys import ScheduleKeys
from holdfast.schedules.schedule import family
from holdfast.schedules.targets import Targets

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures

    from holdfast.agents.app import App
    from holdfast.agents.memory import Memory
    from holdfast.config import RedisSettings, SchedulerSettings
    from holdfast.processes.attempts import Attempts
    from holdfast.schedules.schedule import Schedule

_URGENT: Final = 3
_PATIENT: Final = 7
"""Classes of priority up to here go to the high lane of a queue, from there to the low one."""


class Submitted(Protocol):
    """The receipt for a run: its id, and whether it is new."""

    @property
    def run_id(self) -> str:
        """The run's id."""
        ...

    @property
    def fresh(self) -> bool:
        """False if the run was known before."""
        ...


class Submit(Protocol):
    """Submits a run of a schedule's agent to its target queue."""

    async def __call__(self, schedule: Schedule, turn: str, /) -> Submitted:
        """Submit once: the same ``turn`` again is the same run."""
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
    attempts: Attempts | None = None
    deadlines: Deadlines = dataclasses.field(default_factory=Deadlines)
    targets: Targets = dataclasses.field(default_factory=Targets)


def run_request(schedule: Schedule, turn: str) -> dict[str, Any]:
    """Return the fields of the submission that asks for a run: the same turn has the same idempotency key."""
    return {
        "agent": schedule.agent,
        "input": schedule.input,
        "priority": _lane(schedule.priority),
        "tenant": schedule.tenant,
        "idempotency_key": f"schedule:{turn}",
        "metadata": {**schedule.metadata, "schedule": family(schedule.name), "turn": turn},
    }


def _lane(priority: int) -> str:
    if priority <= _URGENT:
        return "high"
    return "low" if priority >= _PATIENT else "normal"


def checked_keys(settings: RedisSettings) -> ScheduleKeys:
    """The same keys, or ConfigError where a cluster would keep them in different slots."""
    keys = schedule_keys(settings)
    if not settings.url.startswith(("redis+cluster://", "rediss+cluster://")):
        return keys
    if len({key_slot(key) for key in msgspec.structs.astuple(keys)}) == 1:
        return keys
    raise ConfigError(
        f"redis.scheduler.keys.hash-tag is empty, and redis.url = {redacted(settings.url)} is a cluster: a "
        "script moves a schedule between several keys, which must be in one slot. Set "
        "redis.scheduler.keys.hash-tag, to ps for example: the keys are then waiting{ps}, working{ps}, …"
    )


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
