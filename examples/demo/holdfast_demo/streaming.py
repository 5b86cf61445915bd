"""The act in which a follower loses its api replica: another goes on with the stream where it broke off."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from holdfast_demo.figures import Streamed
from holdfast_demo.program import REPLICAS, STREAM, short

if TYPE_CHECKING:
    from holdfast_demo.account import Told
    from holdfast_demo.http import Http
    from holdfast_demo.stage import Stage

_TIMES = 4
_ENOUGH = 20
_MORE = 10
"""Events that happen while no client follows."""


async def stream(stage: Stage, http: Http) -> Streamed:
    """Follow a run, kill the replica in the middle, and come back to the other with the last id."""
    first, second = (stage.system.replicas[name] for name in REPLICAS)
    run_id = await http.execute(first.url, "draft", {"name": "Ada", "times": _TIMES})
    run = stage.account.expect(run_id, "draft")
    act = stage.begin(STREAM, f"following draft {short(run_id)} on {first.name}")
    before: list[str] = []
    async with contextlib.aclosing(http.follow(first.url, run_id)) as events:
        async for event_id in events:
            before.append(event_id)
            if len(before) == _ENOUGH:
                first.kill()
                break  # events that the replica sent after these are dropped: the second one sends them again
    act.text = f"{first.name} is dead after {len(before)} events; the run goes on, nobody follows it"
    await stage.until("the draft to go on", lambda: _gone_on(run, len(before) + _MORE))
    after = [event_id async for event_id in http.follow(second.url, run_id, before[-1] if before else "")]
    streamed = Streamed(run_id, tuple(before), tuple(after))
    stage.end(
        act,
        f"{first.name} dies after {len(before)} events of draft {short(run_id)}; "
        f"{second.name} sends {len(before) + 1} to {len(streamed.ids)}",
    )
    return streamed


def _gone_on(run: Told, events: int) -> bool:
    return len(run.events) >= events
