"""Whether a process uses the registered store of its system; stores are compared by id.

With two stores, a run that moves from one worker to another would repeat its steps unnoticed.
"""

from __future__ import annotations

import datetime as dt
import platform
from typing import TYPE_CHECKING, Final

from holdfast.errors import StoreMismatch
from holdfast.redis.stores import RegisteredStore, registered_store
from holdfast.store.lazy import location

if TYPE_CHECKING:
    from holdfast.config import DatabaseSettings, Settings
    from holdfast.redis.client import Redis
    from holdfast.store.store import Store

COMMAND: Final = "store register"
"""The process name of a registration by an operator: running processes may keep the store that they use."""
_REGISTER: Final = f"`holdfast {COMMAND}`"


async def store_here(store: Store, database: DatabaseSettings, process: str) -> RegisteredStore:
    """Describe the store of this process as it would be registered."""
    return RegisteredStore(
        id=await store.id(), location=location(database), host=platform.node(), process=process
    )


async def require_registered(store: Store, redis: Redis, settings: Settings, process: str) -> None:
    """Raise StoreMismatch if another store is registered; this one is not registered."""
    if settings.database.per_worker:
        return
    registered = await registered_store(redis, prefix=settings.redis.key_prefix)
    ours = await store_here(store, settings.database, process)
    if registered is not None and registered.id != ours.id:
        raise StoreMismatch(mismatch(ours, registered))


def mismatch(ours: RegisteredStore, registered: RegisteredStore) -> str:
    """Return the message that names the two stores and what to do."""
    when = dt.datetime.fromtimestamp(registered.registered_at / 1000, tz=dt.UTC)
    by = f"registered by {registered.process} on {registered.host} at {when:%Y-%m-%d %H:%M:%S} UTC"
    if _same_place(ours, registered):
        return (
            f"the store {describe(ours)} was recreated after it was {by}: steps and state of earlier runs "
            f"are gone. To go on with the new one, run {_REGISTER}"
        )
    return (
        f"this process uses the store {describe(ours)}, but the system on this Redis uses "
        f"{describe(registered)}, {by}: with two stores finished steps would be repeated. Set database.url "
        "(DATABASE_URL) to one PostgreSQL database for all processes, or database.path to one file on one "
        "machine; database.per_worker: true allows a store for each worker. Another system needs another "
        f"redis.key_prefix. If the registered store is to be replaced, run {_REGISTER} with these settings"
    )


def is_file_of_another_machine(ours: RegisteredStore, registered: RegisteredStore) -> bool:
    """Whether this file has the registered id, but of another machine: it may be a copy."""
    return ours.id == registered.id and not _is_address(ours) and ours.host != registered.host


def describe(store: RegisteredStore) -> str:
    """Return the name of a store for messages: a file is named with its machine."""
    return store.location if _is_address(store) else f"{store.location} on {store.host}"


def _same_place(one: RegisteredStore, other: RegisteredStore) -> bool:
    return one.location == other.location and (_is_address(one) or one.host == other.host)


def _is_address(store: RegisteredStore) -> bool:
    return "://" in store.location
