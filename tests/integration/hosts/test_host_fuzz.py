"""Whatever a caller sends, a host lives, and answers with a code of its proto file."""

from __future__ import annotations

import json

import pytest
from grpc import aio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.hosts.proto import agent_host_pb2 as wire
from holdfast.hosts.proto.agent_host_pb2_grpc import AgentHostServiceStub
from tests.support.hosts.host_processes import cluster_of

CODES = {"INVALID_ARGUMENT", "FAILED_PRECONDITION", "ALREADY_EXISTS", "INTERNAL", "RESOURCE_EXHAUSTED"}
CREATE = "/rustic_ai.k8s.agent_host.AgentHostService/CreateAgent"
FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
async def channel(redis, redis_settings):
    """To a host that must be as well after the test as before."""
    async with (
        cluster_of(redis_settings, "a", max_processes=2) as cluster,
        aio.insecure_channel(cluster.children["a"].address) as channel,
    ):
        yield channel
        assert cluster.children["a"].process.poll() is None
        health = await AgentHostServiceStub(channel).Health(wire.HealthRequest())
        assert (health.healthy, health.agent_count) == (True, 0)
        assert '"event":"call failed"' not in cluster.children["a"].logged(), "nothing that nobody thought of"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
documents = st.one_of(
    st.just(b""),
    st.binary(max_size=40),
    json_values.map(lambda value: json.dumps(value).encode()),
    st.sampled_from([b"{}", b"[]", b"null", b'{"a":' * 3000, b"[" * 100_000, b'{"a": 1e999}', b'"\\ud800"']),
    st.integers(100, 2000).map(lambda depth: b'{"a":' * depth + b"1" + b"}" * depth),
)
specs = st.one_of(
    documents,
    st.fixed_dictionaries(
        {},
        optional={
            "id": json_values | st.text(max_size=600),
            "name": json_values,
            "class_name": json_values
            | st.sampled_from(
                [
                    "os.system",
                    "tests.support.hosts.plain_agents",
                    "tests.support.hosts.plain_agents.Idle.x",
                    "a..b",
                    "",
                ]
            ),
            "resident": json_values,
        },
    ).map(lambda value: json.dumps(value).encode()),
)
needs = st.one_of(
    documents,
    st.fixed_dictionaries(
        {},
        optional={
            "cpu": st.floats() | st.integers(),
            "memory_mb": st.floats() | st.integers(),
            "labels": st.lists(st.text(max_size=9), max_size=3),
        },
    ).map(lambda value: json.dumps(value).encode()),
)
names = st.text(max_size=700)
requests = st.builds(
    wire.CreateAgentRequest,
    agent_spec=specs,
    guild_spec=documents,
    messaging_config=documents,
    client_properties=documents,
    machine_id=st.integers(-(2**31), 2**31 - 1),
    client_type=names,
    organization_id=names,
    guild_id=names,
    entry=st.sampled_from(["", "plain", "resident", "os:system"]) | names,
    request_id=names,
    fence=st.none() | st.integers(-(2**63), 2**63 - 1),
    agent_id=names | st.sampled_from(["x", "a b", "\n", "{}", "../..", "x" * 513]),
    needs=needs,
)


@FUZZ
@given(request=requests)
@example(request=wire.CreateAgentRequest(agent_spec=b'{"id": "x"}', needs=b'{"memory_mb": -5}'))
@example(request=wire.CreateAgentRequest(agent_spec=b'{"id": "x"}', needs=b'{"memory_mb": 1e300}'))
@example(request=wire.CreateAgentRequest(agent_spec=b'{"id": "x"}', agent_id="a b"))
@example(request=wire.CreateAgentRequest(agent_spec=b'{"id": "x", "a": ' + b"[" * 900 + b"]" * 900 + b"}"))
async def test_a_host_answers_whatever_it_is_asked_to_create(channel, request):
    stub = AgentHostServiceStub(channel)
    try:
        created = await stub.CreateAgent(request, timeout=60)
    except aio.AioRpcError as exc:
        assert exc.code().name in CODES, (exc.code(), exc.details())
        assert exc.details()
    else:
        who = {"agent_id": created.agent_id}
        if not request.agent_id:
            who |= {"guild_id": request.guild_id, "organization_id": request.organization_id}
        await stub.StopAgent(wire.StopAgentRequest(**who))


@FUZZ
@given(data=st.binary(max_size=200))
async def test_a_host_answers_what_is_no_request_at_all(channel, data):
    try:
        await channel.unary_unary(CREATE)(data, timeout=60)
    except aio.AioRpcError as exc:
        assert exc.code().name in CODES, (exc.code(), exc.details())


@FUZZ
@given(
    call=st.sampled_from(["StopAgent", "GetAgentInfo"]),
    agent_id=names,
    guild_id=names,
    timeout=st.integers(-9, 9),
)
async def test_nobody_is_found_who_is_not_there(channel, call, agent_id, guild_id, timeout):
    request = getattr(wire, f"{call}Request")(agent_id=agent_id, guild_id=guild_id)
    if call == "StopAgent":
        request.timeout = timeout
    with pytest.raises(aio.AioRpcError) as caught:
        await getattr(AgentHostServiceStub(channel), call)(request, timeout=60)
    assert caught.value.code().name in {"NOT_FOUND", "INVALID_ARGUMENT"}
