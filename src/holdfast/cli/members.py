"""``holdfast members``: every live process, as it last described itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.cli import options, output
from holdfast.cli.output import Column
from holdfast.cli.root import COMMANDS
from holdfast.cli.station import Station, at_station
from holdfast.cli.wording import ago

if TYPE_CHECKING:
    import typer

    from holdfast.redis.members import Member

_COLUMNS = (
    Column("KIND"),
    Column("NAME", free=True),
    Column("STATE"),
    Column("RUNNING", number=True),
    Column("QUEUES", free=True),
    Column("HOST", free=True),
    Column("PID", number=True),
    Column("SINCE"),
)


def add_to(root: typer.Typer) -> None:
    """Add the command."""
    root.command("members", help=COMMANDS["members"])(list_members)


def list_members(json: options.Json = False, config: options.Config = None) -> None:
    """List every live process."""

    async def work(station: Station) -> list[Member]:
        return await station.members().all(station.redis)

    members = at_station(options.read_settings(config), work)
    if json:
        output.document({"members": [_document(member) for member in members]})
    else:
        output.table(_COLUMNS, [_row(member) for member in members], empty="no process is alive")


def _document(member: Member) -> dict[str, Any]:
    return {"kind": member.kind, "name": member.name, "fields": member.typed_fields()}


def _row(member: Member) -> tuple[str, ...]:
    fields = member.fields
    running = f"{fields['load']}/{fields['capacity']}" if "load" in fields and "capacity" in fields else ""
    return (
        member.kind,
        member.name,
        fields.get("state", ""),
        running,
        fields.get("queues", ""),
        fields.get("host", ""),
        fields.get("pid", ""),
        _since(fields.get("since", "")),
    )


def _since(text: str) -> str:
    try:
        return ago(float(text))
    except ValueError:
        return ""
