"""Overlap policies: what becomes of a turn that comes while another one of its schedule runs.

To add a policy, add its name to ``Overlap`` (views/schedule_options.py) and its functions to ``POLICIES``.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from holdfast.agents.outcome import StopReason
from holdfast.schedules.fire_times import count, fire_times

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager

    from holdfast.schedules.clock import RedisClock
    from holdfast.schedules.firing import Firing
    from holdfast.schedules.parallel import ParallelFirings
    from holdfast.schedules.schedule import Schedule
    from holdfast.views.schedule_options import Overlap

During: TypeAlias = "Callable[[Firing, RedisClock, ParallelFirings], AbstractAsyncContextManager[None]]"


def _none_waits(_schedule: Schedule, _acquired: float, _ended: float) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class OverlapPolicy:
    """What a policy does; the defaults are those of ``skip``."""

    during: During | None = None
    """What goes on for as long as the agent runs in the scheduler; None is nothing."""
    waiting: Callable[[Schedule, float, float], int] = _none_waits
    """How many turns came in (acquired, ended] and wait for the end: one run follows for all of them."""
    excludes: frozenset[str] = frozenset()
    """Misfire policies that are refused together with this one."""


@contextlib.asynccontextmanager
async def _cancel_at_next_turn(
    firing: Firing, clock: RedisClock, _parallel: ParallelFirings
) -> AsyncGenerator[None]:
    """Cancel the firing when its schedule's next turn comes."""
    following = fire_times(firing.schedule, firing.acquired.acquired_at, 1)
    if not following:
        yield
        return
    loop, text = asyncio.get_running_loop(), "its next turn is due"
    timer = loop.call_later(max(clock.until(following[0]), 0), firing.stop, StopReason.CANCEL, text)
    try:
        yield
    finally:
        timer.cancel()


def _run_beside(
    firing: Firing, clock: RedisClock, parallel: ParallelFirings
) -> AbstractAsyncContextManager[None]:
    """Place each turn that comes as a schedule of its own, which runs beside the firing."""
    # A manual run has no turn after it.
    return (
        contextlib.nullcontext() if firing.acquired.triggered else parallel.beside(firing, clock)
    )  # guard: manual-run-alone


POLICIES: Final[Mapping[Overlap, OverlapPolicy]] = {
    "skip": OverlapPolicy(),  # it counts as missed, so the misfire policy decides what follows
    "buffer": OverlapPolicy(waiting=count),
    "cancel": OverlapPolicy(during=_cancel_at_next_turn),
    # A turn that ran beside another would be caught up once more, or those before it never.
    "allow": OverlapPolicy(during=_run_beside, excludes=frozenset({"catch_up"})),
}
