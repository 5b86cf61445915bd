"""The dead letters of a queue: runs that were given up, with the reason, until they are replayed or dropped.

A letter is replayed once: it leaves in the same script call that queues its run again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import Conflict, InputError, NotFound
from holdfast.redis.scripts import load
from holdfast.runs.message import decode_message
from holdfast.runs.paging import Slice, merged, read_cursor, write_cursor
from holdfast.runs.run import RunFault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from holdfast.runs.partition import Partition
    from holdfast.runs.queue import RunQueue

_DROP = load(__package__, "drop")
_PAGE = 200
_LETTER_ID = re.compile(r"\d{1,20}-\d{1,20}\Z")


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter; ``at`` is when the run was given up, in seconds since the epoch."""

    id: str
    run_id: str
    agent: str
    status: str
    reason: str
    attempts: int
    error: RunFault
    input: Any
    at: float
    message: str = ""
    """The message as text, if it can't be decoded; else empty, and ``input`` has its input."""
    tenant: str = ""
    partition: int = 0
    """The partition of the queue that has the letter: letters of two partitions may have the same id."""


class Letters(msgspec.Struct, frozen=True):
    """One page of dead letters, newest first, and the cursor of the next page; empty after the last page."""

    letters: list[Letter]
    cursor: str = ""


class Dealt(msgspec.Struct, frozen=True):
    """The letters that were replayed or dropped, and for each other letter the error."""

    done: list[Letter]
    refused: dict[str, str]


class DeadLetters:
    """Reads, replays and drops the dead letters of one queue; a letter is named by its id or by its run's."""

    def __init__(self, queue: RunQueue) -> None:
        self._queue = queue

    async def list(self, *, limit: int = 50, cursor: str = "", agent: str = "", reason: str = "") -> Letters:
        """Read letters, newest first; ``cursor`` is the one of the page before."""
        partitions = await self._partitions()
        if len(partitions) == 1:
            return await partitions[0].list(limit=limit, cursor=cursor, agent=agent, reason=reason)

        def source(partition: _PartitionLetters) -> Callable[[str, int], Awaitable[Slice[Letter]]]:
            async def fetch(cursor: str, limit: int) -> Slice[Letter]:
                page = await partition.list(limit=limit, cursor=cursor, agent=agent, reason=reason)
                return Slice(page.letters, page.cursor)

            return fetch

        sources = {str(number): source(partition) for number, partition in enumerate(partitions)}
        places = read_cursor(cursor, tuple(sources))
        return Letters(await merged(sources, places, limit, lambda letter: letter.at), write_cursor(places))

    async def show(self, ref: str) -> Letter:
        """Read one letter."""
        for partition in await self._partitions():
            if (letter := await partition.find(ref)) is not None:
                return letter
        raise NotFound(
            f"no dead letter {ref!r} in queue {self._queue.name!r}, neither by its id nor by its run's"
        )

    async def replay(self, ref: str) -> Letter:
        """Queue a letter's run again, from its first attempt; return the letter."""
        letter = await self.show(ref)
        await self.replay_letter(letter)
        return letter

    async def replay_letter(self, letter: Letter) -> None:
        """Queue the run of a letter that was read before."""
        await (await self._partitions())[letter.partition].replay(letter)  # guard: dead-letter-partition

    async def replay_all(self, *, agent: str = "", reason: str = "") -> Dealt:
        """Replay every letter that exists now; a run that fails again meanwhile is not replayed again."""
        return _all_of([await partition.replay_all(agent, reason) for partition in await self._partitions()])

    async def drop(self, ref: str) -> Letter:
        """Delete a letter; its run can't be replayed any more."""
        letter = await self.show(ref)
        await self.drop_letter(letter)
        return letter

    async def drop_letter(self, letter: Letter) -> None:
        """Delete a letter that was read before."""
        await (await self._partitions())[letter.partition].drop(letter)

    async def drop_all(self, *, agent: str = "", reason: str = "") -> Dealt:
        """Delete every letter that exists now."""
        return _all_of([await partition.drop_all(agent, reason) for partition in await self._partitions()])

    async def _partitions(self) -> Sequence[_PartitionLetters]:
        return [_PartitionLetters(partition) for partition in await self._queue.all_partitions()]


