"""A resident as an agent of the hosts: its specification, its status, and the checks before a call."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.agents.models import dumped
from holdfast.config.durations import iso
from holdfast.errors import Conflict, InputError, NotFound
from holdfast.hosts.agent import Agent, AgentStatus, Needs, checked

if TYPE_CHECKING:
    from holdfast.hosts.agent import Placed
    from holdfast.hosts.engine import HostEngine

ENTRY: Final = "resident"
_CLOCK_SKEW_SECONDS: Final = 5.0


class _Spec(msgspec.Struct):
    resident: str = ""
    input: Any = None


class _Payload(msgspec.Struct):
    agent_spec: _Spec = msgspec.field(default_factory=_Spec)


_payload = msgspec.json.Decoder(_Payload)


def resident_agent(
    agent_id: str,
    resident: str,
    input: Any = None,  # noqa: A002 - the name in the API and the CLI
    *,
    needs: Needs | None = None,
    tenant: str = "",
) -> Agent:
    """Return the agent of a resident; a tenant's resident belongs to the organization of the same name."""
    spec = {"id": checked(agent_id), "name": resident, "resident": resident, "input": input}
    try:
        payload = msgspec.json.encode({"agent_spec": spec}, enc_hook=dumped)
    except (TypeError, ValueError, OverflowError, RecursionError) as exc:
        raise InputError(f"the input of a resident must be JSON: {exc}") from exc
    return Agent(
        agent_id=agent_id,
        entry=ENTRY,
        payload=payload,
        name=resident,
        organization_id=tenant,
        needs=needs or Needs(),
    )


def input_of(agent: Agent) -> Any:
    """Return the input of a resident; None for another agent, or if its record is unreadable."""
    if agent.entry != ENTRY:
        return None
    try:
        return _payload.decode(agent.payload).agent_spec.input
    except msgspec.DecodeError:
        return None


def checked_status(status: str) -> str:
    """Return a status if residents can be in it; an empty one is any."""
    known = [one.value for one in AgentStatus if one is not AgentStatus.STOPPED]
    if status and status not in known:
        raise InputError(f"status must be one of {', '.join(known)}, or empty for any, got {status[:200]!r}")
    return status


def shown_status(placed: Placed) -> tuple[str, str]:
    """Return the status and the error for users: an agent of a dead host waits for another host."""
    ended = 0 < placed.lease_ends_at < time.time() - _CLOCK_SKEW_SECONDS
    if ended and placed.status in {AgentStatus.STARTING, AgentStatus.RUNNING}:  # guard: dead-host-shown
        error = f"its host {placed.host} has not renewed its lease, which ended {iso(placed.lease_ends_at)}"
        return AgentStatus.PLACING.value, f"{error}: it waits for a live host"
    return placed.status.value, placed.error


def lives(placed: Placed | None) -> bool:
    """Return whether an agent should run and was not given up."""
    return placed is not None and placed.wanted and placed.status is not AgentStatus.CRASHED


def require_same(placed: Placed, wanted: Agent, shown: str) -> None:
    """Raise Conflict if the id belongs to an agent with another specification."""
    known = placed.agent
    same = (known.entry, known.name, known.needs) == (wanted.entry, wanted.name, wanted.needs)
    if not same or known.organization_id != wanted.organization_id or input_of(known) != input_of(wanted):
        raise Conflict(
            f"the id {shown!r} is taken by a {known.name or known.entry!r} with another input or needs: "
            "stop it first, or choose another id"
        )


def require_resident(placed: Placed, shown: str) -> None:
    """Raise Conflict unless an agent has a mailbox and is not being stopped."""
    if placed.agent.entry != ENTRY:
        raise Conflict(f"{shown!r} is not of `@app.resident` but of another framework, so it has no mailbox")
    if not placed.wanted:
        raise Conflict(f"the resident {shown!r} is being stopped")


def require_alive(status: str, error: str, shown: str) -> None:
    """Raise Conflict if the agent has crashed: it reads its mailbox only when it is started again."""
    if status == AgentStatus.CRASHED:  # guard: crashed-resident-refuses
        raise Conflict(
            f"the resident {shown!r} crashed and handles no messages: start it again "
            "(`holdfast residents start NAME ID`). "
            f"Messages to it wait until then. Its error: {error}"
        )


async def require_movable(engine: HostEngine, placed: Placed, to: str) -> None:
    """Raise if an agent can't be moved, before it is stopped."""
    if placed.agent.bound:
        raise Conflict(f"the resident {placed.agent.agent_id!r} belongs to the program that started it")
    if to and to not in {host.name for host in await engine.hosts()}:
        raise NotFound(f"there is no live host {to[:200]!r}: `holdfast hosts list` or GET /hosts shows them")


def missing(shown: str) -> NotFound:
    """Return the error for a resident that does not exist."""
    return NotFound(
        f"there is no resident {shown[:200]!r}: `holdfast residents list` or GET /residents shows them"
    )
