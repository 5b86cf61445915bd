"""The engine's six calls, on two hosts."""

from __future__ import annotations

import os

import pytest
from rustic_ai.core.guild.builders import AgentBuilder
from rustic_ai.core.guild.dsl import GuildSpec
from rustic_ai.core.messaging import MessagingConfig

from holdfast.compat.rustic import K8sExecutionEngine
from holdfast.errors import InputError, NoHost, ProcessError, ProcessFailed
from holdfast.hosts.agent import AgentStatus
from tests.support.hosts.rustic_agents import Answering, Failing
from tests.support.hosts.rustic_system import ORGANIZATION, answering, ask, gone, placed, probe_in, said
from tests.support.waiting import wait_until


@pytest.fixture
def guild_spec(guild_id):
    return GuildSpec(id=guild_id, name="The guild", description="A guild for tests")


def test_run_agent_e2e(engine, guild_id, guild_spec, messaging):
    """The document's 8.2."""
    agent_spec = answering("one")
    assert engine.run_agent(guild_spec, agent_spec, messaging, 1) is None
    assert engine.is_agent_running(guild_id, agent_spec.id)
    pid = placed(engine, "one").pid
    engine.stop_agent(guild_id, agent_spec.id)
    assert not engine.is_agent_running(guild_id, agent_spec.id)
    gone(pid)


@pytest.mark.timeout(400)
def test_100_agents(engine, guild_id, guild_spec, messaging):
    """The document's 8.3."""
    specs = [answering(f"agent-{i}") for i in range(100)]
    for i, spec in enumerate(specs):
        engine.run_agent(guild_spec, spec, messaging, 200 + i)
    for spec in specs:
        assert engine.is_agent_running(guild_id, spec.id)
    found = engine.get_agents_in_guild(guild_id)
    assert found.keys() == {spec.id for spec in specs}
    assert {placed(engine, spec.id).host for spec in specs} == {"a", "b"}
    for spec in specs:
        engine.stop_agent(guild_id, spec.id)
    assert engine.get_agents_in_guild(guild_id) == {}


def test_what_one_engine_runs_every_other_finds_and_stops(engine, guild_id, guild_spec, messaging):
    other = K8sExecutionEngine(guild_id, ORGANIZATION)
    engine.run_agent(guild_spec, answering("one"), messaging, 1)
    assert other.is_agent_running(guild_id, "one")
    (found,) = other.find_agents_by_name(guild_id, "One")
    assert found == answering("one")
    assert other.get_agents_in_guild(guild_id) == {"one": found}
    assert other.find_agents_by_name(guild_id, "Two") == []
    assert other.get_agents_in_guild("another") == {}
    assert not K8sExecutionEngine(guild_id, "another org").is_agent_running(guild_id, "one")
    assert K8sExecutionEngine(guild_id, "another org").get_agents_in_guild(guild_id) == {}
    other.stop_agent(guild_id, "one")
    assert not engine.is_agent_running(guild_id, "one")
    assert engine.get_agents_in_guild(guild_id) == {}


def test_shutdown_stops_what_this_engine_has_launched_and_nothing_else(
    engine, guild_id, guild_spec, messaging
):
    mine = K8sExecutionEngine(guild_id, ORGANIZATION)
    engine.run_agent(guild_spec, answering("theirs"), messaging, 1)
    for name in ("one", "two", "three"):
        mine.run_agent(guild_spec, answering(name), messaging, 1)
    pids = [placed(mine, name).pid for name in ("one", "two", "three")]
    mine.shutdown()
    for pid in pids:
        gone(pid)
    assert engine.get_agents_in_guild(guild_id).keys() == {"theirs"}
    mine.shutdown()  # nothing is left to stop
    assert mine.is_agent_running(guild_id, "theirs")


def test_a_message_in_hand_is_finished_before_the_end(guild):
    """Fails if the agent ends like Rustic's own do: the thread with its message is given a second."""
    guild.launch_agent(answering("one"))
    probe = probe_in(guild)
    probe.publish_dict("default_topic", {"ask": "one", "slowly": 5})
    probe.publish_dict("default_topic", {"ask": "one", "n": 2})
    wait_until(lambda: said(probe, "began", "one"), seconds=60)
    guild.remove_agent("one")
    wait_until(lambda: said(probe, "answer", "one"), seconds=60)
    assert said(probe, "answer", "one")["n"] is None
    probe.clear_messages()
    guild.launch_agent(answering("one"))
    # What waited behind it comes again, and what was answered does not.
    assert wait_until(lambda: said(probe, "answer", "one"), seconds=60)["n"] == 2
    assert ask(probe, "one") == placed(guild.execution_engine, "one").pid
    assert not said(probe, "began", "one")


def test_a_process_that_dies_is_started_again_and_answers(guild):
    guild.launch_agent(answering("one"))
    probe = probe_in(guild)
    pid = ask(probe, "one")
    os.kill(pid, 9)
    assert ask(probe, "one") != pid
    wait_until(lambda: guild.is_agent_running("one"), seconds=60)  # it can answer before that is known


