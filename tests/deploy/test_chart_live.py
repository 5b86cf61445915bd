"""What KEDA is told to ask, asked for real: the api and the scaler, with the settings that the chart gives them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest

from holdfast.config import RedisSettings, Settings
from holdfast.redis.client import connect
from holdfast.scaling.trigger import read_trigger
from holdfast.services.api import ApiProcess
from tests.support.api.server import RunningApi
from tests.support.deploy.charts import Manifest, of_kind, one, pod_specs, rendered, settings_of
from tests.support.redis.valkey_process import ValkeyProcess


def told(manifests: list[Manifest], pod: str, folder: Path) -> Settings:
    [container] = pod_specs(manifests)[pod]["containers"]
    return settings_of(manifests, container, folder).settings


@pytest.fixture
async def api(redis_settings, redis, tmp_path):
    """The api of the chart, on the Redis of the tests, with a port of its own and no database."""
    settings = told(rendered("trial", "metrics-api"), "holdfast-api", tmp_path)
    here = msgspec.structs.replace(
        settings,
        redis=redis_settings,
        database=msgspec.structs.replace(settings.database, url="", path=str(tmp_path / "x.sqlite")),
        metrics=msgspec.structs.replace(settings.metrics, port=0),
        api=msgspec.structs.replace(settings.api, host="127.0.0.1", port=0, linger_seconds=0.0),
    )
    running = await RunningApi(ApiProcess(here)).ready()
    yield running
    await running.close()


async def test_the_api_answers_what_the_metrics_api_trigger_asks(api):
    manifests = rendered("trial", "metrics-api")
    [scaled] = of_kind(manifests, "ScaledObject")
    [trigger] = scaled["spec"]["triggers"]
    secret = one(manifests, "Secret", "holdfast")["stringData"]
    [shown] = of_kind(manifests, "TriggerAuthentication")
    token = secret[shown["spec"]["secretTargetRef"][0]["key"]]
    path = urlsplit(trigger["metadata"]["url"]).path
    async with httpx.AsyncClient(base_url=api.url, trust_env=False, timeout=30) as client:
        answer = await client.get(path, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 200, answer.text
        assert answer.json()[trigger["metadata"]["valueLocation"]] == 0
        assert answer.json()["slots"] == int(trigger["metadata"]["targetValue"])
        assert (await client.get(path)).status_code == 401
        assert (await client.get("/healthz")).status_code == (await client.get("/readyz")).status_code == 200


def test_the_scaler_understands_every_trigger_that_the_chart_writes(tmp_path):
    manifests = rendered("production", "external-push")
    settings = told(manifests, "holdfast-scaler", tmp_path)
    known = {
        name: SimpleNamespace(name=name, settings=settings.queue_named(name))
        for name in settings.queue_names()
    }
    asked: list[str] = []
    for scaled in of_kind(manifests, "ScaledObject"):
        for trigger in scaled["spec"]["triggers"]:
            read = read_trigger(trigger["metadata"], known)
            assert read.slots == known[read.names[0]].settings.slots
            asked += read.names
    assert sorted(asked) == ["agent-queue", "browser:jobs", "tankpit:jobs"]
    assert (settings.scaler.host, settings.scaler.port) == ("0.0.0.0", 9800)


class Guarded(ValkeyProcess):
    """A server that is up when it asks for its password."""

    def wait_until_up(self) -> None:
        self.wait_for("PING", "-NOAUTH")


async def test_the_trial_redis_starts_with_what_it_is_told(tmp_path):
    """A real server takes the arguments, asks for the password, and neither forgets nor evicts."""
    manifests = rendered("trial")
    words = pod_specs(manifests)["holdfast-redis"]["containers"][0]["args"]
    password = one(manifests, "Secret", "holdfast")["stringData"]["redis-password"]
    given = [word.replace("$(REDIS_PASSWORD)", password).replace("/data", str(tmp_path)) for word in words]
    server = Guarded(tmp_path, *given).start()
    client = connect(RedisSettings(url=server.tcp_url, password=password))
    try:
        kept = await client.config_get("append*", "maxmemory*")
        assert (kept["appendonly"], kept["appendfsync"]) == ("yes", "everysec")
        assert (kept["maxmemory"], kept["maxmemory-policy"]) == (str(768 * 1024 * 1024), "noeviction")
    finally:
        await client.aclose()
        server.kill()
