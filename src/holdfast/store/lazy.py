"""The door to the store, opened by whoever needs it first: agents that remember nothing need none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import ConfigError
from holdfast.redaction import redact_url
from holdfast.store.engine import Away, database_outages

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.config import DatabaseSettings
    from holdfast.store.checkpoints import Checkpoints
    from holdfast.store.memory import StoredMemory
    from holdfast.store.store import Store

_PAUSE_SECONDS = 0.2


class Admission(msgspec.Struct, frozen=True):
    """What a process has found out about its store, for the processes of its attempts."""

    store_id: str = ""
    """The id of the store that was admitted; empty while it was not compared with the registered one."""
    refusal_ends_process: bool = False


def location(settings: DatabaseSettings) -> str:
    """Return where the store is, for a person: the address without its password, or the file."""
    return redact_url(settings.url) if settings.url else str(Path(settings.path).absolute())


class LazyStore:
    """One store of one process; closed at the end if it was ever opened."""

    def __init__(self, settings: DatabaseSettings) -> None:
        self._settings = settings
        self._turn = asyncio.Lock()
        self._outages = database_outages("opening of the store", "runs that need it wait or are retried")
        self._store: Store | None = None
        self._admitted: Store | None = None
        self.admit: Callable[[Store], Awaitable[None]] | None = None
        """Raises if the store must not be used; awaited once, before anybody gets the store."""
        self.refusal_ends_process = False
        """Whether a process ends soon if its store must not be used; if not, the agent gets the error."""
        self.admitted_id = ""

    @property
    def admission(self) -> Admission:
        """What is known now of the store."""
        return Admission(self.admitted_id, self.refusal_ends_process)

    async def get(self) -> Store:
        """Return the store, opened."""
        if self._admitted is None:
            async with self._turn:
                if self._store is None:
                    from holdfast.store.open import open_store  # noqa: PLC0415  a driver that may not be needed

                    with self._outages:
                        self._store = await open_store(self._settings)
                if self.admit is not None:
                    await self.admit(self._store)  # guard: store-admitted-before-use
                self._admitted = self._store
        return self._admitted

    async def found(self) -> Store | None:
        """Return the store if there is one: a PostgreSQL that is named, or a SQLite file that exists."""
        # Whoever only looks, or tells another's system something, must not leave an empty file behind.
        if self._admitted is None and not self._settings.url and not await asyncio.to_thread(self._is_there):
            return None
        return await self.get()

    def _is_there(self) -> bool:
        return Path(self._settings.path).exists()

    def memory(
        self,
        *,
        run_id: str,
        thread_id: str,
        fence: int,
        owner: str,
        queue: str = "",
        tenant: str = "",
        partition: int = 0,
        generation: int = 0,
    ) -> LazyMemory:
        """Return the memory of one attempt; nothing is opened before it is used."""

        async def opened() -> StoredMemory:
            store = await self._waited_for()
            return store.memory(
                run_id=run_id,
                thread_id=thread_id,
                fence=fence,
                owner=owner,
                queue=queue,
                tenant=tenant,
                partition=partition,
                generation=generation,
            )

        return LazyMemory(opened)

    async def _waited_for(self) -> Store:
        try:
            return await self.get()
        except ConfigError as exc:
            if not self.refusal_ends_process:  # guard: refused-store-told
                raise
            raise Away(str(exc)) from exc  # another worker takes the run

    async def aclose(self) -> None:
        """Close the store, if it was ever opened."""
        if self._store is not None:
            await self._store.aclose()


class LazyMemory:
    """A memory that opens the door when it is first asked."""

    def __init__(self, open_memory: Callable[[], Awaitable[StoredMemory]]) -> None:
        self._open = open_memory
        self._memory: StoredMemory | None = None

    async def step(self, name: str) -> bytes | None:
        """Return what the step gave, if it has been done."""
        return await (await self._opened()).step(name)

    async def put_step(self, name: str, value: bytes, *, seconds: float = 0.0) -> None:
        """Remember that a step is done."""
        await (await self._opened()).put_step(name, value, seconds=seconds)

    async def state(self) -> dict[str, bytes]:
        """Return the state of the thread, or of the run if it has none."""
        return await (await self._opened()).state()

    async def put_state(self, key: str, value: bytes | None) -> None:
        """Remember a part of the state; None forgets it."""
        await (await self._opened()).put_state(key, value)

    async def rollback(self, run_id: str) -> None:
        """Undo what another run of the thread wrote to its state."""
        await (await self._opened()).rollback(run_id)

    async def checkpoints(self) -> Checkpoints:
        """Return the checkpoints of graphs in this thread."""
        return await (await self._opened()).checkpoints()

    async def _opened(self) -> StoredMemory:
        while self._memory is None:
            try:
                self._memory = await self._open()
            # As patient as the memory itself: the run's lease and deadline end the waiting.
            except Away:
                await asyncio.sleep(_PAUSE_SECONDS)
        return self._memory
