"""Checks and adapts Rustic AI's specs, as plain documents, before a host or an agent's process uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.errors import InputError
from holdfast.processes.entries import check_allowed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PREFIX: Final = "rustic_ai"
"""Rustic AI's own classes may run on every host that has its entry."""
_ENGINES: Final = ("holdfast.compat.rustic.K8sExecutionEngine", "holdfast.hosts.rustic.K8sExecutionEngine")
"""The second is the path in the specs of guilds that were stored before."""
_RUN_BY: Final = ("execution_engine", "state_manager")
_MESSAGING: Final = "rustic_ai.core.messaging"
_DEFAULT_CLIENT: Final = "SimpleClient"
_IN_MEMORY: Final = "InMemoryMessagingBackend"
_REDIS: Final = "RedisMessagingBackend"
_POLL_SECONDS: Final = 1.0
"""Rustic AI polls for messages 100 times a second, which costs an idle agent 1 % of a core. A poll blocks on
the socket, so a longer one delays no message."""


def messaging_of(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the messaging config for an agent in a process of its own."""
    if document.get("backend_class") == _IN_MEMORY:
        raise InputError(
            f"messaging: {_IN_MEMORY} reaches no agent in another process: use Redis (rusticai-redis), with "
            'backend_module "rustic_ai.redis.messaging.backend" and backend_class "RedisMessagingBackend".'
        )
    settings = _map(document.get("backend_config"))
    client = _map(settings.get("redis_client"))
    if document.get("backend_class") != _REDIS or not client:
        return dict(document)
    patient = {"pubsub_poll_sleep_time": _POLL_SECONDS, **client}
    return {**document, "backend_config": {**settings, "redis_client": patient}}


def client_path(name: str) -> str:
    """Return the full path of a client class; Rustic AI's own classes may be given by name alone."""
    name = name or _DEFAULT_CLIENT
    return name if "." in name else f"{_MESSAGING}.{name}"


def check_classes(payload: Mapping[str, Any], prefixes: tuple[str, ...]) -> None:
    """Refuse a payload that names a class which may not run here.

    Rustic AI imports every class that a spec names, for all agents of a guild, as soon as it reads the spec.
    """
    named = [client_path(payload.get("client_type", "")), _backend(_map(payload.get("messaging_config")))]
    named += _tracking(payload)
    named += _classes(_map(payload.get("agent_spec")))
    named += _guild_classes(_map(payload.get("guild_spec")))
    for path in named:
        check_allowed(path, (*prefixes, *_ENGINES))


def _classes(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield the classes that an AgentSpec or GuildSpec names: agents, dependencies, a manager's guild."""
    own: Any = spec.get("class_name")
    if own is not None:
        yield str(own)
    for dependency in _map(spec.get("dependency_map")).values():
        yield str(_map(dependency).get("class_name"))
    agents: Any = spec.get("agents")
    for agent in cast("list[Any]", agents) if isinstance(agents, list) else ():
        yield from _classes(_map(agent))
    if guild := _map(_map(spec.get("properties")).get("guild_spec")):
        yield from _guild_classes(guild)


def _guild_classes(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield the classes that a GuildSpec names, with those that its manager creates."""
    yield from _classes(spec)
    properties = _map(spec.get("properties"))
    yield from (str(properties[name]) for name in _RUN_BY if properties.get(name))
    if messaging := _map(properties.get("messaging")):
        yield _backend(messaging)
    if client := properties.get("client_type"):
        yield client_path(str(client))
    yield from _tracking(properties)


def _backend(messaging: Mapping[str, Any]) -> str:
    return f"{messaging.get('backend_module')}.{messaging.get('backend_class')}"


def _tracking(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the class that one of Rustic AI's own clients creates from its properties."""
    if named := _map(document.get("client_properties")).get("tracking_store_class"):
        yield str(named)


def _map(value: Any) -> dict[str, Any]:
    """Return a mapping as it is, anything else as an empty one: Rustic AI itself rejects that."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
