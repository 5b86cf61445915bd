"""The act in which the Event API is away: runs go on, and afterwards it gets everything."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from holdfast_demo.account import ENDED
from holdfast_demo.figures import Outage
from holdfast_demo.program import OUTAGE
from holdfast_demo.receiver import FAILING

if TYPE_CHECKING:
    from holdfast_demo.stage import Stage

_DOWN_SECONDS = 1.5
_FAILING_SECONDS = 1.5


async def suffer_an_outage(stage: Stage) -> Outage:
    """Take the receiver down, let it fail for a while, and wait until it has caught up."""
    receiver = stage.system.receiver
    began, ended_before, refused_before = time.monotonic(), _ended(stage), receiver.refused
    receiver.go_down()
    act = stage.begin(OUTAGE, "the Event API is down; runs go on")
    await asyncio.sleep(_DOWN_SECONDS)
    await receiver.come_up(FAILING)
    act.text = "the Event API is back, but answers 500; runs go on"
    await asyncio.sleep(_FAILING_SECONDS)
    await stage.until("the relay to try again", lambda: receiver.refused > refused_before)
    await stage.until("a run to end meanwhile", lambda: _ended(stage) > ended_before)
    await receiver.come_up()
    back, runs = time.monotonic(), _ended(stage) - ended_before
    happened = {run.run_id: len(run.events) for run in stage.account.runs.values()}
    waiting = missing(stage, happened)
    act.text = f"the Event API works again; {waiting} events are on their way"
    await stage.until("the Event API to catch up", lambda: not missing(stage, happened))
    refused, caught_up = receiver.refused - refused_before, time.monotonic() - back
    outage = Outage(back - began, refused, runs, waiting, caught_up)
    stage.end(
        act,
        f"down, then 500, for {outage.lasted:.1f} s; the {waiting} waiting events came in {caught_up:.1f} s",
    )
    return outage


def missing(stage: Stage, happened: dict[str, int]) -> int:
    """How many of so many events of each run have not arrived."""
    arrived = stage.system.receiver.counts()
    return sum(max(events - arrived[run_id], 0) for run_id, events in happened.items())


def _ended(stage: Stage) -> int:
    return sum(run.state in ENDED for run in stage.account.runs.values())
