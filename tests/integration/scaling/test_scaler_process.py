"""``holdfast scaler`` as a process: its command, its settings, TLS, a cluster, and what it says when it can't start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import grpc
import msgspec
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from holdfast.config import QueueSettings, RedisSettings
from holdfast.config.scaler import ScalerSettings
from holdfast.errors import ConfigError
from holdfast.redis.client import Redis, connect
from holdfast.scaling.proto.externalscaler_pb2_grpc import ExternalScalerStub
from holdfast.scaling.server import ScalerServer
from tests.support.processes import forked
from tests.support.redis.valkey_process import ValkeyProcess, free_port
from tests.support.scaling.scalers import (
    OTHER,
    QUEUE,
    Caller,
    calling,
    children,
    heard,
    queue_of,
    ref,
    serving,
    settings_of,
    submit,
)
from tests.support.waiting import until

HERE = Path(__file__).parents[2] / "certificates"
CA, CERTIFICATE, KEY = (str(HERE / name) for name in ("ca.pem", "server.pem", "server.key"))
OTHER_KEY = str(HERE / "other.key")


@pytest.fixture
def environ(redis_url: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    # A member that has no CPU for three beats is none: here nobody waits for one that is silent.
    patient = {"HEARTBEAT_INTERVAL": "10", "HOLDFAST_SCALER_ANSWER_SECONDS": "30"}
    return kept | patient | {"REDIS_URL": redis_url, "HOLDFAST_SCALER_PORT": "0"}


def holdfast(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def scaler(
    redis: Redis, environ: dict[str, str], tmp_path: Path
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The real command, and the port that it listens on."""
    command = [sys.executable, "-m", "holdfast", "scaler", "--json"]
    with forked.Popen(command, env=environ, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stderr is not None
        ready = next((line for line in process.stderr if "scaler ready" in line), "")
        assert ready, "it ended before it was ready"
        yield process, json.loads(ready)["port"]
        process.kill()


async def test_the_command_answers_and_is_a_member_until_it_is_told_to_stop(scaler, redis: Redis, environ):
    process, port = scaler
    caller = Caller(port)
    await submit(redis, 2)
    assert (await caller.value()).metricValue == 2
    found = await until(lambda: redis.keys("member:scaler:*"))
    told = await redis.hgetall(found[0])
    assert (told[b"pid"], told[b"queues"]) == (str(process.pid).encode(), b"agent-queue")
    listed = await asyncio.to_thread(holdfast, environ, "members", "--json")
    assert [member["kind"] for member in json.loads(listed.stdout)["members"]] == ["scaler"]
    await caller.channel.close()
    process.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(process.wait, 30) == 0
    assert not await redis.exists(found[0])


def test_a_port_that_is_taken_is_named(environ):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = holdfast(environ | {"HOLDFAST_SCALER_PORT": str(port)}, "scaler")
    assert said.returncode == 1
    assert f"no gRPC server can listen on 127.0.0.1:{port}" in said.stderr
    assert "HOLDFAST_SCALER_PORT" in said.stderr


def test_without_grpc_the_extra_is_named(environ, tmp_path: Path):
    (tmp_path / "grpc.py").write_text("raise ModuleNotFoundError(\"No module named 'grpc'\", name='grpc')")
    said = holdfast(environ | {"PYTHONPATH": str(tmp_path)}, "scaler")
    assert said.returncode == 1
    assert "the scaler needs grpc, which is not installed: pip install 'holdfast[scaler]'" in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HOLDFAST_SCALER_PORT", "70000"),
        ("HOLDFAST_SCALER_HOST", "two words"),
        ("HOLDFAST_SCALER_POLL_SECONDS", "0"),
    ],
)
def test_a_wrong_setting_is_named(environ, variable: str, value: str):
    said = holdfast(environ | {variable: value}, "scaler")
    assert said.returncode == 1
    assert variable in said.stderr


def test_wrong_words_are_named(environ):
    said = holdfast(environ, "scaler", "now")
    assert (said.returncode, "now" in said.stderr) == (2, True)


