"""What a scheduler runs now: one turn per acquired schedule, kept until its body has really ended."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from holdfast.agents.outcome import StopReason

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from holdfast.agents.invoke import Invocation
    from holdfast.leases.keeper import Hold
    from holdfast.schedules.acquisition import Acquired
    from holdfast.schedules.schedule import Schedule


@dataclasses.dataclass(slots=True, eq=False)
class Turn:
    """One run of one schedule, here and under one fence."""

    run: Acquired
    schedule: Schedule
    hold: Hold
    invocation: Invocation | None = None
    task: asyncio.Task[None] | None = None
    beside: float = 0.0
    """The last of its schedule's turns that was placed beside it, or left out."""
    placed: int = 0
    doubtful: float | None = None
    """The turn that was to be placed beside it and of which no answer has come yet."""
    run_id: str = ""
    """The run that it was submitted as, if its schedule has a target."""
    told: bool = False
    """Whether its end was decided: whatever its body still does changes nothing."""

    def stop(self, reason: StopReason, text: str) -> bool:
        """Ask its agent to stop; return whether this is what ends it."""
        return self.invocation is not None and self.invocation.stop(reason, text)

    def cancel(self) -> None:
        """End it because somebody asked for that."""
        self.stop(StopReason.CANCEL, "stopped by request")


class Running:
    """The turns that go on, by name and fence: a lost turn may still unwind when its schedule comes back."""

    def __init__(self) -> None:
        self._turns: dict[tuple[str, int], Turn] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[Turn]:
        return iter(list(self._turns.values()))

    def __contains__(self, turn: Turn) -> bool:
        return self._turns.get((turn.run.name, turn.run.fence)) is turn

    def add(self, turn: Turn) -> None:
        """Note a turn that begins."""
        self._turns[turn.run.name, turn.run.fence] = turn

    def remove(self, turn: Turn) -> None:
        """Forget a turn whose body has ended."""
        self._turns.pop((turn.run.name, turn.run.fence), None)

    def stop_all(self, text: str) -> int:
        """Ask all of them to stop, to be run elsewhere; return how many were asked."""
        return sum(turn.stop(StopReason.DRAIN, text) for turn in self)

    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks that see them through."""
        return [turn.task for turn in self if turn.task is not None]
