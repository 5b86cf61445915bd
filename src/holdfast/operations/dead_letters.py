"""Dead letters: runs that were given up, and their replay."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from holdfast.errors import Conflict, NotFound
from holdfast.operations.caller import OPERATE, READ
from holdfast.operations.runs import error_view
from holdfast.runs.deadletter import DeadLetters
from holdfast.runs.paging import Slice, merged, read_cursor, write_cursor
from holdfast.runs.run import Status, checked_id
from holdfast.views.dead_letters import LetterBatch, LetterList, LetterView
from holdfast.views.runs import Changed, ErrorView

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.operations.caller import Caller
    from holdfast.operations.system import QueueAccess, System
    from holdfast.runs.deadletter import Dealt, Letter

_PAGES_MOST: Final = 10
"""How many pages of a queue are read for one page of matching letters."""
_COUNTED: Final = 10_000
"""How many letters are counted to explain why none matches."""


class DeadLetterOperations:
    """What one caller can ask of dead letters."""

    def __init__(self, system: System, caller: Caller) -> None:
        self._system = system
        self._caller = caller

    async def list(
        self, *, queue: str = "", agent: str = "", reason: str = "", limit: int = 50, cursor: str = ""
    ) -> LetterList:
        """Read a page of the letters of all queues, newest first."""
        self._caller.require(READ)
        sources = {
            each.queue.name: self._source(each, agent, reason) for each in self._system.selected(queue)
        }
        places = read_cursor(cursor, tuple(sources))
        letters = await merged(sources, places, limit, lambda letter: letter.at)
        return LetterList(letters, write_cursor(places))

    async def get(self, ref: str, *, queue: str = "") -> LetterView:
        """Read a letter by its id or by its run's."""
        self._caller.require(READ)
        return self._view(*await self._find(ref, queue))

    async def replay(self, ref: str, *, queue: str = "") -> Changed:
        """Queue a letter's run again, from its first attempt; the letter is removed in the same step."""
        self._caller.require(OPERATE)
        access, letter = await self._find(ref, queue)
        await DeadLetters(access.queue).replay_letter(letter)
        return Changed(letter.run_id, Status.QUEUED.value)

    async def drop(self, ref: str, *, queue: str = "") -> LetterView:
        """Delete a letter; its run can't be replayed by it any more."""
        self._caller.require(OPERATE)
        access, letter = await self._find(ref, queue)
        await DeadLetters(access.queue).drop_letter(letter)
        return self._view(access, letter)

    async def replay_all(self, *, queue: str = "", agent: str = "", reason: str = "") -> LetterBatch:
        """Queue the runs of all matching letters again; a run that fails again meanwhile is not replayed."""
        return await self._all(queue, lambda letters: letters.replay_all(agent=agent, reason=reason))

    async def drop_all(self, *, queue: str = "", agent: str = "", reason: str = "") -> LetterBatch:
        """Delete all matching letters."""
        return await self._all(queue, lambda letters: letters.drop_all(agent=agent, reason=reason))

    async def explain_none(self, *, queue: str = "", agent: str = "", reason: str = "") -> str:
        """Explain why no letter matches: name those that there are, or return nothing if there are none."""
        page = await self.list(queue=queue, limit=_COUNTED)
        filters = {"agent": agent, "reason": reason}
        names = [name for name, value in filters.items() if value]
        if not names or not page.letters:
            return ""
        counts = Counter(" ".join(getattr(letter, name) for name in names) for letter in page.letters)
        none = " and ".join(f"the {name} {filters[name]!r}" for name in names)
        return f"no letter has {none}; there are " + ", ".join(f"{what} ({n})" for what, n in counts.items())

    async def _all(self, queue: str, deal: Callable[[DeadLetters], Awaitable[Dealt]]) -> LetterBatch:
        self._caller.require(OPERATE)
        self._caller.require_every_tenant()
        done: list[LetterView] = []
        refused: dict[str, str] = {}
        for access in self._system.selected(queue):
            dealt = await deal(DeadLetters(access.queue))
            done += [self._view(access, letter) for letter in dealt.done]
            refused |= dealt.refused
        return LetterBatch(done, refused)

    def _source(
        self, access: QueueAccess, agent: str, reason: str
    ) -> Callable[[str, int], Awaitable[Slice[LetterView]]]:
        letters = DeadLetters(access.queue)

        async def fetch(cursor: str, limit: int) -> Slice[LetterView]:
            found: list[LetterView] = []
            for _ in range(_PAGES_MOST):
                page = await letters.list(limit=limit - len(found), cursor=cursor, agent=agent, reason=reason)
                found += [
                    self._view(access, letter) for letter in page.letters if self._caller.sees(letter.tenant)
                ]
                cursor = page.cursor
                if not cursor or len(found) == limit:
                    break
            return Slice(found, cursor)

        return fetch

    async def _find(self, ref: str, queue: str) -> tuple[QueueAccess, Letter]:
        """Return the letter of that id or run, and its queue; Conflict if two queues have one."""
        checked_id(ref, "the letter's id")
        selected = self._system.selected(queue)
        found = [(access, letter) for access in selected if (letter := await self._seen(access, ref))]
        if len(found) > 1:
            where = " and ".join(repr(access.queue.name) for access, _ in found)
            raise Conflict(f"queues {where} have a dead letter {ref!r}: name one with queue (--queue)")
        if not found:
            where = " or ".join(repr(access.queue.name) for access in selected)
            raise NotFound(f"no dead letter {ref!r} in queue {where}, neither by its id nor by its run's")
        return found[0]

    async def _seen(self, access: QueueAccess, ref: str) -> Letter | None:
        try:
            letter = await DeadLetters(access.queue).show(ref)
        except NotFound:
            return None
        return letter if self._caller.sees(letter.tenant) else None

    def _view(self, access: QueueAccess, letter: Letter) -> LetterView:
        return LetterView(
            id=letter.id,
            run_id=letter.run_id,
            queue=access.queue.name,
            agent=letter.agent,
            tenant=letter.tenant,
            status=letter.status,
            reason=letter.reason,
            attempts=letter.attempts,
            error=error_view(self._caller, letter.error) or ErrorView(),
            input=letter.input,
            message=letter.message,
            at=letter.at,
        )
