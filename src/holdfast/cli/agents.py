"""``holdfast agents``: the registered agents, what they take and who serves them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from holdfast.cli import options, output
from holdfast.cli.output import Column
from holdfast.cli.root import COMMANDS
from holdfast.cli.session import Session, in_session
from holdfast.errors import InputError

if TYPE_CHECKING:
    from holdfast.views.agents import AgentList, AgentView

agents = options.group(COMMANDS["agents"])

_COLUMNS = (
    Column("NAME", free=True),
    Column("QUEUES", free=True),
    Column("WORKERS", number=True),
    Column("DESCRIPTION", free=True),
)
_MOVED = ("start", "stop", "move", "send", "ask")
"""Commands for residents that were here before residents had a command of their own."""
_Moved = Annotated[str | None, typer.Option(hidden=True)]
"""An option of the list of residents, which was here, too."""


def add_to(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(agents, name="agents")


@agents.command("list")
def list_all(
    status: _Moved = None,
    host: _Moved = None,
    name: _Moved = None,
    limit: _Moved = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List every agent that a live process has registered."""
    given = {"--status": status, "--host": host, "--name": name, "--limit": limit}
    if words := [word for option, value in given.items() if value is not None for word in (option, value)]:
        raise _moved(["list", *words])

    async def work(session: Session) -> AgentList:
        return await (await session.operations()).agents.list()

    found = in_session(options.read_settings(config), work)
    if json:
        output.as_it_is(found)
    else:
        output.table(_COLUMNS, [_row(agent) for agent in found.agents], empty=found.note)
    if found.note and (json or found.agents):
        output.note(found.note, json=json)


@agents.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The agent's name.")],
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Show one agent: queues, limits, schemas and workers."""

    async def work(session: Session) -> AgentView:
        return await (await session.operations()).agents.get(name)

    found = in_session(options.read_settings(config), work)
    if json:
        output.as_it_is(found)
    else:
        output.record(_fields(found))


def _moved(words: list[str]) -> InputError:
    """Return the error that names the command for residents."""
    return InputError(f"long-lived agents are residents now: use `holdfast residents {shlex.join(words)}`")


def _point_to_residents(ctx: typer.Context) -> None:
    """Name the command that residents have moved to."""
    raise _moved([ctx.info_name or "", *ctx.args])


for _verb in _MOVED:
    agents.command(
        _verb,
        hidden=True,
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(_point_to_residents)


def _row(agent: AgentView) -> tuple[str, ...]:
    return agent.name, ",".join(agent.queues), str(agent.workers), agent.description


def _fields(agent: AgentView) -> list[tuple[str, str]]:
    unnamed = agent.workers - len(agent.served_by)
    names = ", ".join(agent.served_by) + (f" and {unnamed} more" if unnamed else "")
    return [
        ("name", agent.name),
        ("description", agent.description),
        ("queues", ", ".join(agent.queues)),
        ("served by", names or "no live worker"),
        ("isolation", agent.isolation),
        ("timeout", "" if agent.timeout_seconds is None else f"{agent.timeout_seconds:g} s"),
        ("attempts", str(agent.max_attempts or "")),
        ("concurrency", str(agent.concurrency or "")),
        ("input", _schema(agent.input_schema)),
        ("result", _schema(agent.result_schema)),
    ]


def _schema(schema: dict[str, object] | None) -> str:
    return "" if schema is None else msgspec.json.format(msgspec.json.encode(schema), indent=2).decode()
