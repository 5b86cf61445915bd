"""All processes of a system use one store: the first one registers it, one with another store is rejected.

With two stores a run that moves from one worker to another would silently repeat its steps.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from holdfast.errors import ConfigError, StoreMismatch, StoreUnavailable
from holdfast.redis.client import DISCONNECTS, TROUBLE
from holdfast.redis.connections import PasswordRefused
from holdfast.redis.keys import registered_store_key
from holdfast.redis.library import NoPermissionError
from holdfast.redis.outages import redis_outages
from holdfast.redis.stores import RegisteredStore, register_store
from holdfast.runs.store_match import (
    COMMAND,
    describe,
    is_file_of_another_machine,
    mismatch,
    require_registered,
    store_here,
)
from holdfast.store.engine import Away, database_outages
from holdfast.store.lazy import location
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from holdfast.config import DatabaseSettings
    from holdfast.services.connections import Connections
    from holdfast.store.lazy import Admission
    from holdfast.store.store import Store

_RETRY_SECONDS: Final = 1.0

_log = get_logger(__name__)


class _NotCompared(Away):
    """Redis does not respond now, so the store can't be compared with the registered one."""


class StoreRegistration:
    """The store of one process, compared with the one that its system has registered."""

    def __init__(self, connections: Connections, kind: str, name: str) -> None:
        settings = connections.settings
        self._connections = connections
        self._database = settings.database
        self._prefix = settings.redis.key_prefix
        self._beat_seconds = settings.worker.heartbeat_seconds
        self._process = f"{kind} {name}"
        self._ours: RegisteredStore | None = None
        self._warned_replaced = self._warned_refusal = False
        self._outages = redis_outages("use of the store", "runs that need the store wait or are retried")
        connections.store.admit = self._admit

    async def check(self) -> None:
        """Reject a database without our tables, and a store that is not the registered one.

        A database or a Redis that does not respond now is no reason to reject: ``keep`` compares later.
        """
        with contextlib.suppress(StoreUnavailable):  # the store, or the call to Redis, has reported it
            await self._connections.store.get()

    async def keep(self) -> None:
        """Check a store that could not be checked yet, and register it again in a Redis that was emptied."""
        self._connections.store.refusal_ends_process = True
        while True:
            if self._ours is None:
                await self.check()  # guard: store-compared-later
            if self._ours is not None:
                with contextlib.suppress(*TROUBLE), self._outages:
                    await self._register_again(self._ours)  # guard: store-registered-again
            await asyncio.sleep(self._beat_seconds if self._ours else min(_RETRY_SECONDS, self._beat_seconds))

    async def _admit(self, store: Store) -> None:
        """Register the store, or raise StoreMismatch; while Redis does not respond it can't be used."""
        ours = await store_here(store, self._database, self._process)
        if not self._database.per_worker:
            registered = await self._register(ours)
            if registered.id != ours.id:
                raise StoreMismatch(mismatch(ours, registered))
            self._warn_of_copy(ours, registered)
        self._ours = ours
        self._connections.store.admitted_id = ours.id

    def _warn_of_copy(self, ours: RegisteredStore, registered: RegisteredStore) -> None:
        """Log that this file may be a copy: a copy has the same id, so it can't be detected otherwise."""
        if is_file_of_another_machine(ours, registered):  # guard: copied-store-warned
            _log.warning(
                "the file of the store was registered on another machine: a copy would repeat finished steps",
                store=describe(ours),
                registered=describe(registered),
                advice="set database.url (DATABASE_URL) to one PostgreSQL database for all machines; if the "
                f"file has moved here, or this machine has another name now, run `holdfast {COMMAND}`",
            )

    async def _register(self, ours: RegisteredStore) -> RegisteredStore:
        try:
            with self._outages:
                return await register_store(self._connections.redis, ours, prefix=self._prefix)
        except TROUBLE as exc:
            # A password that is rejected at the start is a wrong setting; later it is an outage.
            if isinstance(exc, PasswordRefused) and not self._connections.store.refusal_ends_process:
                raise
            if not _refused(exc):  # guard: busy-redis-waited-for
                if not self._warned_refusal and not isinstance(exc, DISCONNECTS):
                    self._warned_refusal = True
                    _log.warning(
                        "store comparison rejected by Redis, runs that need the store wait or are retried",
                        error=str(exc),
                    )
                raise _NotCompared(f"the store can't be compared with the registered one: {exc}") from exc
            key = registered_store_key(prefix=self._prefix)
            raise ConfigError(
                f"Redis refuses to register the store under {key} ({exc}): its user needs this key (`~{key}` "
                "in its ACL), and the key must not have another type"
            ) from exc

    async def _register_again(self, ours: RegisteredStore) -> None:
        if self._database.per_worker:
            return
        registered = await register_store(self._connections.redis, ours, prefix=self._prefix)
        if registered.id == ours.id:
            return
        if registered.process != COMMAND:
            # Redis was emptied, and a process with another store started before this one registered again.
            raise StoreMismatch(mismatch(ours, registered))  # guard: replaced-store-ends-process
        if not self._warned_replaced:
            self._warned_replaced = True
            _log.warning(
                "another store was registered: restart this process with it",
                store=ours.location,
                registered=registered.location,
            )


def refuse_other_store(connections: Connections) -> None:
    """Compare a command's store with the registered one before its first use, without registering it."""
    settings = connections.settings

    async def admit(store: Store) -> None:
        await require_registered(store, connections.redis, settings, "command")

    connections.store.admit = admit


def admit_as_worker(connections: Connections, admission: Admission, run_id: str) -> None:
    """Admit the worker's store in the process of an attempt, or compare it here.

    A worker whose store was replaced by `holdfast store register` keeps its own, and so do its attempts.
    """
    lazy_store = connections.store
    if not admission.store_id:
        StoreRegistration(connections, "attempt", run_id)
        lazy_store.refusal_ends_process = admission.refusal_ends_process
        return

    async def admit(store: Store) -> None:
        if await store.id() != admission.store_id:
            raise StoreMismatch(
                f"the store {location(connections.settings.database)} is not the one that this worker has "
                "opened: it was recreated or replaced since. Restart the worker"
            )

    lazy_store.admit = admit


def _refused(exc: BaseException) -> bool:
    """Return whether Redis rejects the key: a permission is missing, or the key has another type."""
    return isinstance(exc, NoPermissionError) or str(exc).startswith(("NOPERM", "WRONGTYPE"))


async def check_schema(database: DatabaseSettings) -> None:
    """Reject a database without our tables, in a process that needs no store itself."""
    if not database.url:
        return
    from holdfast.store.open import open_store  # noqa: PLC0415  a driver that may not be needed

    with contextlib.suppress(StoreUnavailable), database_outages("the check of its tables", "it is left out"):
        await (await open_store(database)).aclose()
