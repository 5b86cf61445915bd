"""The dead letters of one queue or of all: a letter that is meant is found whichever queue has it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from holdfast.errors import Conflict, NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.cli.station import Station
    from holdfast.runs.deadletter import DeadLetters, Letter
    from holdfast.runs.deadletter import Dealt as DealtInBox

_COUNTED = 10_000


@dataclass(frozen=True, slots=True)
class Filter:
    """Which letters are meant; empty is any."""

    agent: str = ""
    reason: str = ""

    def __bool__(self) -> bool:
        return bool(self.agent or self.reason)

    def missing(self, there: Sequence[Letter]) -> str:
        """Say that none of the letters that are there is meant, and what they have instead."""
        asked = {"agent": self.agent, "reason": self.reason}
        names = [name for name, value in asked.items() if value]
        counts = Counter(" ".join(getattr(letter, name) for name in names) for letter in there)
        none = " and ".join(f"the {name} {asked[name]!r}" for name in names)
        return f"no letter has {none}; there are " + ", ".join(f"{what} ({n})" for what, n in counts.items())


@dataclass(frozen=True, slots=True)
class Found:
    """A letter and the queue it is in."""

    letter: Letter
    queue: str
    box: DeadLetters


@dataclass(frozen=True, slots=True)
class Listed:
    """Letters, newest first; a cursor goes on in a single queue, ``more`` says that there are others."""

    letters: list[Found]
    cursor: str = ""
    more: bool = False


@dataclass(frozen=True, slots=True)
class Dealt:
    """The letters that were replayed or dropped, and why others were not, by their ids."""

    done: list[Found]
    refused: dict[str, str]


class Boxes:
    """The dead letters of the queues that a command looks in."""

    def __init__(self, boxes: dict[str, DeadLetters]) -> None:
        self._boxes = boxes

    @classmethod
    async def at(cls, station: Station, queue: str | None) -> Self:
        """Those of the queue that was named, else of every configured one."""
        from holdfast.runs.deadletter import DeadLetters

        queues = [await station.queue(queue)] if queue is not None else station.queues()
        return cls({each.name: DeadLetters(each) for each in queues})

    async def list(self, chosen: Filter, *, limit: int, cursor: str = "") -> Listed:
        """Read letters, newest first."""
        found: list[Found] = []
        cursors: list[str] = []
        for queue, box in self._boxes.items():
            page = await box.list(limit=limit, cursor=cursor, agent=chosen.agent, reason=chosen.reason)
            found += [Found(letter, queue, box) for letter in page.letters]
            cursors.append(page.cursor)
        if len(cursors) == 1:
            return Listed(found, cursors[0], bool(cursors[0]))
        found.sort(key=lambda each: -each.letter.at)
        return Listed(found[:limit], more=any(cursors) or len(found) > limit)

    async def missing(self, chosen: Filter) -> str:
        """Why a filter has left nothing; empty if there was nothing to leave."""
        there = await self.list(Filter(), limit=_COUNTED) if chosen else Listed([])
        return chosen.missing([each.letter for each in there.letters]) if there.letters else ""

    async def find(self, ref: str) -> Found:
        """The letter of that id or run, in whichever queue; Conflict if two queues have one."""
        found = [each for queue, box in self._boxes.items() if (each := await _in(box, queue, ref))]
        if len(found) == 1:
            return found[0]
        if found:
            where = " and ".join(repr(each.queue) for each in found)
            raise Conflict(f"queues {where} have a dead letter {ref!r}: name one with --queue")
        where = " or ".join(repr(queue) for queue in self._boxes)
        raise NotFound(f"no dead letter {ref!r} in queue {where}, neither by its id nor by its run's")

    async def each(self, refs: Sequence[str], deal: Callable[[Found], Awaitable[None]]) -> Dealt:
        """Deal with one letter after the other; one that is refused spares the others."""
        done: list[Found] = []
        refused: dict[str, str] = {}
        for ref in refs:
            try:
                found = await self.find(ref)
                await deal(found)
                done.append(found)
            except (NotFound, Conflict) as exc:
                refused[ref] = str(exc)
        return Dealt(done, refused)

    async def all(self, deal: Callable[[DeadLetters], Awaitable[DealtInBox]]) -> Dealt:
        """Deal with every letter of every queue."""
        done: list[Found] = []
        refused: dict[str, str] = {}
        for queue, box in self._boxes.items():
            part = await deal(box)
            done += [Found(letter, queue, box) for letter in part.done]
            refused |= part.refused
        return Dealt(done, refused)


async def _in(box: DeadLetters, queue: str, ref: str) -> Found | None:
    try:
        return Found(await box.show(ref), queue, box)
    except NotFound:
        return None