async def test_probes_over_http_and_over_grpc_hear_that_it_leaves(redis_settings: RedisSettings):
    """A call that is being answered keeps it here, so that it can be seen leaving."""
    port = free_port()
    environ = {"METRICS_PORT": str(port)}

    def ready() -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=20) as answer:
                return answer.status
        except urllib.error.HTTPError as exc:
            return exc.code
        except OSError:  # it is gone already
            return 503

    async with children(settings_of(redis_settings), "one", **environ) as (child,):
        assert await asyncio.to_thread(ready) == 200
        caller = Caller(child.port)
        stub = health_pb2_grpc.HealthStub(caller.channel)
        watching = stub.Watch(health_pb2.HealthCheckRequest(service="externalscaler.ExternalScaler"))
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        child.terminate()
        said = (await asyncio.wait_for(watching.read(), 30)).status
        assert said == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await asyncio.to_thread(ready) == 503
        watching.cancel()
        assert await child.exited() == 0
        await caller.channel.close()


# -- TLS, as KEDA has it: its own certificate if the scaler asks for one


async def secure(port: int, *, certificate: bool) -> bool:
    parts = [Path(path).read_bytes() for path in (CA, *((KEY, CERTIFICATE) if certificate else ()))]
    options = [("grpc.use_local_subchannel_pool", 1)]
    credentials = grpc.ssl_channel_credentials(*parts)
    async with aio.secure_channel(f"localhost:{port}", credentials, options=options) as channel:
        return (await ExternalScalerStub(channel).IsActive(ref(), timeout=20)).result


async def test_keda_calls_over_tls_and_shows_a_certificate_if_it_is_asked(
    redis: Redis, redis_settings: RedisSettings
):
    await submit(redis)
    one_way = {"tls_certificate": CERTIFICATE, "tls_key": KEY}
    async with serving(settings_of(redis_settings, **one_way)) as service:
        assert await secure(service.port, certificate=False) is True
        plain = Caller(service.port)
        with pytest.raises(aio.AioRpcError):
            await plain.active()
        await plain.channel.close()
    async with serving(settings_of(redis_settings, **one_way, tls_ca=CA)) as service:
        assert await secure(service.port, certificate=True) is True
        with pytest.raises(aio.AioRpcError):
            await secure(service.port, certificate=False)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"tls_certificate": CERTIFICATE}, "scaler.tls_key is not: TLS needs both"),
        (
            {"tls_certificate": "/nowhere", "tls_key": KEY},
            "scaler.tls_certificate = '/nowhere' can't be read",
        ),
        ({"tls_certificate": CERTIFICATE, "tls_key": OTHER_KEY}, "scaler.tls_key = "),
        ({"tls_certificate": CERTIFICATE, "tls_key": KEY, "tls_ca": __file__}, "scaler.tls_ca = "),
    ],
)
async def test_a_wrong_file_is_named_at_the_start(files: dict[str, str], words: str):
    with pytest.raises(ConfigError) as caught:
        ScalerServer(ScalerSettings(port=0, **files))
    assert words in str(caught.value)


# -- a cluster


@pytest.fixture
def cluster(start_valkey) -> list[ValkeyProcess]:
    nodes: list[ValkeyProcess] = []
    shares = ((0, 5460), (5461, 10922), (10923, 16383))
    for first, last in shares:
        bus = free_port()
        node = start_valkey("--cluster-enabled", "yes", "--cluster-port", str(bus), append_only=False)
        node.ask(f"CLUSTER ADDSLOTSRANGE {first} {last}")
        if nodes:
            nodes[0].ask(f"CLUSTER MEET 127.0.0.1 {node.port} {bus}")
        nodes.append(node)
    for node in nodes:
        node.wait_for("CLUSTER INFO", "cluster_state:ok")
        node.wait_for("CLUSTER INFO", "cluster_known_nodes:3")
    return nodes


async def test_queues_and_partitions_on_different_nodes_wake_their_streams(cluster: list[ValkeyProcess]):
    where = RedisSettings(url=f"redis+cluster://127.0.0.1:{cluster[0].port}")
    settings = settings_of(where, poll_seconds=3600.0)
    spread = msgspec.structs.replace(settings, queue=QueueSettings(name=QUEUE, partitions=4))
    client = connect(where)
    async with calling(spread) as caller:
        mine, other = caller.stream(), caller.stream(f"{OTHER},{QUEUE}", slots="3")
        assert (await heard(mine), await heard(other)) == (False, False)
        queue = queue_of(client, partitions=4)
        await client.execute_command("XADD", queue.partitions[3].keys.stream, "*", "message_data", "{}")
        assert (await heard(mine), await heard(other)) == (True, True)
        assert (await caller.value()).metricValue == 1
        third = caller.stream(OTHER)
        assert await heard(third) is False
        await submit(client, name=OTHER)
        assert await heard(third) is True
        assert (await caller.value(f"{OTHER},{QUEUE}", slots="3")).metricValue == 2
    await client.aclose()
