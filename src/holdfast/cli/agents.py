"""``holdfast agents``: long-lived agents on hosts, and what they are told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from holdfast.cli import options, output
from holdfast.cli.output import Column
from holdfast.cli.root import COMMANDS
from holdfast.cli.wording import ago
from holdfast.errors import ConfigError, NotFound
from holdfast.redis.edge import answering
from holdfast.redis.nearby import nearby

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.config import Settings
    from holdfast.hosts.agent import Placed
    from holdfast.services.residents import Residents

agents = options.group(COMMANDS["agents"])

AgentId = Annotated[str, typer.Argument(metavar="ID", help="The agent's id, which is its own.")]
Message = Annotated[
    str,
    typer.Argument(
        metavar="[JSON]",
        help="A JSON value, null if it is left out; - reads it from stdin.",
        show_default=False,
    ),
]

_COLUMNS = (
    Column("ID", free=True),
    Column("RESIDENT", free=True),
    Column("STATE"),
    Column("HOST", free=True),
    Column("PID", number=True),
    Column("RESTARTS", number=True),
    Column("SINCE"),
)


def add_to(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(agents, name="agents")


@agents.command("list")
def list_agents(json: options.Json = False, config: options.Config = None) -> None:
    """List every agent that should live, and where it is."""

    async def work(residents: Residents) -> list[Placed]:
        return [each async for each in residents.engine.registry.all()]

    found = _with(options.read_settings(config), work)
    if json:
        output.document([_document(each) for each in found])
    else:
        output.table(_COLUMNS, [_row(each) for each in found], empty="no agent lives")


@agents.command("start")
def start(
    resident: Annotated[str, typer.Argument(metavar="RESIDENT", help="Its name in the hosts' app.")],
    agent_id: AgentId,
    value: Message = "null",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Have a resident live on one of the hosts; JSON is what its class is made with."""
    made_with = options.json_value(value)
    placed = _with(
        options.read_settings(config), lambda residents: residents.start(resident, agent_id, made_with)
    )
    if json:
        output.document(_document(placed))
    else:
        output.line(f"{agent_id} lives on {placed.host} (process {placed.pid})")


@agents.command("stop")
def stop(agent_id: AgentId, json: options.Json = False, config: options.Config = None) -> None:
    """Have an agent live no more; its mailbox and its state stay."""
    if not _with(options.read_settings(config), lambda residents: residents.stop(agent_id)):
        raise NotFound(f"there is no agent {agent_id!r}: `holdfast agents list` shows which there are")
    output.document({"agent_id": agent_id, "stopped": True}) if json else output.line(
        f"{agent_id} has stopped"
    )


@agents.command("send")
def send(
    agent_id: AgentId,
    value: Message = "null",
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Wait so many seconds for the reply; 0 does not wait.")
    ] = 0.0,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Put a message into a resident's mailbox, and wait for its reply if wanted."""
    message = options.json_value(value)

    async def work(residents: Residents) -> Any:
        return await (residents.ask(agent_id, message, wait) if wait else residents.send(agent_id, message))

    answer = _with(options.read_settings(config), work)
    if wait:
        output.document(answer)
    elif json:
        output.document({"agent_id": agent_id, "message_id": answer})
    else:
        output.line(f"message {answer} is in the mailbox of {agent_id}")


def _with(settings: Settings, work: Callable[[Residents], Awaitable[Any]]) -> Any:
    try:
        from holdfast.services.residents import Residents  # noqa: PLC0415  gRPC is an extra
    except ModuleNotFoundError as exc:
        raise ConfigError(f"agents need {exc.name}, which is not installed: install holdfast[hosts]") from exc

    near = msgspec.structs.replace(settings, redis=nearby(settings.redis))

    async def use() -> Any:
        async with Residents(near) as residents:
            return await work(residents)

    with answering(near.redis.url):
        return asyncio.run(use())


def _document(placed: Placed) -> dict[str, Any]:
    return {
        "agent_id": placed.agent.agent_id,
        "resident": placed.agent.name,
        "status": placed.status,
        "host": placed.host,
        "address": placed.address,
        "pid": placed.pid,
        "fence": placed.fence,
        "restarts": placed.restarts,
        "error": placed.error,
        "started_at": placed.started_at,
    }


def _row(placed: Placed) -> tuple[str, ...]:
    return (
        placed.agent.agent_id,
        placed.agent.name,
        placed.status,
        placed.host,
        str(placed.pid or ""),
        str(placed.restarts),
        ago(placed.started_at) if placed.started_at else "",
    )
