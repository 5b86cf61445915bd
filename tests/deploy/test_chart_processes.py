"""The chart's containers as processes: their commands start, their liveness does not depend on Redis, SIGTERM ends them well."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.deploy.charts import (
    FIELDS,
    ROOT,
    Manifest,
    of_kind,
    one,
    pod_specs,
    rendered,
    variable_value,
)
from tests.support.redis.valkey_process import free_port
from tests.support.waiting import until

PODS = [f"holdfast-{part}" for part in ("api", "worker-default", "scheduler", "janitor", "relay", "scaler")]
NEEDS = {"holdfast-scaler": "keda.profile=external-push", "holdfast-relay": "relay.enabled=true"}


class Started:
    """A container's command, with the container's environment, on ports that are free here."""

    def __init__(self, pod: str, manifests: list[Manifest], folder: Path) -> None:
        [container] = pod_specs(manifests)[pod]["containers"]
        self.container = container
        self.ports = {port["name"]: free_port() for port in container["ports"]}
        config = one(manifests, "ConfigMap", "holdfast")["data"]["holdfast.yaml"]
        (folder / "holdfast.yaml").write_text(config)
        secrets = of_kind(manifests, "Secret")[0]["stringData"]
        self.environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            **{each["name"]: variable_value(each, secrets) for each in container["env"]},
            **self._moved(),
            "HOLDFAST_CONFIG": str(folder / "holdfast.yaml"),
            "REDIS_URL": f"redis://127.0.0.1:{free_port()}/0",  # where nobody is
            "DATABASE_URL": "",
            "HOLDFAST_DATABASE_PATH": str(folder / "holdfast.sqlite"),
            "HOLDFAST_JANITOR_KUBERNETES": "false",  # there is no cluster here
        }
        command = [sys.executable, "-m", *container["command"]]
        self.log = (folder / "log").open("w")
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=self.environ, stdout=self.log, stderr=subprocess.STDOUT
        )

    def _moved(self) -> dict[str, str]:
        names = {"http": "HOLDFAST_API_PORT", "metrics": "METRICS_PORT", "grpc": "GRPC_PORT"}
        moved = {names[name]: str(port) for name, port in self.ports.items()}
        if "grpc" in self.ports:
            moved["HOLDFAST_SCALER_PORT"] = moved["GRPC_PORT"]
        return {**moved, "POD_IP": "127.0.0.1"}

    async def comes_to_pass(self, probe: str) -> None:
        """Wait until a probe passes, for as long as the kubelet would."""
        await until(lambda: self.passes(probe), seconds=90)

    async def passes(self, probe: str) -> bool:
        """Whether a probe of the container would pass now."""
        assert self.process.poll() is None, Path(self.log.name).read_text()
        asked = self.container[probe]
        if "grpc" in asked:
            return await self._serving(asked["grpc"].get("service", ""))
        url = f"http://127.0.0.1:{self.ports[asked['httpGet']['port']]}{asked['httpGet']['path']}"
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
                return (await client.get(url)).status_code == 200
        except httpx.HTTPError:
            return False

    async def _serving(self, service: str) -> bool:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.ports['grpc']}") as channel:
            try:
                answer = await health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(service=service), timeout=5
                )
            except grpc.RpcError:
                return False
            return answer.status == health_pb2.HealthCheckResponse.SERVING

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.log.close()


@pytest.fixture
def started(request, tmp_path) -> Iterator[Started]:
    pod = Started(request.param, rendered("trial", more=NEEDS.get(request.param, "")), tmp_path)
    yield pod
    pod.close()


@pytest.mark.parametrize("started", PODS, indirect=True)
async def test_a_process_lives_without_redis_and_leaves_when_told(started):
    await started.comes_to_pass("startupProbe")
    assert await started.passes("livenessProbe")
    started.process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(started.process.wait, 60)
    log = Path(started.log.name).read_text()
    assert started.process.returncode == 0, log
    assert "Traceback" not in log


@pytest.mark.parametrize("started", ["holdfast-worker-default"], indirect=True)
async def test_a_worker_is_not_ready_before_it_has_joined_its_queues(started):
    await started.comes_to_pass("livenessProbe")
    assert not await started.passes("readinessProbe")
    assert started.environ["WORKER_POD_NAME"] == FIELDS["metadata.name"]


@pytest.mark.parametrize("started", ["agent-host"], indirect=True)
async def test_a_host_that_waits_for_redis_lives_and_is_not_ready(started):
    """What it preloads it imports first, which may take long: only then the startup probe is answered."""
    probe = started.container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 600
    await started.comes_to_pass("startupProbe")
    assert await started.passes("livenessProbe")
    assert not await started.passes("readinessProbe")
    started.process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(started.process.wait, 60)
    assert started.process.returncode == 0, Path(started.log.name).read_text()
