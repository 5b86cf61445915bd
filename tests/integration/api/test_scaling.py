"""What KEDA's metrics-api trigger is told over HTTP."""

from __future__ import annotations

import msgspec

from tests.support.api.server import key_line
from tests.support.waiting import until


async def test_it_is_told_how_many_workers_a_queue_is_worth(client, system):
    for _ in range(7):
        await system.submit("echo")
    answer = await client.get("/internal/scaling/agent-queue")
    assert answer.status_code == 200, answer.text
    told = answer.json()
    assert (told["depth"], told["undelivered"], told["in_flight"], told["due"]) == (7, 7, 0, 0)
    assert (told["queue"], told["slots"], told["wanted"]) == ("agent-queue", 3, 3)


async def test_a_wrong_name_is_not_found_and_the_names_are_told(client):
    answer = await client.get("/internal/scaling/agent-quote")
    assert answer.status_code == 404
    assert "did you mean 'agent-queue'? There are agent-queue" in answer.json()["detail"]


async def test_a_redis_that_is_away_is_a_503_never_zero(api, proxied_settings, fault_proxy):
    running = await api(redis=proxied_settings)
    client = running.client()
    assert (await client.get("/internal/scaling/agent-queue")).json()["depth"] == 0
    fault_proxy.refuse()
    answer = await client.get("/internal/scaling/agent-queue")
    assert answer.status_code == 503
    assert "depth" not in answer.json()


async def test_a_redis_that_hangs_is_a_503_before_keda_gives_up(api, system, proxied_settings, fault_proxy):
    """Fails if it waits for the socket's timeout: KEDA would see a timeout of the api instead."""
    patient = msgspec.structs.replace(proxied_settings, socket_timeout_seconds=30.0)
    scaler = msgspec.structs.replace(system.settings.scaler, answer_seconds=0.3)
    system.settings = msgspec.structs.replace(system.settings, scaler=scaler)
    client = (await api(redis=patient)).client()
    # A busy machine may need longer than that for an answer, but not always.
    await until(lambda: client.get("/internal/scaling/agent-queue"), lambda answer: answer.status_code == 200)
    fault_proxy.stall()
    answer = await client.get("/internal/scaling/agent-queue")
    assert answer.status_code == 503
    assert "depth" not in answer.json()
    fault_proxy.heal()


async def test_a_key_of_one_tenant_is_refused(api):
    running = await api(keys=(key_line("acme", "acme", "read"),))
    answer = await running.client(key="acme").get("/internal/scaling/agent-queue")
    assert answer.status_code == 403
