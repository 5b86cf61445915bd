"""``holdfast store``: which store the processes of a system share, and how another one takes its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli import options, output
from holdfast.cli.root import COMMANDS
from holdfast.cli.session import Session, in_session

if TYPE_CHECKING:
    import typer

    from holdfast.redis.stores import RegisteredStore

store = options.group(COMMANDS["store"])

_USERS = ("api", "janitor", "scheduler", "worker")


def add_to(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(store, name="store")


@store.command("show")
def show_store(json: options.Json = False, config: options.Config = None) -> None:
    """Show the registered store, and the one that these settings name."""
    registered, here = in_session(options.read_settings(config), _both, start_server=True, any_store=True)
    same = registered is not None and here is not None and registered.id == here.id
    if json:
        output.document({"registered": _document(registered), "here": _document(here), "same": same})
        return
    by = f", by {registered.process}" if registered else ""
    output.line(f"registered  {_named(registered, 'none')}{by}")
    output.line(f"here        {_named(here, 'none yet')}{' (the same)' if same else ''}")


@store.command("register")
def register(json: options.Json = False, config: options.Config = None) -> None:
    """Register the store of these settings. Steps and state stay in the previous store."""
    registered, before, users = in_session(
        options.read_settings(config), _replace, start_server=True, any_store=True
    )
    if json:
        output.document({"registered": _document(registered), "before": _document(before), "users": users})
        return
    instead = f" instead of {_named(before)}" if before else ""
    output.line(f"registered {_named(registered)}{instead}")
    if users:
        output.line(f"{', '.join(users)} still use the other store: restart them with these settings")


def _document(store: RegisteredStore | None) -> dict[str, Any] | None:
    """A registration as JSON, with its time in seconds like all others."""
    if store is None:
        return None
    return {**msgspec.structs.asdict(store), "registered_at": store.registered_at / 1000}


async def _both(session: Session) -> tuple[RegisteredStore | None, RegisteredStore | None]:
    """The registered store, and that of the settings if there is one."""
    from holdfast.redis.stores import registered_store
    from holdfast.runs.store_match import store_here

    registered = await registered_store(session.redis, prefix=session.settings.redis.key_prefix)
    found = await session.store.found()
    return registered, await store_here(found, session.settings.database, "store show") if found else None


async def _replace(session: Session) -> tuple[RegisteredStore, RegisteredStore | None, list[str]]:
    """What is registered now, what was before, and the live processes that still use that one."""
    from holdfast.redis.stores import register_store, registered_store
    from holdfast.runs.store_match import COMMAND, store_here

    prefix = session.settings.redis.key_prefix
    here = await store_here(await session.store.get(), session.settings.database, COMMAND)
    before = await registered_store(session.redis, prefix=prefix)
    now = await register_store(session.redis, here, prefix=prefix, replace=True)
    if before is None or before.id == now.id:
        return now, None, []
    members = await session.members().all(session.redis)
    return now, before, [f"{each.kind} {each.name}" for each in members if each.kind in _USERS]


def _named(store: RegisteredStore | None, absent: str = "") -> str:
    from holdfast.runs.store_match import describe

    return describe(store) if store else absent
