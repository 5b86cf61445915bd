"""The registered store: the database of a system, by which a process with another database is detected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.redis.command import command
from holdfast.redis.keys import registered_store_key
from holdfast.redis.scripts import load

if TYPE_CHECKING:
    from holdfast.redis.client import Redis

_REGISTER = load(__package__, "register_store")


class RegisteredStore(msgspec.Struct, frozen=True, kw_only=True):
    """A registered store: its id and location, and the process and machine that registered it."""

    id: str
    location: str = ""
    host: str = ""
    process: str = ""
    registered_at: int = 0
    """Redis TIME in ms; set by the script."""


async def register_store(
    redis: Redis, store: RegisteredStore, *, prefix: str = "", replace: bool = False
) -> RegisteredStore:
    """Register a store if none is registered, or ``replace`` it; return the present registration."""
    fields = {"id": store.id, "location": store.location, "host": store.host, "process": store.process}
    args = ["replace" if replace else "", *(part for pair in fields.items() for part in pair)]
    flat: list[bytes] = await _REGISTER(redis, [registered_store_key(prefix=prefix)], args)
    return _read(dict(zip(flat[::2], flat[1::2], strict=True)))


async def registered_store(redis: Redis, *, prefix: str = "") -> RegisteredStore | None:
    """Return the present registration, if there is one."""
    fields: dict[bytes, bytes] = await command(redis, "HGETALL", registered_store_key(prefix=prefix))
    return _read(fields) if fields else None


def _read(fields: dict[bytes, bytes]) -> RegisteredStore:
    known = {name.decode(): value.decode(errors="replace") for name, value in fields.items()}
    at = known.get("registered_at", "")
    return RegisteredStore(
        id=known.get("id", ""),
        location=known.get("location", ""),
        host=known.get("host", ""),
        process=known.get("process", ""),
        registered_at=int(at) if at.isdecimal() else 0,
    )
