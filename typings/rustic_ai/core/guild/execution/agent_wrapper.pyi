from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from rustic_ai.core.guild.dsl import AgentSpec, GuildSpec
from rustic_ai.core.messaging import Client, MessagingConfig, MessagingInterface

class AgentWrapper(ABC):
    guild_spec: GuildSpec
    agent_spec: AgentSpec
    client_type: type[Client]
    messaging: MessagingInterface

    def __init__(
        self,
        guild_spec: GuildSpec,
        agent_spec: AgentSpec,
        messaging_config: MessagingConfig,
        machine_id: int,
        client_type: type[Client] = ...,
        client_properties: Mapping[str, Any] = ...,
        organization_id: str | None = ...,
    ) -> None: ...
    def initialize_agent(self) -> object: ...
    @abstractmethod
    def run(self) -> object | None: ...
    def shutdown(self) -> None: ...
