"""``holdfast members``: every live process, as it last described itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli import options, output
from holdfast.cli.formatting import ago
from holdfast.cli.output import Column
from holdfast.cli.root import COMMANDS
from holdfast.cli.session import Session, in_session

if TYPE_CHECKING:
    import typer

    from holdfast.views.members import MemberList, MemberView

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

    async def work(session: Session) -> MemberList:
        return await (await session.operations()).members()

    found = in_session(options.read_settings(config), work)
    if json:
        output.as_it_is(found)
    else:
        output.table(_COLUMNS, [_row(each) for each in found.members], empty="no live processes")


def _row(member: MemberView) -> tuple[str, ...]:
    fields = member.fields
    running = f"{fields['load']}/{fields['capacity']}" if "load" in fields and "capacity" in fields else ""
    return (
        member.kind,
        member.name,
        fields.get("state", ""),
        running,
        fields.get("queues", ""),
        fields.get("host", ""),
        str(fields.get("pid", "")),
        _since(fields.get("since", "")),
    )


def _since(since: object) -> str:
    try:
        return ago(float(str(since)))
    except ValueError:
        return ""
