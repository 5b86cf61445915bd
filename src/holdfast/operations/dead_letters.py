"""Dead letters: runs that were given up, and their replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.errors import NotFound
from holdfast.operations.caller import OPERATE, READ
from holdfast.operations.runs import error_view
from holdfast.runs.deadletter import DeadLetters
from holdfast.runs.paging import Slice, merged, read_cursor, write_cursor
from holdfast.runs.run import Status, checked_id
from holdfast.views.dead_letters import LetterList, LetterView
from holdfast.views.runs import Changed, ErrorView

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.operations.caller import Caller
    from holdfast.operations.system import QueueAccess, System
    from holdfast.runs.deadletter import Letter

_PAGES_MOST: Final = 10
"""How many pages of a queue are read for one page of matching letters."""


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
        checked_id(ref, "the letter's id")
        for access in self._system.selected(queue):
            try:
                letter = await DeadLetters(access.queue).show(ref)
            except NotFound:
                continue
            if self._caller.sees(letter.tenant):
                return access, letter
        raise NotFound(f"no dead letter {ref!r} is known here, neither by its id nor by its run's")

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
