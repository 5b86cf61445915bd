"""The process of an agent of Rustic AI: the entry that a host forks.

::

    specs checked ─> agent subscribed ─> control.ready ─> messages … ─> asked to stop ─> last one done ─> end
"""

# What Rustic AI looks like is in typings/: it runs on one version of Python, and need not be installed here.
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

from holdfast.config import load
from holdfast.errors import InputError
from holdfast.hosts.agent import organization_of
from holdfast.hosts.rustic.ending import finish
from holdfast.hosts.rustic.inside import Inside
from holdfast.hosts.rustic.specs import PREFIX, check_classes, client_path, messaging_of
from holdfast.processes.entries import allowed_class
from holdfast.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rustic_ai.core.messaging import Client

    from holdfast.config import LogSettings
    from holdfast.processes.control import Control

_settings: list[LogSettings] = []
_EXAMPLE: Final[Mapping[str, Any]] = {
    "agent_spec": {
        "id": "example",
        "name": "Example",
        "description": "Is made and never runs",
        "class_name": "rustic_ai.core.agents.testutils.echo_agent.EchoAgent",
    },
    "guild_spec": {"id": "example", "name": "Example", "description": "Has no agents"},
    "messaging_config": {"backend_module": PREFIX, "backend_class": "Nothing", "backend_config": {}},
}


class HostedAgent(AgentWrapper):
    """An agent of Rustic AI, alone in its process."""

    def run(self) -> None:
        """Make the agent and have it receive."""
        self.initialize_agent()

    def shutdown(self) -> None:
        """Finish the message in hand; what comes after it is for whoever starts this agent next."""
        if not finish(self.messaging.backend):
            super().shutdown()


def prepare(*_: object) -> None:
    """In the zygote: read the settings, and have built what is built when an agent is first made."""
    _settings.append(load().settings.log)
    example = hosted(_EXAMPLE, (PREFIX,), "")
    build_agent_from_spec(
        example.agent_spec, example.guild_spec, {}, example.client_type, {}, machine_id=0, organization_id=""
    )


def run(payload: dict[str, Any], control: Control) -> None:
    """Be an agent until told to stop."""
    _write_logs(_settings[0] if _settings else load().settings.log)
    Inside.agent_id = control.agent_id
    agent = hosted(payload, (PREFIX, *control.class_prefixes), organization_of(control.agent_id))
    agent.run()
    control.ready()
    control.stop.wait()
    agent.shutdown()


def hosted(payload: Mapping[str, Any], prefixes: tuple[str, ...], organization_id: str) -> HostedAgent:
    """The agent that a payload describes, if its classes may run here."""
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
    """Rustic AI writes every spec it meets at INFO, passwords included."""
    return record.levelno >= logging.WARNING or f"{os.sep}{PREFIX}{os.sep}" not in record.pathname
