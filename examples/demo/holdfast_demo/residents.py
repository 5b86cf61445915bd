"""The act in which residents live: agents that stay, while one of their hosts is killed."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from holdfast import Residents
from holdfast.hosts.agent import AgentStatus
from holdfast_demo.figures import Kept
from holdfast_demo.program import HOSTS, RESIDE
from holdfast_demo.stage import PATIENCE_SECONDS
from holdfast_demo.system import DemoFailed

if TYPE_CHECKING:
    from holdfast.hosts.agent import Placed
    from holdfast_demo.stage import Stage

KIND: Final = "Clerk"
CLERKS: Final = ("clerk-1", "clerk-2", "clerk-3", "clerk-4")
_TICKETS: Final = 12
_PACE_SECONDS: Final = 0.25
_LOOK_SECONDS: Final = 0.05


async def keep_residents(stage: Stage) -> Kept:
    """Hand tickets to residents all the time, kill one of their hosts, and read their ledgers at the end."""
    act = stage.begin(RESIDE, f"{len(CLERKS)} residents are started on {len(HOSTS)} hosts")
    async with Residents(stage.system.settings) as residents:
        homes = {name: await residents.start(KIND, name) for name in CLERKS}
        handing = asyncio.create_task(_hand_out(residents))
        try:
            await asyncio.sleep(_PACE_SECONDS * 3)
            victim = homes[CLERKS[0]].host
            killed_at = time.monotonic()
            stage.system.hosts[victim].kill()
            orphans = [name for name, home in homes.items() if home.host == victim]
            act.text = f"{victim} is dead, and {len(orphans)} residents with it; tickets go on coming"
            back = [await _back(residents, homes[name]) for name in orphans]
            took = time.monotonic() - killed_at
            await handing
        finally:
            handing.cancel()
        ledgers = {
            name: tuple(await residents.ask(name, {"ledger": True}, PATIENCE_SECONDS)) for name in CLERKS
        }
    stage.end(
        act,
        f"{victim} dies; {', '.join(orphans)} live on {back[0].host} {took:.1f} s later, no ticket is lost",
    )
    return Kept(victim, tuple(orphans), took, _TICKETS, ledgers)


async def _hand_out(residents: Residents) -> None:
    for ticket in range(1, _TICKETS + 1):
        for name in CLERKS:
            await residents.send(name, {"ticket": ticket})
        await asyncio.sleep(_PACE_SECONDS)


async def _back(residents: Residents, home: Placed) -> Placed:
    """Wait until a resident lives under a higher fence."""
    name = home.agent.agent_id
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                placed = await residents.engine.registry.get(name)
                if placed is not None and placed.status is AgentStatus.RUNNING and placed.fence > home.fence:
                    return placed
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        raise DemoFailed(f"waited {PATIENCE_SECONDS:g} s for {name} to live again") from None
