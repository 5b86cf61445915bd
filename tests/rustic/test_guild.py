"""Guilds with a manager, itself an agent of the engine that launches the others."""

from __future__ import annotations

import os

import pytest
import redis
from rustic_ai.core.agents.system.models import StopGuildRequest
from rustic_ai.core.guild.builders import GuildHelper
from rustic_ai.core.guild.dsl import GuildTopics

from holdfast.compat.rustic import K8sExecutionEngine
from tests.support.hosts.rustic_system import ORGANIZATION, ask, gone, placed, probe_in
from tests.support.waiting import wait_until


@pytest.fixture
def manager_id(guild_id):
    return GuildHelper.get_manager_agent_id(guild_id)


@pytest.fixture
def guild(builder, metastore, guild_id, manager_id):
    guild = builder.bootstrap(metastore, ORGANIZATION)
    wait_until(lambda: running(guild_id) == {manager_id, "one", "two"}, seconds=60)
    yield guild
    for agent_id in (manager_id, "one", "two"):
        guild.execution_engine.stop_agent(guild_id, agent_id)


def running(guild_id):
    return set(K8sExecutionEngine(guild_id, ORGANIZATION).get_agents_in_guild(guild_id))


def stop(probe, guild_id):
    request = StopGuildRequest(guild_id=guild_id, user_id="somebody")
    return probe.publish(GuildTopics.SYSTEM_TOPIC, request).to_int()


def test_a_guild_is_bootstrapped_stopped_and_bootstrapped_again(
    guild, builder, metastore, guild_id, manager_id, valkey
):
    """The manager stops itself, inside the message that says so. Fails if its stop waits for its own end: it is
    killed then, and that message is not done with."""
    probe = probe_in(guild)
    assert ask(probe, "one") == placed(guild.execution_engine, "one").pid
    pid = placed(guild.execution_engine, manager_id).pid
    told = stop(probe, guild_id)
    wait_until(lambda: running(guild_id) == set(), seconds=60)
    gone(pid)
    with redis.Redis(port=valkey.port) as client:
        done = client.get(f"eo:pos:{guild_id}${manager_id}:{guild_id}:{GuildTopics.SYSTEM_TOPIC}")
    assert int(done) == told
    builder.bootstrap(metastore, ORGANIZATION)
    wait_until(lambda: running(guild_id) == {manager_id, "one", "two"}, seconds=60)
    assert ask(probe, "two") == placed(guild.execution_engine, "two").pid
    assert placed(guild.execution_engine, manager_id).restarts == 0


def test_a_manager_that_crashed_attaches_to_its_agents_again(guild, guild_id, manager_id):
    probe, engine = probe_in(guild), guild.execution_engine
    before = {name: ask(probe, name) for name in ("one", "two")}
    pid = placed(engine, manager_id).pid
    os.kill(pid, 9)
    wait_until(
        lambda: placed(engine, manager_id).pid != pid and guild.is_agent_running(manager_id), seconds=60
    )
    assert {name: ask(probe, name) for name in ("one", "two")} == before
    stop(probe, guild_id)
    wait_until(lambda: running(guild_id) == set(), seconds=60)
    for each in before.values():
        gone(each)
