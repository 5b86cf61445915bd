"""``holdfast rollout``: which share of the tenants goes to a queue, and which goes the old way."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from holdfast.cli import options, output
from holdfast.cli.formatting import ago, moment
from holdfast.cli.output import Column
from holdfast.cli.root import COMMANDS
from holdfast.cli.session import Session, in_session
from holdfast.errors import InputError, NotFound

if TYPE_CHECKING:
    from holdfast.client.rollout import Rollout
    from holdfast.client.transports.redis.rollouts import Rollouts

rollout = options.group(COMMANDS["rollout"])

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The roll-out, as redis_streams_media_cluster_enabled.")
]
Percent = Annotated[
    float | None,
    typer.Argument(metavar="PERCENT", help="From 0, nobody, to 100, everybody; without it, it stays."),
]
Allow = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="TENANT", help="This tenant goes too, unless the percentage is 0."),
]
Deny = Annotated[
    list[str] | None,
    typer.Option("--deny", metavar="TENANT", help="This tenant stays, whatever the percentage is."),
]
Clear = Annotated[
    list[str] | None,
    typer.Option("--clear", metavar="TENANT", help="This tenant goes by the percentage again."),
]
Tenant = Annotated[
    list[str] | None, typer.Option("--tenant", metavar="TENANT", help="Say also which way this tenant goes.")
]
Create = Annotated[
    bool, typer.Option("--create", help="Set it though it is new and its name is much like another's.")
]

_ALIKE = 0.85
"""From which likeness on a new name is taken for a slip; the names of one project are rather alike."""

_COLUMNS = (
    Column("ROLLOUT", free=True),
    Column("PERCENT", number=True),
    Column("ALLOWED", number=True),
    Column("DENIED", number=True),
    Column("CHANGED"),
    Column("REASON", free=True),
)


def add_to(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(rollout, name="rollout")


class View(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A roll-out as it is shown."""

    name: str
    percent: float
    allowed: list[str]
    denied: list[str]
    reason: str
    changed_at: float
    tenants: dict[str, bool] = {}
    """Whether each tenant that was asked for is included."""


@rollout.command("list")
def list_rollouts(json: options.Json = False, config: options.Config = None) -> None:
    """List the roll-outs that were set."""

    async def work(session: Session) -> list[Rollout]:
        return await _rollouts(session).all()

    found = in_session(options.read_settings(config), work)
    if json:
        output.document({"rollouts": [_view(each) for each in found]})
    else:
        output.table(_COLUMNS, [_row(each) for each in found], empty="no roll-out was set")


@rollout.command("show")
def show_rollout(
    name: Name, tenant: Tenant = None, json: options.Json = False, config: options.Config = None
) -> None:
    """Show one roll-out, and which way the tenants go that are named."""
    from holdfast.client.rollout import checked_rollout

    checked_rollout(name)

    async def work(session: Session) -> Rollout:
        return await _rollouts(session).known(name)

    _show(in_session(options.read_settings(config), work), tenant or [], json=json)


@rollout.command("set")
def set_rollout(
    name: Name,
    percent: Percent = None,
    allow: Allow = None,
    deny: Deny = None,
    clear: Clear = None,
    reason: options.Reason = "",
    create: Create = False,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Set the percentage, or what a tenant does. Producers go by it within a second, without a restart."""
    from holdfast.client.rollout import checked_percent, checked_rollout

    checked_rollout(name)
    if percent is not None:
        checked_percent(percent)
    elif not (allow or deny or clear):
        raise InputError(f"say what to change in {name}: a PERCENT, --allow, --deny or --clear")

    async def work(session: Session) -> Rollout:
        rollouts = _rollouts(session)
        others = await rollouts.names()
        if name not in others:
            _begin(name, others, create=create, json=json)
        return await rollouts.set(
            name, percent, allow=allow or (), deny=deny or (), clear=clear or (), reason=reason
        )

    _show(in_session(options.read_settings(config), work), [], json=json)


def _begin(name: str, others: list[str], *, create: bool, json: bool) -> None:
    """Say that a roll-out is new, or raise NotFound where another one is likely to be meant."""
    alike = get_close_matches(name, others, n=1, cutoff=_ALIKE)
    if alike and not create:
        raise NotFound(
            f"no roll-out {name!r} was set: did you mean {alike[0]!r}? If it is to be a new one, say --create"
        )
    output.note(f"new roll-out {name}" + (f"; others are: {', '.join(others)}" if others else ""), json=json)


@rollout.command("remove")
def remove_rollout(name: Name, json: options.Json = False, config: options.Config = None) -> None:
    """Forget a roll-out. A producer that still has a fallback sends everything there."""
    from holdfast.client.rollout import checked_rollout

    checked_rollout(name)

    async def work(session: Session) -> None:
        await _rollouts(session).remove(name)

    in_session(options.read_settings(config), work)
    if json:
        output.document({"name": name, "removed": True})
    else:
        output.line(f"{name} removed")


def _rollouts(session: Session) -> Rollouts:
    from holdfast.client.transports.redis.rollouts import Rollouts

    return Rollouts(session.redis, prefix=session.settings.redis.key_prefix)


def _show(found: Rollout, tenants: list[str], *, json: bool) -> None:
    if json:
        output.document(_view(found, tenants))
    else:
        output.record(_fields(found, tenants))


def _view(found: Rollout, tenants: list[str] | None = None) -> View:
    return View(
        name=found.name,
        percent=found.percent,
        allowed=sorted(found.allowed),
        denied=sorted(found.denied),
        reason=found.reason,
        changed_at=found.changed_at,
        tenants={tenant: found.includes(tenant) for tenant in tenants or ()},
    )


def _row(found: Rollout) -> tuple[str, ...]:
    counts = (str(len(found.allowed)), str(len(found.denied)))
    return (found.name, f"{found.percent:g}", *counts, ago(found.changed_at), found.reason)


def _fields(found: Rollout, tenants: list[str]) -> list[tuple[str, str]]:
    shown = [(tenant, "queue" if found.includes(tenant) else "fallback") for tenant in tenants]
    return [
        ("rollout", found.name),
        ("percent", f"{found.percent:g}"),
        ("allowed", ", ".join(sorted(found.allowed)) or "none"),
        ("denied", ", ".join(sorted(found.denied)) or "none"),
        ("changed", moment(found.changed_at)),
        ("reason", found.reason),
        *shown,
    ]
