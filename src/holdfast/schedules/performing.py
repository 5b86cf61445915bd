"""One turn, from an acquired schedule to its outcome: run in place under its lease, or submitted."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from holdfast.agents.context import Context, RunInfo, Signals
from holdfast.agents.failures import Failure, FailureClass, classify
from holdfast.agents.invoke import Invocation
from holdfast.agents.logfields import read_log_fields
from holdfast.agents.memory import LocalMemory
from holdfast.agents.outcome import Failed, Lost, Outcome, StopReason, Succeeded
from holdfast.agents.spec import LONGEST_TIMEOUT_SECONDS
from holdfast.errors import LeaseLost
from holdfast.leases.trust import Trust, Trusted
from holdfast.schedules.cadence import fire_times
from holdfast.schedules.history import planned_at
from holdfast.schedules.schedule import family, turn_name
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from holdfast.agents.memory import Memory
    from holdfast.agents.spec import AgentSpec
    from holdfast.schedules.acquisition import Acquired
    from holdfast.schedules.clock import RedisClock
    from holdfast.schedules.overlap import Overlaps
    from holdfast.schedules.patterns import Overrun
    from holdfast.schedules.place import Place
    from holdfast.schedules.running import Turn
    from holdfast.schedules.schedule import Schedule

_GRACE_SECONDS: Final = 10.0
"""How long a turn in a process of its own may ignore its stop."""
_COUNTED_UNDER: Final = "schedules"
_LONGEST_ID: Final = 500

_log = get_logger(__name__)


def turn_id(run: Acquired, schedule: Schedule) -> str:
    """The name of a turn: the same when it is run again because its scheduler died."""
    return turn_name(run.name, planned_at(run, schedule))


def prepare(place: Place, turn: Turn, clock: RedisClock, overrun: Overrun) -> Invocation:
    """Make the invocation of a schedule that runs in place; its time ends at deadline + threshold."""
    schedule, run = turn.schedule, turn.run
    spec = place.app.get(schedule.agent)
    left = overrun.left(run.name, run.deadline, clock.now())
    seconds = max(left, 0.001) if place.settings.zombie_cleanup.enabled else float(LONGEST_TIMEOUT_SECONDS)
    info = RunInfo(
        run_id=turn_id(run, schedule),
        agent_id=schedule.agent,
        thread_id="",
        attempt=run.attempt,
        fence=run.fence,
        deadline=datetime.fromtimestamp(clock.now() + seconds, UTC),
        metadata=schedule.metadata,
        log_fields={**read_log_fields(spec.log_fields, schedule.input), "schedule": family(run.name)},
    )
    memory = partial(_memory_of, place, info)
    hold = turn.hold  # not its turn, which has this context: such a circle would be left to the collector
    signals = Signals(place.draining, Trust(hold.trusted_until))  # guard: schedule-context-trust
    ctx = Context(info, _emit, signals, memory=memory, store=place.store)
    if spec.isolation == "process":
        spec = _isolated(place, spec, turn, info.run_id)
    return Invocation(spec, ctx, schedule.input, seconds, place.executor, deadlines=place.deadlines)


def _isolated(place: Place, spec: AgentSpec, turn: Turn, turn_id: str) -> AgentSpec:
    """The same agent, called in a process of this turn's own; a turn has no queue, and so no feed."""
    from holdfast.processes.attempts import Errand, isolated  # noqa: PLC0415 - most schedulers start no process

    hold = turn.hold  # not the turn, as above
    # guard: isolated-turn-trust
    errand = Errand(
        id=f"{turn.run.name}:{turn.run.fence}"[-_LONGEST_ID:],
        queue=_COUNTED_UNDER,
        task={"queue": "", "kept_as": turn_id, "owner": place.owner},
        grace_seconds=_GRACE_SECONDS,
        trusted=hold.trusted_until,
    )
    return isolated(spec, place.attempts, errand)


def _memory_of(place: Place, info: RunInfo) -> Memory:
    """The memory of one turn: the store's, if the scheduler has one."""
    if place.store is None:
        return LocalMemory()
    return place.store.memory(run_id=info.run_id, thread_id="", fence=info.fence, owner=place.owner)


async def perform(place: Place, turn: Turn, clock: RedisClock, overlaps: Overlaps) -> Outcome:
    """Run a turn for as long as its lease is ours."""
    timer = _stop_at_next_turn(turn, clock)
    try:
        async with turn.hold:
            if turn.invocation is None:
                # guard: firing-needs-lease
                return await Trusted(_submit(place, turn), Trust(turn.hold.trusted_until))
            # guard: manual-run-alone
            if turn.schedule.overlap != "allow" or turn.run.triggered:  # a manual run has no turn after it
                return await turn.invocation.run()
            async with overlaps.beside(turn, clock):
                return await turn.invocation.run()
    except LeaseLost:
        return Lost()
    except Exception as exc:
        return Failed(classify(exc))
    finally:
        if timer is not None:
            timer.cancel()


async def _submit(place: Place, turn: Turn) -> Outcome:
    if place.submit is None:
        return Failed(Failure.because(FailureClass.INVALID, "this scheduler has no way to submit runs"))
    place.targets.look([turn.schedule] if turn.schedule.source != "turn" else [])
    turn.run_id = (await place.submit(turn.schedule, turn_id(turn.run, turn.schedule))).run_id
    return Succeeded(None)


def _stop_at_next_turn(turn: Turn, clock: RedisClock) -> asyncio.TimerHandle | None:
    """With the overlap policy ``cancel`` a run that is still on at the next turn makes room for it."""
    if turn.schedule.overlap != "cancel" or turn.invocation is None:
        return None
    following = fire_times(turn.schedule, turn.run.acquired_at, 1)
    if not following:
        return None
    loop, text = asyncio.get_running_loop(), "its next turn is due"
    return loop.call_later(max(clock.until(following[0]), 0), turn.stop, StopReason.CANCEL, text)


async def _emit(event_type: str, data: Any) -> None:
    """A turn in place has no feed: what its agent emits is logged."""
    _log.debug("event", type=event_type, data=data)
