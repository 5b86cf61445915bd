"""The ways to a host beside the engine of a cluster: its protocol, and one machine without hosts."""

from __future__ import annotations

import os

import grpc
import psutil
import pytest
from rustic_ai.core.guild.dsl import GuildSpec

from holdfast.compat.rustic import K8sExecutionEngine
from holdfast.hosts.proto import agent_host_pb2 as wire
from holdfast.hosts.proto.agent_host_pb2_grpc import AgentHostServiceStub
from tests.support.hosts.rustic_system import ORGANIZATION, answering, ask, gone, probe_in


@pytest.fixture
def stub(hosts):
    with grpc.insecure_channel(hosts.children["a"].address) as channel:
        yield AgentHostServiceStub(channel)


def test_create_and_stop_an_agent_via_grpc(stub, engine, guild_id, messaging):
    """The document's 8.2: a caller that knows nothing of entries, with a short name of a client."""
    guild_spec = GuildSpec(id=guild_id, name="The guild", description="A guild for tests")
    created = stub.CreateAgent(
        wire.CreateAgentRequest(
            agent_spec=answering("one").model_dump_json().encode(),
            guild_spec=guild_spec.model_dump_json().encode(),
            messaging_config=messaging.model_dump_json().encode(),
            machine_id=1,
            client_type="MessageTrackingClient",
            client_properties=b"{}",
            organization_id=ORGANIZATION,
            guild_id=guild_id,
        ),
        timeout=60,
    )
    assert (created.success, created.agent_id) == (True, "one")
    assert psutil.pid_exists(created.pid)
    assert engine.is_agent_running(guild_id, "one")
    who = {"agent_id": "one", "guild_id": guild_id, "organization_id": ORGANIZATION}
    assert stub.StopAgent(wire.StopAgentRequest(**who), timeout=60).success
    assert not engine.is_agent_running(guild_id, "one")
    gone(created.pid)


def test_on_one_machine_the_engine_is_its_own_host(guild, guild_id, monkeypatch):
    monkeypatch.setenv("HOLDFAST_HOSTS_ENGINE", "local")
    monkeypatch.setenv("HOLDFAST_HOSTS_ALLOWED", "tests.support.hosts.rustic_agents")
    engine = K8sExecutionEngine(guild_id, ORGANIZATION)
    guild.launch_agent(answering("one"), engine)
    assert engine.is_agent_running(guild_id, "one")
    pid = ask(probe_in(guild), "one")
    assert os.getpid() in {parent.pid for parent in psutil.Process(pid).parents()}
    assert guild.execution_engine.is_agent_running(guild_id, "one"), "engines of the cluster see it too"
    engine.stop_agent(guild_id, "one")
    assert not engine.is_agent_running(guild_id, "one")
    gone(pid)
