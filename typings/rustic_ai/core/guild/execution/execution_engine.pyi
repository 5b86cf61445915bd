from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from rustic_ai.core.guild.dsl import AgentSpec, GuildSpec
from rustic_ai.core.messaging import Client, MessagingConfig

class ExecutionEngine(ABC):
    guild_id: str
    organization_id: str

    def __init__(self, guild_id: str, organization_id: str) -> None: ...
    @abstractmethod
    def run_agent(
        self,
        guild_spec: GuildSpec,
        agent_spec: AgentSpec,
        messaging_config: MessagingConfig,
        machine_id: int,
        client_type: type[Client] = ...,
        client_properties: Mapping[str, Any] = ...,
        default_topic: str = ...,
    ) -> object | None: ...
    @abstractmethod
    def get_agents_in_guild(self, guild_id: str) -> dict[str, AgentSpec]: ...
    @abstractmethod
    def find_agents_by_name(self, guild_id: str, agent_name: str) -> list[AgentSpec]: ...
    @abstractmethod
    def is_agent_running(self, guild_id: str, agent_id: str) -> bool: ...
    @abstractmethod
    def stop_agent(self, guild_id: str, agent_id: str) -> None: ...
    @abstractmethod
    def shutdown(self) -> None: ...
    @classmethod
    def get_qualified_class_name(cls) -> str: ...
