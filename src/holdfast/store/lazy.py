"""The store of a process, opened at its first use: agents without steps and state need none."""

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
    """The result of a process's check of its store, for the processes of its attempts."""

    store_id: str = ""
    """The id of the admitted store; empty until it was compared with the registered one."""
    refusal_ends_process: bool = False


def location(settings: DatabaseSettings) -> str:
    """Return the location of the store for messages: the address without its password, or the file."""
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
        """Raises if the store must not be used; awaited once, before the first use."""
        self.refusal_ends_process = False
        """Whether the process ends if its store must not be used; if not, the agent gets the error."""
        self.admitted_id = ""

    @property
    def admission(self) -> Admission:
        """The present result of the check of the store."""
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
        """Return the store if there is one: a configured PostgreSQL, or an existing SQLite file."""
        # A command that only reads, or that is sent to another system, must not create an empty file.
        if self._admitted is None and not self._settings.url and not await asyncio.to_thread(self._exists):
            return None
        return await self.get()

    def _exists(self) -> bool:
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
        """Return the memory of one attempt; the store is opened at its first use."""

        async def opened() -> StoredMemory:
            store = await self._get_or_away()
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

    async def _get_or_away(self) -> Store:
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
    """A memory that opens the store at its first use."""

    def __init__(self, open_memory: Callable[[], Awaitable[StoredMemory]]) -> None:
        self._open = open_memory
        self._memory: StoredMemory | None = None

    async def step(self, name: str) -> bytes | None:
        """Return the value of a finished step; None if it is not finished."""
        return await (await self._opened()).step(name)

    async def put_step(self, name: str, value: bytes, *, seconds: float = 0.0) -> None:
        """Store a finished step."""
        await (await self._opened()).put_step(name, value, seconds=seconds)

    async def state(self) -> dict[str, bytes]:
        """Return the state of the thread, or of the run if it has none."""
        return await (await self._opened()).state()

    async def put_state(self, key: str, value: bytes | None) -> None:
        """Write a key of the state; None deletes it."""
        await (await self._opened()).put_state(key, value)

    async def rollback(self, run_id: str) -> None:
        """Undo the writes of another run to the thread's state."""
        await (await self._opened()).rollback(run_id)

    async def checkpoints(self) -> Checkpoints:
        """Return the checkpoints of graphs in this thread."""
        return await (await self._opened()).checkpoints()

    async def _opened(self) -> StoredMemory:
        while self._memory is None:
            try:
                self._memory = await self._open()
            # Like the memory itself, wait without a limit: the run's lease and deadline end the wait.
            except Away:
                await asyncio.sleep(_PAUSE_SECONDS)
        return self._memory
