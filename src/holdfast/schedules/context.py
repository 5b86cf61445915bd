"""What the firings of a scheduler share, and the invocation of one firing's agent."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from holdfast.agents.context import Context, RunInfo, Signals
from holdfast.agents.deadlines import Deadlines
from holdfast.agents.invoke import Invocation
from holdfast.agents.logfields import read_log_fields
from holdfast.agents.memory import LocalMemory
from holdfast.agents.spec import LONGEST_TIMEOUT_SECONDS
from holdfast.leases.trust import Trust
from holdfast.schedules.history import turn_id
from holdfast.schedules.schedule import family
from holdfast.schedules.submission import Targets
from holdfast.schedules.zombies import Overrun
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    import asyncio
    import concurrent.futures

    from holdfast.agents.app import App
    from holdfast.agents.memory import Memory, MemoryStore
    from holdfast.agents.spec import AgentSpec
    from holdfast.config import SchedulerSettings
    from holdfast.processes.attempts import Attempts
    from holdfast.schedules.clock import RedisClock
    from holdfast.schedules.firing import Firing
    from holdfast.schedules.submission import Submit

_GRACE_SECONDS: Final = 10.0
"""How long an agent in a process of its own may ignore its stop."""
_COUNTED_UNDER: Final = "schedules"
_LONGEST_ID: Final = 500

_log = get_logger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class SchedulerContext:
    """What the firings of one scheduler share."""

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
    overrun: Overrun = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "overrun", Overrun.of(self.settings.zombie_cleanup))


def invocation(context: SchedulerContext, firing: Firing, clock: RedisClock) -> Invocation:
    """Make the invocation of an agent in the scheduler; its time ends at deadline + threshold."""
    schedule, acquired, now = firing.schedule, firing.acquired, clock.now()
    spec = context.app.get(schedule.agent)
    seconds = float(LONGEST_TIMEOUT_SECONDS)
    if context.settings.zombie_cleanup.enabled:
        seconds = max(context.overrun.left(acquired.name, acquired.deadline, now), 0.001)
    info = RunInfo(
        run_id=turn_id(acquired, schedule),
        agent_id=schedule.agent,
        thread_id="",
        attempt=acquired.attempt,
        fence=acquired.fence,
        deadline=datetime.fromtimestamp(now + seconds, UTC),
        metadata=schedule.metadata,
        log_fields={**read_log_fields(spec.log_fields, schedule.input), "schedule": family(acquired.name)},
    )
    hold = (
        firing.hold
    )  # not the firing, which has this context: the cycle would wait for the garbage collector
    signals = Signals(context.draining, Trust(hold.trusted_until))  # guard: schedule-context-trust
    ctx = Context(info, _emit, signals, memory=partial(_memory_of, context, info), store=context.store)
    if spec.isolation == "process":
        spec = _isolated(context, spec, firing, info.run_id)
    return Invocation(spec, ctx, schedule.input, seconds, context.executor, deadlines=context.deadlines)


def _isolated(context: SchedulerContext, spec: AgentSpec, firing: Firing, turn: str) -> AgentSpec:
    """The same agent, called in a process of this firing's own; it has no queue, and so no feed."""
    from holdfast.processes.attempts import Errand, isolated  # noqa: PLC0415 - most schedulers start no process

    hold = firing.hold  # not the firing, as above
    # guard: isolated-turn-trust
    errand = Errand(
        id=f"{firing.acquired.name}:{firing.acquired.fence}"[-_LONGEST_ID:],
        queue=_COUNTED_UNDER,
        task={"queue": "", "kept_as": turn, "owner": context.owner},
        grace_seconds=_GRACE_SECONDS,
        trusted=hold.trusted_until,
    )
    return isolated(spec, context.attempts, errand)


def _memory_of(context: SchedulerContext, info: RunInfo) -> Memory:
    """The memory of one firing: the store's, if the scheduler has one."""
    if context.store is None:
        return LocalMemory()
    return context.store.memory(run_id=info.run_id, thread_id="", fence=info.fence, owner=context.owner)


async def _emit(event_type: str, data: Any) -> None:
    """An agent that runs in the scheduler has no feed: the events it emits are logged."""
    _log.debug("event", type=event_type, data=data)