class _PartitionLetters:
    """The dead letters of one partition."""

    def __init__(self, partition: Partition) -> None:
        self._queue = partition
        self._number = partition.settings.partition
        self._redis: Any = partition.redis
        self._stream = partition.keys.deadletter

    async def list(self, *, limit: int = 50, cursor: str = "", agent: str = "", reason: str = "") -> Letters:
        """Read letters, newest first; ``cursor`` is the one of the page before."""
        found: list[Letter] = []
        async for letter in self._newest_first(_read_cursor(cursor)):
            if not _matches(letter, agent, reason):
                continue
            if len(found) == limit:
                return Letters(found, found[-1].id if found else cursor)
            found.append(letter)
        return Letters(found)

    async def find(self, ref: str) -> Letter | None:
        """Read one letter; None if this partition does not have it."""
        letter = await self._by_id(ref) if _LETTER_ID.match(ref) else None
        return letter or await self._of_run(ref)

    async def replay(self, letter: Letter) -> None:
        """Queue the letter's run again."""
        await self._queue.replay(letter.run_id, letter=letter.id)

    async def replay_all(self, agent: str, reason: str) -> Dealt:
        """Queue the runs of all letters again."""
        return await self._for_all(self.replay, agent, reason)

    async def drop(self, letter: Letter) -> None:
        """Delete the letter."""
        keys = [self._stream, self._queue.keys.run(letter.run_id), self._queue.keys.letters]
        if await _DROP(self._redis, keys, [letter.id]) == b"missing":
            raise NotFound(f"dead letter {letter.id} has just been replayed or dropped by another caller")

    async def drop_all(self, agent: str, reason: str) -> Dealt:
        """Delete all letters."""
        return await self._for_all(self.drop, agent, reason)

    # -- all letters

    async def _for_all(self, change: Callable[[Letter], Awaitable[None]], agent: str, reason: str) -> Dealt:
        done: list[Letter] = []
        refused: dict[str, str] = {}
        async for letter in self._oldest_first():
            if not _matches(letter, agent, reason):
                continue
            try:
                await change(letter)
                done.append(letter)
            except (Conflict, NotFound) as exc:
                refused[letter.id] = str(exc)
        return Dealt(done, refused)

    # -- reading

    async def _newest_first(self, top: str) -> AsyncIterator[Letter]:
        while True:
            page = await self._redis.xrevrange(self._stream, top, "-", count=_PAGE)
            for entry, fields in page:
                yield _letter(entry, fields, self._number)
            if len(page) < _PAGE:
                return
            top = f"({page[-1][0].decode()}"

    async def _oldest_first(self) -> AsyncIterator[Letter]:
        """Yield letters, oldest first, up to the newest of this moment: runs that fail again are left out."""
        newest = await self._redis.xrevrange(self._stream, count=1)
        start, page = "-", newest
        while page:
            page = await self._redis.xrange(self._stream, start, newest[0][0], count=_PAGE)
            for entry, fields in page:
                yield _letter(entry, fields, self._number)
                start = f"({entry.decode()}"

    async def _by_id(self, letter_id: str) -> Letter | None:
        try:
            page = await self._redis.xrange(self._stream, letter_id, letter_id)
        except Exception as exc:
            if "Invalid stream ID" in str(exc):  # more digits than a stream id can have: it may be a run's id
                return None
            raise
        if not page:
            return None
        entry, fields = page[0]
        return _letter(entry, fields, self._number)

    async def _of_run(self, run_id: str) -> Letter | None:
        """Find a run's letter by the run's record; after the record has expired, search all letters."""
        dead: bytes | None = await self._redis.hget(self._queue.keys.run(run_id), "dead")
        if dead and (letter := await self._by_id(dead.decode())):
            return letter
        async for letter in self._newest_first("+"):
            if letter.run_id == run_id:
                return letter
        return None


def _all_of(parts: Sequence[Dealt]) -> Dealt:
    refused = {ref: why for dealt in parts for ref, why in dealt.refused.items()}
    return Dealt([letter for dealt in parts for letter in dealt.done], refused)


def _letter(entry: bytes, fields: dict[bytes, bytes], partition: int) -> Letter:
    def text(name: bytes) -> str:
        return fields.get(name, b"").decode(errors="replace")

    attempts = text(b"attempts")
    run_input, undecoded = _read(fields.get(b"message_data", b""))
    return Letter(
        id=entry.decode(),
        run_id=text(b"run_id"),
        agent=text(b"agent_id"),
        status=text(b"status"),
        reason=text(b"reason"),
        attempts=int(attempts) if attempts.isdecimal() else 0,
        error=_fault(fields.get(b"error", b"")),
        input=run_input,
        at=int(entry.partition(b"-")[0]) / 1000,
        message=undecoded,
        tenant=_tenant(fields.get(b"message_data", b"")),
        partition=partition,
    )


def _fault(error: bytes) -> RunFault:
    try:
        return msgspec.json.decode(error, type=RunFault)
    except msgspec.MsgspecError:
        return RunFault(message=error.decode(errors="replace"))


def _read(message: bytes) -> tuple[Any, str]:
    """Return the run's input; if the message can't be decoded, None and the message as text."""
    try:
        return decode_message(message).input, ""
    except InputError:
        return None, _as_text(message)


def _as_text(message: bytes) -> str:
    """Return any bytes as text that can be printed; other characters are escaped."""
    text = message.decode(errors="backslashreplace")
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


class _Owner(msgspec.Struct, frozen=True):
    tenant: Any = ""


def _tenant(message: bytes) -> str:
    """Return the tenant of the run, also if the rest of the message can't be decoded."""
    try:
        tenant = msgspec.json.decode(message, type=_Owner).tenant
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    return tenant if isinstance(tenant, str) else ""


def _matches(letter: Letter, agent: str, reason: str) -> bool:
    return (not agent or letter.agent == agent) and (not reason or letter.reason == reason)


def _read_cursor(cursor: str) -> str:
    if not cursor:
        return "+"
    if not _LETTER_ID.match(cursor):
        raise InputError(f"cursor {cursor!r} was not given out by a previous page")
    return f"({cursor}"
