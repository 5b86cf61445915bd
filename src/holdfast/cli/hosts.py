"""``holdfast hosts``: the processes that hold long-lived agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli import options, output
from holdfast.cli.formatting import ago
from holdfast.cli.output import Column
from holdfast.cli.root import COMMANDS
from holdfast.cli.session import Session, in_session

if TYPE_CHECKING:
    import typer

    from holdfast.views.hosts import HostList, HostView

hosts = options.group(COMMANDS["hosts"])

_COLUMNS = (
    Column("NAME", free=True),
    Column("STATE"),
    Column("RESIDENTS", number=True),
    Column("ADDRESS", free=True),
    Column("CPU", number=True),
    Column("MEMORY", number=True),
    Column("LABELS", free=True),
    Column("PID", number=True),
    Column("SINCE"),
)


def add_to(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(hosts, name="hosts")


@hosts.command("list")
def list_hosts(json: options.Json = False, config: options.Config = None) -> None:
    """List every live host and how full it is. CPU and memory are what nobody has asked for."""

    async def work(session: Session) -> HostList:
        return await (await session.operations()).hosts.list()

    found = in_session(options.read_settings(config), work)
    if json:
        output.as_it_is(found)
    else:
        output.table(_COLUMNS, [_row(host) for host in found.hosts], empty="no host is alive")


# Typer makes a command of a group that has only one unless the group is told to stay one.
@hosts.callback()
def _group() -> None: ...


def _row(host: HostView) -> tuple[str, ...]:
    return (
        host.name,
        host.state,
        f"{host.agents}/{host.capacity}",
        host.address,
        f"{host.cpu:g}",
        f"{host.memory_mb:.0f} MB",
        ",".join(host.labels),
        str(host.pid or ""),
        ago(host.since),
    )
