"""Rustic AI's execution engine over Holdfast's hosts: six blocking calls that run on the engine's thread."""

# Rustic AI runs on one version of Python only, so its types are in typings/.
# pyright: reportMissingModuleSource=false

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rustic_ai.core.guild.dsl import AgentSpec
from rustic_ai.core.guild.execution.execution_engine import ExecutionEngine
from rustic_ai.core.messaging import SimpleClient

from holdfast.compat.rustic.background import background, check_not_forked
from holdfast.compat.rustic.ending import OwnAgent
from holdfast.compat.rustic.specs import messaging_of
from holdfast.config import load
from holdfast.errors import InputError
from holdfast.hosts.agent import Agent, AgentStatus, guild_prefix, qualified
from holdfast.hosts.entries import RUSTIC
from holdfast.hosts.wire_codec import Payload, spec_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rustic_ai.core.guild.dsl import GuildSpec
    from rustic_ai.core.messaging import Client, MessagingConfig

    from holdfast.config import Settings
    from holdfast.hosts.engine import HostEngine

_MACHINES: Final = 256
"""Rustic AI's message ids have eight bits for the machine id."""
_STOPS_AT_ONCE: Final = 16


class K8sExecutionEngine(ExecutionEngine):
    """Runs the agents of a guild on Holdfast's hosts.

    Rustic AI creates an engine from its class path and the first two arguments, in agents' processes too, so
    the other arguments default to the environment (``REDIS_URL``, ``HOLDFAST_HOSTS_…``). The registry has
    what is running, not one engine: every other engine finds, stops and re-attaches to the same agents.
    """

    # The path that stored guilds have, and that hosts of older releases allow.
    __module__ = "holdfast.hosts.rustic"

    def __init__(
        self,
        guild_id: str,
        organization_id: str,
        redis_url: str | None = None,
        agent_host_service_name: str | None = None,
    ) -> None:
        super().__init__(guild_id=guild_id, organization_id=organization_id)
        self._settings = _settings(redis_url, agent_host_service_name)
        self._launched: set[str] = set()

    def run_agent(
        self,
        guild_spec: GuildSpec,
        agent_spec: AgentSpec,
        messaging_config: MessagingConfig,
        machine_id: int,
        client_type: type[Client] = SimpleClient,
        client_properties: Mapping[str, Any] | None = None,
        default_topic: str = "default_topic",
    ) -> None:
        """Run an agent on a host; return when it can receive messages. A running agent is left as it is."""
        del default_topic  # the agent's spec has its topics
        agent_id = qualified(agent_spec.id, guild_spec.id, self.organization_id)
        payload = Payload(
            agent_spec=msgspec.Raw(agent_spec.model_dump_json().encode()),
            guild_spec=msgspec.Raw(guild_spec.model_dump_json().encode()),
            messaging_config=_raw("messaging", messaging_of(messaging_config.model_dump(mode="json"))),
            client_properties=_raw("client_properties", client_properties or {}),
            client_type=client_type.get_qualified_class_name(),
            machine_id=machine_id % _MACHINES,
        )
        agent = Agent(
            agent_id=agent_id,
            entry=RUSTIC,
            payload=msgspec.json.encode(payload),
            name=agent_spec.name,
            guild_id=guild_spec.id,
            organization_id=self.organization_id,
        )

        async def run() -> None:
            await (await self._engine()).run(agent)

        check_not_forked()
        self._launched.add(agent_id)
        background().call(run())

    def stop_agent(self, guild_id: str, agent_id: str) -> None:
        """Stop an agent and wait for its end. An agent that stops itself ends after the call."""
        known = self._qualified(guild_id, agent_id)

        async def stop() -> None:
            engine = await self._engine()
            if known == OwnAgent.agent_id:
                await _begin_stop(engine, known)
            else:
                await engine.stop(known)

        check_not_forked()
        background().call(stop())
        self._launched.discard(known)

    def is_agent_running(self, guild_id: str, agent_id: str) -> bool:
        """Whether an agent runs, whichever engine launched it."""
        known = self._qualified(guild_id, agent_id)

        async def look() -> bool:
            return await (await self._engine()).location(known) is not None

        return background().call(look())

    def get_agents_in_guild(self, guild_id: str) -> dict[str, AgentSpec]:
        """Return the specs of all running agents of a guild, by their ids."""

        async def look() -> list[Agent]:
            registry = (await self._engine()).registry
            found = registry.all(prefix=guild_prefix(guild_id, self.organization_id))
            return [each.agent async for each in found if each.status is AgentStatus.RUNNING]

        specs = [AgentSpec.model_validate_json(spec_of(agent)) for agent in background().call(look())]
        return {spec.id: spec for spec in specs}

    def find_agents_by_name(self, guild_id: str, agent_name: str) -> list[AgentSpec]:
        """Return the specs of the running agents of a guild that have a name."""
        return [spec for spec in self.get_agents_in_guild(guild_id).values() if spec.name == agent_name]

    def shutdown(self) -> None:
        """Stop the agents that this engine has launched, in parallel; those of other engines go on."""
        if not self._launched:
            return
        check_not_forked()
        slots = asyncio.Semaphore(_STOPS_AT_ONCE)

        async def stop(engine: HostEngine, agent_id: str) -> None:
            async with slots:
                await engine.stop(agent_id)
            self._launched.discard(agent_id)

        async def stop_all() -> None:
            engine = await self._engine()
            stops = (stop(engine, agent_id) for agent_id in tuple(self._launched))
            # A failed stop does not keep the others from being stopped; the next shutdown tries it again.
            for failed in await asyncio.gather(*stops, return_exceptions=True):
                if failed is not None:
                    raise failed

        background().call(stop_all())

    async def _engine(self) -> HostEngine:
        return await background().engine(self._settings)

    def _qualified(self, guild_id: str, agent_id: str) -> str:
        return qualified(agent_id, guild_id, self.organization_id)


async def _begin_stop(engine: HostEngine, agent_id: str) -> None:
    """Remove this process's own agent from the registry; its host ends it after its current message."""
    await engine.registry.unwant(agent_id)
    task = asyncio.create_task(engine.stop(agent_id), name=f"stop {agent_id}")
    _ending.add(task)
    task.add_done_callback(_ending.discard)


_ending: set[asyncio.Task[bool]] = set()


def _settings(redis_url: str | None, service_name: str | None) -> Settings:
    settings = load().settings
    if redis_url is not None:
        settings = msgspec.structs.replace(
            settings, redis=msgspec.structs.replace(settings.redis, url=redis_url)
        )
    if service_name is not None:
        hosts = msgspec.structs.replace(settings.hosts, directory="dns", service_name=service_name)
        settings = msgspec.structs.replace(settings, hosts=hosts)
    return settings


def _raw(name: str, value: Mapping[str, Any]) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except (TypeError, ValueError) as exc:
        raise InputError(f"{name} must be JSON, since the agent has a process of its own: {exc}") from exc
