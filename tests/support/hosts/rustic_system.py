"""Rustic AI on two real hosts: the hosts, agents to run on them, and somebody who asks these."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import psutil
from rustic_ai.core.agents.testutils.probe_agent import ProbeAgent
from rustic_ai.core.guild.builders import AgentBuilder
from rustic_ai.core.guild.dsl import AgentSpec
from rustic_ai.core.guild.guild import Guild

from holdfast.compat.rustic import K8sExecutionEngine
from holdfast.compat.rustic.background import background
from holdfast.config import HostSettings, LeaseSettings, RedisSettings, Settings, WorkerSettings
from holdfast.hosts.agent import Placed, qualified
from tests.support.hosts.host_processes import HostChild
from tests.support.hosts.rustic_agents import Answering
from tests.support.paths import ROOT
from tests.support.waiting import wait_until

ENGINE = "holdfast.compat.rustic.K8sExecutionEngine"
ORGANIZATION = "the org"
TTL_SECONDS = 6.0


class Hosts:
    """Two hosts, which tests may kill: whoever needs them next has two again."""

    def __init__(self, redis_url: str, folder: Path) -> None:
        self._path = os.pathsep.join([str(ROOT), str(folder), os.environ.get("PYTHONPATH", "")])
        self._settings = Settings(
            redis=RedisSettings(url=redis_url),
            hosts=HostSettings(ttl_seconds=TTL_SECONDS, grpc_port=0),
            worker=WorkerSettings(heartbeat_seconds=1.0),
            lease=LeaseSettings(ttl_seconds=2.0),
        )
        self.children: dict[str, HostChild] = {}

    def ensure(self) -> None:
        """Have both run."""
        for name in ("a", "b"):
            known = self.children.get(name)
            if known is not None and known.process.poll() is not None:
                print(f"--- {name}\n{known.close()}", file=sys.stderr)
                known = None
            if known is None:
                environ = {
                    "HOLDFAST_HOSTS_ALLOWED": "tests.support.hosts.rustic_agents,myagents",
                    "HOLDFAST_HOSTS_PRELOAD": "tests.support.hosts.rustic_agents",
                    "PYTHONPATH": self._path,
                }
                self.children[name] = HostChild(self._settings, name, **environ)

        async def ready() -> None:
            await asyncio.gather(*(child.ready() for child in self.children.values()))

        asyncio.run(ready())

    def close(self) -> None:
        for name, child in self.children.items():
            print(f"--- {name}\n{child.close()}", file=sys.stderr)


def answering(agent_id: str) -> AgentSpec:
    return (
        AgentBuilder(Answering)
        .set_id(agent_id)
        .set_name(agent_id.title())
        .set_description("Says who it is")
        .build_spec()
    )


def probe_in(guild: Guild) -> ProbeAgent:
    """An agent in this process, which hears what the others say."""
    spec = AgentBuilder(ProbeAgent).set_id("probe").set_name("Probe").set_description("Listens").build_spec()
    return guild._add_local_agent(spec)


def ask(probe: ProbeAgent, agent_id: str, **more: Any) -> int:
    """Ask an agent for its process; a message that nobody was there for is in its backlog."""
    probe.clear_messages()
    probe.publish_dict("default_topic", {"ask": agent_id, **more})
    return wait_until(lambda: said(probe, "answer", agent_id), seconds=60)["pid"]


def said(probe: ProbeAgent, what: str, agent_id: str) -> dict[str, Any] | None:
    messages = [message.payload for message in list(probe.received_messages)]
    return next((each for each in messages if each.get(what) == agent_id), None)


def placed(engine: K8sExecutionEngine, agent_id: str) -> Placed:
    """Where an agent is, by the registry."""

    async def look() -> Placed | None:
        ours = await background().engine(engine._settings)
        return await ours.registry.get(qualified(agent_id, engine.guild_id, engine.organization_id))

    found = background().call(look())
    assert found is not None
    return found


def gone(pid: int) -> None:
    wait_until(lambda: not psutil.pid_exists(pid), what=f"the end of process {pid}", seconds=60)
