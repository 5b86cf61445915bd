"""An agent as the fields of a request to a host, and back: JSON inside protobuf, never pickle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from holdfast.errors import InputError
from holdfast.hosts.agent import Agent, Needs, checked, guild_prefix, qualified

if TYPE_CHECKING:
    from holdfast.hosts.proto import agent_host_pb2 as wire

T = TypeVar("T")
_MOST_CPU: Final = 100_000
_MOST_MEMORY_MB: Final = 1_000_000_000
_PARTS: Final = ("agent_spec", "guild_spec", "messaging_config", "client_properties")


class Payload(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The payload of an entry: the four documents of a request unchanged, and its other fields."""

    agent_spec: msgspec.Raw = msgspec.Raw(b"{}")
    guild_spec: msgspec.Raw = msgspec.Raw(b"{}")
    messaging_config: msgspec.Raw = msgspec.Raw(b"{}")
    client_properties: msgspec.Raw = msgspec.Raw(b"{}")
    machine_id: int = 0
    client_type: str = ""


_payload = msgspec.json.Decoder(Payload)


class _WireSpec(msgspec.Struct):
    """The fields of an AgentSpec that a host reads: the others are for the agent."""

    id: str = ""
    name: str = ""
    guild_id: str | None = None
    organization_id: str | None = None


class _Guild(msgspec.Struct):
    """The fields of a GuildSpec that a host reads."""

    id: str | None = None
    organization_id: str | None = None


def create_fields(agent: Agent) -> dict[str, Any]:
    """Return the fields of the request that starts an agent."""
    payload = _payload.decode(agent.payload)
    return {
        **{name: bytes(getattr(payload, name)) for name in _PARTS},
        "machine_id": payload.machine_id,
        "client_type": payload.client_type,
        "entry": agent.entry,
        "agent_id": agent.agent_id,
        "guild_id": agent.guild_id,
        "organization_id": agent.organization_id,
        "needs": msgspec.json.encode(agent.needs),
    }


def requested(request: wire.CreateAgentRequest, default_entry: str) -> Agent:
    """Return the agent of a request; raises InputError naming the unreadable field."""
    documents = {name: _document(name, getattr(request, name)) for name in _PARTS}
    spec = _read("agent_spec", documents["agent_spec"], _WireSpec)
    guild = _read("guild_spec", documents["guild_spec"], _Guild)
    payload = Payload(**documents, machine_id=request.machine_id, client_type=request.client_type)
    return Agent(
        agent_id=_named(request, spec.id),
        entry=request.entry or default_entry,
        payload=msgspec.json.encode(payload),
        name=spec.name,
        # Callers that only use the fields of the users' document have the guild in their specs.
        guild_id=request.guild_id or spec.guild_id or guild.id or "",
        organization_id=request.organization_id or spec.organization_id or guild.organization_id or "",
        needs=_needs(request.needs),
    )


def spec_of(agent: Agent) -> bytes:
    """Return the AgentSpec of an agent, unchanged."""
    return bytes(_payload.decode(agent.payload).agent_spec)


def _named(request: wire.CreateAgentRequest, in_spec: str) -> str:
    """Return the qualified id: as in the request, or made of the request's guild and organization."""
    given, guild, organization = request.agent_id, request.guild_id, request.organization_id
    # A caller that has the fence has read it under the qualified id.
    if given and (request.HasField("fence") or given.startswith(guild_prefix(guild, organization))):
        return checked(given)
    return qualified(given or in_spec, guild, organization)  # guard: agent-id-qualified


def _read(name: str, document: msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(document, type=kind)
    except msgspec.ValidationError as exc:
        raise InputError(f"{name}: {exc}") from exc


def _document(name: str, data: bytes) -> msgspec.Raw:
    if not data:
        return msgspec.Raw(b"{}")
    try:
        value: Any = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InputError(f"{name} is not JSON: {exc}") from exc
    except RecursionError as exc:
        raise InputError(f"{name} is nested too deeply") from exc
    if not isinstance(value, dict):
        raise InputError(f"{name} must be a JSON object, not {type(value).__name__}")
    return msgspec.Raw(data)


def _needs(data: bytes) -> Needs:
    try:
        needs = msgspec.json.decode(data, type=Needs) if data else Needs()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InputError(f"needs: {exc}") from exc
    # guard: agent-needs-range
    if not (0 <= needs.cpu <= _MOST_CPU and 0 <= needs.memory_mb <= _MOST_MEMORY_MB):
        raise InputError(
            f"needs: cpu is {needs.cpu:g} and memory_mb is {needs.memory_mb:g}; "
            f"they may be 0 to {_MOST_CPU} and 0 to {_MOST_MEMORY_MB}"
        )
    return needs
