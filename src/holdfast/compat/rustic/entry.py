"""The entry of a process that is an agent of Rustic AI.

::

    specs checked ─> agent subscribed ─> control.ready ─> messages … ─> stop ─> current message done ─> end
"""

# Rustic AI runs on one version of Python only, so its types are in typings/.
# pyright: reportMissingModuleSource=false

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from rustic_ai.core.guild.dsl import AgentSpec, GuildSpec
from rustic_ai.core.guild.execution.agent_wrapper import AgentWrapper
from rustic_ai.core.guild.execution.utils import build_agent_from_spec
from rustic_ai.core.messaging import MessagingConfig

from holdfast.compat.rustic.ending import OwnAgent, finish
from holdfast.compat.rustic.specs import PREFIX, check_classes, client_path, messaging_of
from holdfast.config import load
from holdfast.errors import InputError
from holdfast.hosts.agent import organization_of
from holdfast.processes.entries import allowed_class
from holdfast.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rustic_ai.core.messaging import Client

    from holdfast.config import LogSettings
    from holdfast.processes.control import ChildControl

_settings: list[LogSettings] = []
_EXAMPLE: Final[Mapping[str, Any]] = {
    "agent_spec": {
        "id": "example",
        "name": "Example",
        "description": "Created once, never run",
        "class_name": "rustic_ai.core.agents.testutils.echo_agent.EchoAgent",
    },
    "guild_spec": {"id": "example", "name": "Example", "description": "No agents"},
    "messaging_config": {"backend_module": PREFIX, "backend_class": "Nothing", "backend_config": {}},
}


class HostedAgent(AgentWrapper):
    """An agent of Rustic AI, alone in its process."""

    def run(self) -> None:
        """Create the agent, which then receives messages."""
        self.initialize_agent()

    def shutdown(self) -> None:
        """Finish the current message; later ones are for the next copy of this agent."""
        if not finish(self.messaging.backend):
            super().shutdown()


def prepare(*_: object) -> None:
    """Read the settings and create an example agent in the zygote: children inherit what it loads."""
    _settings.append(load().settings.log)
    example = hosted(_EXAMPLE, (PREFIX,), "")
    build_agent_from_spec(
        example.agent_spec, example.guild_spec, {}, example.client_type, {}, machine_id=0, organization_id=""
    )


def run(payload: dict[str, Any], control: ChildControl) -> None:
    """Run an agent until its host stops it."""
    _write_logs(_settings[0] if _settings else load().settings.log)
    OwnAgent.agent_id = control.agent_id
    agent = hosted(payload, (PREFIX, *control.class_prefixes), organization_of(control.agent_id))
    agent.run()
    control.ready()
    control.stop.wait()
    agent.shutdown()


def hosted(payload: Mapping[str, Any], prefixes: tuple[str, ...], organization_id: str) -> HostedAgent:
    """Create the agent that a payload describes; its classes must be allowed here."""
    check_classes(payload, prefixes)
    try:
        agent_spec = AgentSpec.model_validate(payload.get("agent_spec"))
        guild_spec = GuildSpec.model_validate(payload.get("guild_spec"))
        messaging = MessagingConfig.model_validate(messaging_of(payload.get("messaging_config") or {}))
    except ValueError as exc:
        raise InputError(f"a spec of Rustic AI can't be read: {exc}") from exc
    client = allowed_class(client_path(payload.get("client_type", "")), prefixes)
    return HostedAgent(
        guild_spec=guild_spec,
        agent_spec=agent_spec,
        messaging_config=messaging,
        machine_id=payload.get("machine_id", 0),
        client_type=cast("type[Client]", client),
        client_properties=payload.get("client_properties") or {},
        organization_id=organization_id or None,
    )


def _write_logs(settings: LogSettings) -> None:
    logs.configure(msgspec.structs.replace(settings, format="json"))
    if settings.level != "DEBUG":
        for handler in logging.getLogger().handlers:
            handler.addFilter(_is_worth_reading)


def _is_worth_reading(record: logging.LogRecord) -> bool:
    """Drop Rustic AI's own INFO lines: they have whole specs, passwords included."""
    return record.levelno >= logging.WARNING or f"{os.sep}{PREFIX}{os.sep}" not in record.pathname
