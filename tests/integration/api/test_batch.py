"""Many runs in one request: each is accepted or refused by itself, and sent again it is the same."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import App
from holdfast.api.shapes import BATCH_MOST
from holdfast.config import QueueSettings, SenderSettings
from tests.support.api.server import key_line


async def sent(client, *runs) -> list[dict]:
    answer = await client.post("/execute/batch", json={"runs": list(runs)})
    assert answer.status_code == 200, answer.text
    return answer.json()["runs"]


async def test_many_runs_are_queued_in_their_order_and_known_again(system, client):
    wanted = [{"agent_id": "echo", "correlation_id": f"r{number}", "input": number} for number in range(300)]
    wanted.append({"agent_id": "echo", "idempotency_key": "k"})
    first = await sent(client, *wanted)
    assert {item["code"] for item in first} == {202}
    assert [item["run"]["run_id"] for item in first[:-1]] == [f"r{number}" for number in range(300)]
    entries = await system.queue.redis.xrange(system.queue.keys.stream)
    assert [fields[b"correlation_id"].decode() for _, fields in entries][:-1] == [f"r{n}" for n in range(300)]
    again = await sent(client, *wanted)
    assert {item["code"] for item in again} == {200}
    assert [item["run"] for item in again] == [item["run"] for item in first]
    assert (await system.queue.depth()).undelivered == 301
    # A key in a batch is the same as in the header.
    single = await client.post("/execute", json={"agent_id": "echo"}, headers={"Idempotency-Key": "k"})
    assert single.json() == first[-1]["run"]


async def test_what_is_wrong_with_one_is_no_others_fault(system, api):
    small = msgspec.structs.replace(system.settings.queue, max_payload_bytes=5000)
    system.settings = msgspec.structs.replace(system.settings, queue=small)
    app = App("tests")

    @app.agent
    async def echo(value):
        return value

    client = (await api(app)).client()
    good = {"agent_id": "echo", "thread_id": "t"}
    items = await sent(
        client,
        good,
        {"agent_id": "ecko"},
        {"agent_id": "echo", "priority": "urgent"},
        {"agent_id": "echo", "input": "x" * 6000},
        {"agent_id": "echo", "queue": "other"},
        {"agent_id": "echo", "action": "RESUME", "correlation_id": "a"},
        {**good, "multitask": "reject"},
        17,
        {"agent_id": "echo", "idempotency_key": "two words"},
        good,
    )
    assert [item["code"] for item in items] == [202, 404, 422, 413, 404, 422, 409, 422, 422, 202]
    kinds = [item["problem"]["type"].rpartition(":")[2] for item in items if "problem" in item]
    assert kinds == [
        "unknown-agent",
        "invalid",
        "too-large",
        "not-found",
        "invalid",
        "conflict",
        "invalid",
        "invalid",
    ]
    assert (await system.queue.list()).runs[0].thread_id == "t"


async def test_a_full_queue_refuses_the_rest_and_says_when_to_come_back(system, api):
    small = msgspec.structs.replace(system.settings.queue, max_depth=2)
    system.settings = msgspec.structs.replace(system.settings, queue=small)
    client = (await api()).client()
    items = await sent(client, *[{"agent_id": "echo"}] * 4)
    assert [(item["code"], item.get("retry_after")) for item in items] == [
        (202, None),
        (202, None),
        (429, 5),
        (429, 5),
    ]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{}", 422),
        (b'{"runs": []}', 422),
        (b'{"runs": {}}', 422),
        (b'{"runs": [{"agent_id": "a"}], "more": 1}', 422),
        (b'{"runs": [' + b",".join([b'{"agent_id": "a"}'] * (BATCH_MOST + 1)) + b"]}", 422),
        (b'{"runs": [{"agent_id": "a", "input": "' + b"x" * (2 << 20) + b'"}]}', 413),
    ],
)
async def test_a_batch_is_bounded_in_count_and_bytes(system, client, body, status):
    refused = await client.post("/execute/batch", content=body)
    assert refused.status_code == status
    assert refused.headers["content-type"] == "application/problem+json"
    assert (await system.queue.depth()).depth == 0


async def test_what_one_queue_has_accepted_is_told_though_the_other_can_not_be_reached(
    system, api, fault_proxy, proxied_settings
):
    """Sent again without ids, what was accepted would run twice."""
    other = QueueSettings(name="other")
    sender = SenderSettings(max_retries=0)
    system.settings = msgspec.structs.replace(system.settings, queues={"other": other}, sender=sender)
    client = (await api(redis=proxied_settings)).client()
    runs = [{"agent_id": "echo"}, {"agent_id": "echo", "queue": "other"}]
    await sent(client, *runs)  # the scripts are known from here on
    for _ in range(5):
        fault_proxy.drop_replies("EVALSHA", after=1, times=2)
        answer = await client.post("/execute/batch", json={"runs": runs})
        fault_proxy.heal()
        if answer.status_code == 200:  # else a script of another part took the only turn
            break
    assert answer.status_code == 200, answer.text
    first, second = answer.json()["runs"]
    assert (first["code"], second["code"]) == (202, 503)
    assert second["problem"]["type"] == "urn:holdfast:problem:redis-unavailable"
    assert (await system.queue.get(first["run"]["run_id"])).queue == "agent-queue"


async def test_a_tenants_batch_is_its_own(api):
    running = await api(keys=(key_line("acme", "acme"), key_line("other", "other"), key_line("boss")))
    acme, other = running.client("acme"), running.client("other")
    mine = {"agent_id": "echo", "correlation_id": "a"}
    (item,) = await sent(acme, mine)
    assert item["code"] == 202
    taken, claimed = await sent(other, mine, {"agent_id": "echo", "tenant": "acme"})
    assert (taken["code"], claimed["code"]) == (409, 422)
    assert (await running.client("boss").get("/runs/a")).json()["tenant"] == "acme"


# -- traces

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    ("headers", "carried"),
    [
        ({"traceparent": PARENT}, {"traceparent": PARENT}),
        (
            {"traceparent": PARENT, "tracestate": "a=1,b=2"},
            {"traceparent": PARENT, "tracestate": "a=1,b=2"},
        ),
        ({"traceparent": PARENT, "tracestate": "a=" + "x" * 600}, {"traceparent": PARENT}),
        ({"traceparent": f"01{PARENT[2:]}-more"}, {"traceparent": f"01{PARENT[2:]}-more"}),
        ({"tracestate": "a=1"}, {}),
        ({"traceparent": "junk"}, {}),
        ({"traceparent": PARENT.upper()}, {}),
        ({"traceparent": f"{PARENT}-more"}, {}),
        ({"traceparent": f"ff{PARENT[2:]}"}, {}),
        ({"traceparent": f"00-{'0' * 32}-b7ad6b7169203331-01"}, {}),
        ({"traceparent": f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01"}, {}),
    ],
)
async def test_a_request_carries_its_trace_into_its_runs(system, client, headers, carried):
    one = await client.post("/execute", json={"agent_id": "echo", "correlation_id": "a"}, headers=headers)
    runs = {"runs": [{"agent_id": "echo", "correlation_id": "b"}]}
    many = await client.post("/execute/batch", json=runs, headers=headers)
    assert (one.status_code, many.status_code) == (202, 200)
    for run_id in ("a", "b"):
        message = await system.queue.redis.hget(system.queue.keys.run(run_id), "message")
        assert msgspec.json.decode(message).get("trace", {}) == carried


async def test_an_agents_span_is_a_child_of_the_requests(system, client):
    from opentelemetry.trace import get_current_span

    app, seen = App("tests"), list[str]()

    @app.agent
    async def echo(value):
        seen.append(f"{get_current_span().get_span_context().trace_id:032x}")

    await system.worker(app)
    body = {"agent_id": "echo", "correlation_id": "a"}
    await client.post("/execute", json=body, headers={"traceparent": PARENT})
    await system.ended("a")
    assert seen == [PARENT.split("-")[1]]


# -- what is nobody's business


async def test_only_operators_are_told_where_redis_is(api, fault_proxy, proxied_settings, log_lines):
    keys = (key_line("acme", "acme"), key_line("viewer", "*", "read+submit"), key_line("boss"))
    running = await api(redis=proxied_settings, keys=keys)
    fault_proxy.refuse()
    port = proxied_settings.url.rpartition(":")[2].partition("/")[0]
    candid: list[bool] = []
    for method, path, body in (
        ("POST", "/execute", {"agent_id": "echo"}),
        ("POST", "/execute/batch", {"runs": [{"agent_id": "echo"}]}),
        ("GET", "/runs", None),
        ("GET", "/runs/a/events", None),
    ):
        for key in ("acme", "viewer", "boss"):
            answer = await running.client(key).request(method, path, json=body)
            assert (answer.status_code, answer.headers["retry-after"].isdigit()) == (503, True)
            if key == "boss":
                candid.append(port in answer.text)
            else:
                assert port not in answer.text, (path, key)
                assert "127.0.0.1" not in answer.text, (path, key)
    assert any(port in str(line) for line in log_lines())
    assert any(candid)
    fault_proxy.heal()
