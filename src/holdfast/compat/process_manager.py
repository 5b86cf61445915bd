"""``AgentProcessManager``: the process manager that execution engines expect, over :class:`Processes`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from holdfast.errors import InputError
from holdfast.hosts.entries import PLAIN
from holdfast.processes.options import ProcessOptions
from holdfast.processes.processes import Processes
from holdfast.processes.restarts import RestartPolicy

if TYPE_CHECKING:
    from holdfast.processes.info import AgentProcessInfo
    from holdfast.processes.limits import Limits

PLAIN_ENTRY: Final = "plain"

# Added to the time in which an agent must be ready: the zygote may have to start first.
_MARGIN_SECONDS: Final = 30.0


class AgentProcessManager:
    """Starts, stops and lists agents' processes, of any framework; of guilds it has the id only.

    An agent is the class that its spec names, under ``class_prefixes`` (``processes/plain.py``). A dead agent
    is not restarted unless ``restarts`` allows it, and is listed until it is cleaned up.
    """

    def __init__(
        self,
        max_processes: int = 100,
        *,
        class_prefixes: tuple[str, ...] = (),
        preload: tuple[str, ...] = (),
        restarts: RestartPolicy | None = None,
        processes: Processes | None = None,
    ) -> None:
        self.processes = processes or Processes(
            ProcessOptions(
                entries=PLAIN,
                class_prefixes=class_prefixes,
                preload=preload,
                max_processes=max_processes,
                restarts=restarts or RestartPolicy(max_restarts=0),
            )
        )
        self.processes.warm_up()

    def spawn_agent_process(
        self,
        agent_spec: Any,
        guild_spec: Any,
        messaging_config: Any,
        machine_id: int = 0,
        client_type_name: str = "MessageTrackingClient",
        client_properties: dict[str, Any] | None = None,
        *,
        entry: str = PLAIN_ENTRY,
        fence: int = 0,
        limits: Limits | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> str:
        """Start an agent, wait until it is ready and return its id.

        A spec is a mapping, its JSON, or a model with ``model_dump``. Raises a RuntimeError
        (:class:`~holdfast.errors.ProcessError`) if ``max_processes`` run or the agent does not start.
        """
        agent, guild = _spec("agent_spec", agent_spec), _spec("guild_spec", guild_spec)
        payload = {
            "agent_spec": agent,
            "guild_spec": guild,
            "messaging_config": _spec("messaging_config", messaging_config),
            "machine_id": machine_id,
            "client_type_name": client_type_name,
            "client_properties": client_properties or {},
        }
        agent_id = _id("agent_spec", agent)
        named = {**(labels or {}), "guild_id": _id("guild_spec", guild)}
        created = self.processes.spawn(agent_id, entry, payload, fence=fence, limits=limits, labels=named)
        options = self.processes.options
        patience = options.preload_timeout_seconds + options.ready_timeout_seconds + _MARGIN_SECONDS
        return self.processes.wait(created, patience).agent_id

    def stop_agent_process(self, agent_id: str, timeout: float = 10) -> bool:
        """Stop an agent, killing it after ``timeout`` seconds; return False if there is no such agent."""
        try:
            ended = self.processes.wait(self.processes.stop(agent_id, timeout), timeout + _MARGIN_SECONDS)
        except TimeoutError:
            return False
        self.processes.wait(self.processes.forget(agent_id))
        return ended

    def is_process_alive(self, agent_id: str) -> bool:
        """Whether an agent has a live process."""
        info = self.processes.get(agent_id)
        return info is not None and info.is_alive

    def get_process_info(self, agent_id: str) -> AgentProcessInfo | None:
        """Return an agent's process, alive or not."""
        return self.processes.get(agent_id)

    def list_processes(self, guild_id: str | None = None) -> dict[str, AgentProcessInfo]:
        """Return the processes of all agents, or of one guild's."""
        known = self.processes.all()
        return {name: info for name, info in known.items() if guild_id is None or info.guild_id == guild_id}

    def cleanup_dead_processes(self) -> list[str]:
        """Remove the agents that have ended for good; return their ids."""
        ended = [name for name, info in self.processes.all().items() if info.status.ended]
        return [name for name in ended if self.processes.wait(self.processes.forget(name))]

    def shutdown(self) -> None:
        """Stop all agents in parallel, then the zygote."""
        self.processes.shutdown()


def _spec(name: str, value: Any) -> dict[str, Any]:
    try:
        if isinstance(value, str | bytes | bytearray):
            value = json.loads(value)
        elif hasattr(value, "model_dump"):
            value = value.model_dump(mode="json")
    except ValueError as error:
        raise InputError(f"{name} is not JSON: {error}") from error
    if not isinstance(value, Mapping):
        raise InputError(f"{name} must be a JSON object, its text or a model, not {type(value).__name__}")
    return dict(cast("Mapping[str, Any]", value))


def _id(name: str, spec: Mapping[str, Any]) -> str:
    found = spec.get("id")
    if not isinstance(found, str) or not found:
        raise InputError(f"{name} needs an 'id', a text that is not empty; it has {found!r}")
    return found
