from collections.abc import Mapping
from typing import Any

from rustic_ai.core.guild.dsl import AgentSpec, GuildSpec
from rustic_ai.core.messaging import Client

def build_agent_from_spec(
    agent_spec: AgentSpec,
    guild_spec: GuildSpec,
    dependencies: Mapping[str, Any],
    client_class: type[Client],
    client_props: Mapping[str, Any],
    machine_id: int,
    organization_id: str | None = ...,
) -> object: ...
