"""An agent of the hosts: its id, its specification, and its location.

::

    want ──> placing ──grant──> starting ──started──> running ──stopped──> (gone)
                ^                   ^                    │
                │                   └────restarting──────┤ unexpected exit
                ├───────moving───────────────────────────┤
                └───────reclaimed: its host is gone──────┴──too many exits──> crashed
"""

from __future__ import annotations

import enum
from urllib.parse import quote, unquote

import msgspec

from holdfast.errors import InputError
from holdfast.views.residents import Needs


class AgentStatus(enum.StrEnum):
    """The state of an agent."""

    PLACING = "placing"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    CRASHED = "crashed"


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """The specification of an agent: enough to start it on any host."""

    agent_id: str
    """The qualified id."""
    entry: str
    """The entry of the host that runs it."""
    payload: bytes
    """JSON for that entry."""
    name: str = ""
    guild_id: str = ""
    organization_id: str = ""
    needs: Needs = Needs()
    bound: bool = False
    """Whether it ends with its host, as agents of a local engine do."""


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """An agent and its current location."""

    agent: Agent
    status: AgentStatus
    wanted: bool
    fence: int
    host: str
    """Name of its host; empty while it has none."""
    address: str
    pid: int
    restarts: int
    error: str
    created_at: float
    started_at: float
    lease_ends_at: float = 0.0
    """By Redis's clock; 0 if it has none."""


_MOST = 512


def qualified(agent_id: str, guild_id: str = "", organization_id: str = "") -> str:
    """Return an id that is unique among all guilds; without a guild it is the id itself."""
    if not guild_id and not organization_id:
        return checked(agent_id)
    return checked("/".join(quote(part, safe="") for part in (organization_id, guild_id, agent_id)))


def guild_prefix(guild_id: str, organization_id: str) -> str:
    """Return the prefix of the ids of all agents of a guild."""
    return f"{quote(organization_id, safe='')}/{quote(guild_id, safe='')}/"


def plain(qualified_id: str) -> str:
    """Return the id within its guild."""
    organization, slash, rest = qualified_id.partition("/")
    guild, second, agent_id = rest.partition("/")
    del organization, guild
    return unquote(agent_id) if slash and second else qualified_id


def organization_of(qualified_id: str) -> str:
    """Return the organization in an id; empty for a plain id."""
    organization, slash, rest = qualified_id.partition("/")
    return unquote(organization) if slash and "/" in rest else ""


def checked(agent_id: str) -> str:
    """Return the id if it is valid: it becomes part of a key and of a URL."""
    if not agent_id or len(agent_id) > _MOST or not agent_id.isprintable() or " " in agent_id:
        raise InputError(
            f"{agent_id[:60]!r} is not an agent's id: 1 to {_MOST} printable characters without blanks."
        )
    return agent_id
