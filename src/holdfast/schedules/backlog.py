"""What of all that waits is one scheduler's: how many are due, since when, and how late is too late.

Invariant: what a scheduler does not run (disabled, another's share, without an agent) is no backlog of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import InputError
from holdfast.schedules.cadence import period
from holdfast.schedules.schedule import decoded, family
from holdfast.schedules.words import BATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from holdfast.schedules.acquisition import Accept
    from holdfast.schedules.registry import Counts, Registry, Standing
    from holdfast.schedules.schedule import Schedule

_PAGES: Final = 11
"""How far into the waiting set one look goes: as far as a look that acquires."""


class Known(msgspec.Struct, frozen=True):
    """What is remembered of a definition."""

    agent: str
    """The agent that this app lacks for it; empty if it can run here."""
    seconds: float | None
    """Its period; None if it has none."""


class KnownSchedules:
    """All definitions as far as health needs them; read again only when some have changed."""

    def __init__(self, registry: Registry, agents: Collection[str]) -> None:
        self._registry = registry
        self._agents = agents
        self._standing: Standing | None = None
        self.known: dict[str, Known] = {}
        self._shortest: tuple[object, object, float | None] | None = None

    async def refresh(self) -> None:
        """Read what there is, if that has changed: also what was made at run time."""
        standing = await self._registry.standing()
        if standing == self._standing:
            return
        known: dict[str, Known] = {}
        cursor = ""
        while cursor != "0":
            cursor, page = await self._registry.definitions(cursor or "0")
            for name, spec in page.items():
                one = self._known(spec)
                if one is not None:
                    known[name] = one
        self.known, self._standing = known, standing

    def _known(self, spec: bytes) -> Known | None:
        try:
            schedule = decoded(spec)
            return Known(self._lacking(schedule), period(schedule, 0.0))
        except InputError:  # whoever acquires it says what is wrong
            return None

    def _lacking(self, schedule: Schedule) -> str:
        return "" if schedule.target or schedule.agent in self._agents else schedule.agent

    @property
    def lacks_agents(self) -> bool:
        """Whether this app lacks the agent of any schedule."""
        return any(one.agent for one in self.known.values())

    def agent_lacking(self, name: str) -> str:
        """The agent that this app lacks for a schedule or a turn; empty if it has it, or can't tell."""
        one = self.known.get(name) or self.known.get(family(name))  # guard: agent-of-turns
        return one.agent if one is not None else ""

    def shortest(self, accepts: Callable[[str], bool], shards: object = None) -> float | None:
        """The shortest period of what is run here; None if nothing with a period is.

        It is computed anew when definitions or shards are others: there may be very many of them.
        """
        last = self._shortest
        if last is None or last[0] is not self.known or last[1] is not shards:
            last = self._shortest = (self.known, shards, self._find_shortest(accepts))
        return last[2]

    def _find_shortest(self, accepts: Callable[[str], bool]) -> float | None:
        here = (one.seconds for name, one in self.known.items() if not one.agent and accepts(name))
        return min((seconds for seconds in here if seconds is not None), default=None)


class Backlog(msgspec.Struct, frozen=True):
    """What waits for one scheduler."""

    due: int
    elsewhere: int
    """How many are due and not run here."""
    earliest: float | None
    """The first turn of all that are run here, due or not; None if there is none."""
    without_agent: dict[str, str] = {}
    """Those that are due and whose agent this app lacks, with the agent."""


def everything(counts: Counts) -> Backlog:
    """The backlog of a scheduler that runs whatever is due."""
    return Backlog(counts.due, 0, counts.earliest)


async def backlog_of(
    registry: Registry, counts: Counts, accepts: Accept, definitions: KnownSchedules
) -> Backlog:
    """Look for those that are run here, page by page, as far as what is due goes."""
    due = elsewhere = 0
    earliest: float | None = None
    without_agent: dict[str, str] = {}
    for start in range(0, _PAGES * BATCH, BATCH):
        page = await registry.waiting(start, BATCH)
        for name, at in page:
            is_due, lacking = at <= counts.now, definitions.agent_lacking(name)
            if lacking or not accepts(name, counts.now - at):  # guard: backlog-of-this-scheduler
                elsewhere += is_due
                if lacking and is_due:
                    without_agent[name] = lacking
                continue
            due += is_due
            earliest = at if earliest is None else earliest
        if len(page) < BATCH or (page[-1][1] > counts.now and earliest is not None):
            break
    return Backlog(due, elsewhere, earliest, without_agent)