def test_a_host_that_is_killed_loses_no_agent(guild, hosts):
    names = ["one", "two", "three", "four"]
    for name in names:
        guild.launch_agent(answering(name))
    probe, engine = probe_in(guild), guild.execution_engine
    before = {name: ask(probe, name) for name in names}
    lost = placed(engine, "one").host
    moved = [name for name in names if placed(engine, name).host == lost]
    hosts.children[lost].kill()
    # A moment longer than their host they may still answer.
    for name in moved:
        gone(before[name])
    after = {name: ask(probe, name) for name in names}
    assert {name for name in names if after[name] != before[name]} == set(moved)
    assert len(moved) == 2
    wait_until(lambda: all(guild.is_agent_running(name) for name in names), seconds=60)
    assert all(placed(engine, name).host != lost for name in names)


def test_a_frozen_hosts_copy_answers_nothing_beside_the_one_that_replaces_it(guild, hosts):
    """Fails if only its host may end an agent: every message has two answers while the host is frozen."""
    guild.launch_agent(answering("one"))
    probe, engine = probe_in(guild), guild.execution_engine
    ask(probe, "one")
    frozen = placed(engine, "one").host
    hosts.children[frozen].freeze()
    try:
        moved = wait_until(
            lambda: placed(engine, "one"),
            lambda found: found.host != frozen and found.status is AgentStatus.RUNNING,
            what="the agent to run elsewhere",
            seconds=60,
        )
        probe.clear_messages()
        for n in range(20):
            probe.publish_dict("default_topic", {"ask": "one", "n": n})
        answers = wait_until(
            lambda: [each.payload for each in list(probe.received_messages) if "answer" in each.payload],
            lambda found: {each["n"] for each in found} == set(range(20)),
            seconds=60,
        )
        assert {each["pid"] for each in answers} == {moved.pid}
        assert len(answers) == 20
    finally:
        hosts.children[frozen].thaw()


def test_a_fork_has_an_engine_of_its_own(engine, guild_id, guild_spec, messaging):
    """Fails without the new beginning after a fork: the parent's loop never answers there."""
    engine.run_agent(guild_spec, answering("one"), messaging, 1)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            assert engine.is_agent_running(guild_id, "one")
            # gRPC would end this process with SIGABRT.
            with pytest.raises(ProcessError, match="gRPC does not survive a fork"):
                engine.run_agent(guild_spec, answering("two"), messaging, 1)
            with pytest.raises(ProcessError, match="gRPC does not survive a fork"):
                engine.stop_agent(guild_id, "one")
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert engine.is_agent_running(guild_id, "one")


def test_what_can_not_run_says_why(engine, guild_id, guild_spec, messaging, monkeypatch):
    in_memory = MessagingConfig(
        backend_module="rustic_ai.core.messaging.backend",
        backend_class="InMemoryMessagingBackend",
        backend_config={},
    )
    with pytest.raises(InputError, match="reaches no agent in another process: use Redis"):
        engine.run_agent(guild_spec, answering("one"), in_memory, 1)
    with pytest.raises(InputError, match="client_properties must be JSON"):
        engine.run_agent(guild_spec, answering("one"), messaging, 1, client_properties={"x": object()})
    with pytest.raises(ProcessFailed, match="this agent does not want to live"):
        engine.run_agent(
            guild_spec,
            AgentBuilder(Failing).set_id("f").set_name("F").set_description("Fails").build_spec(),
            messaging,
            1,
        )
    outside = answering("one").model_copy(update={"class_name": "os.path.Agent"})
    with pytest.raises(InputError, match=r"'os\.path\.Agent' is outside of the prefixes"):
        engine.run_agent(guild_spec, outside, messaging, 1)
    peers = guild_spec.model_copy(update={"agents": [outside]})
    with pytest.raises(InputError, match=r"'os\.path\.Agent' is outside of the prefixes"):
        engine.run_agent(peers, answering("one"), messaging, 1)
    assert engine.get_agents_in_guild(guild_id) == {}
    engine.stop_agent(guild_id, "nobody")


def test_the_keywords_name_other_hosts(guild_id, guild_spec, messaging):
    engine = K8sExecutionEngine(
        guild_id, ORGANIZATION, redis_url=os.environ["REDIS_URL"], agent_host_service_name="no.such.service"
    )
    with pytest.raises(NoHost, match="there is no live host"):
        engine.run_agent(guild_spec, answering("one"), messaging, 1)
    assert not engine.is_agent_running(guild_id, "one")


def test_the_class_is_where_guilds_look_for_it():
    from holdfast.hosts import rustic as old_path

    assert old_path.K8sExecutionEngine is K8sExecutionEngine
    assert K8sExecutionEngine.get_qualified_class_name() == "holdfast.hosts.rustic.K8sExecutionEngine"
    assert Answering.get_qualified_class_name() == "tests.support.hosts.rustic_agents.Answering"
