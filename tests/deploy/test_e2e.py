"""The end-to-end check of CI, tried here: a real API and real workers, and a kubectl that is ours."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from holdfast import App, GiveUp
from holdfast.agents.loader import load_app
from holdfast.config import ApiSettings
from holdfast.services.api import ApiProcess
from tests.support.api.server import RunningApi, key_line
from tests.support.deploy.charts import helm, parsed
from tests.support.runs.system import System

ROOT = Path(__file__).parents[2]
SCRIPT, VALUES = ROOT / "deploy" / "e2e" / "run.py", ROOT / "deploy" / "e2e" / "values.yaml"
KUBECTL = """
import json, pathlib, sys, time
state, words = pathlib.Path({state!r}), sys.argv[3:]
replicas = int((state / "replicas").read_text())
if words[:2] == ["get", "deployment"]:
    print(replicas)
elif words[:2] == ["get", "pods"]:
    ready = {{"conditions": [{{"type": "Ready", "status": "True"}}]}}
    print(json.dumps({{"items": [{{"metadata": {{"name": f"pod-{{n}}"}}, "status": ready}} for n in range(replicas)]}}))
elif words[0] == "port-forward":
    print("Forwarding from 127.0.0.1:{port} -> 80", flush=True)
    time.sleep(600)
elif words[:2] == ["delete", "pod"]:
    (state / "killed").write_text(words[2])
else:
    sys.exit(f"what is {{words}}?")
"""


class Keda:
    """Two workers while there is work, none else; one that is killed does not come back."""

    app: App

    def __init__(self, system: System, state: Path, *, most: int) -> None:
        self.system, self.state, self.most = system, state, most
        self.workers: list[Any] = []
        self.has_killed = asyncio.Event()
        self.tell(0)

    def tell(self, replicas: int) -> None:
        new = self.state / "new"
        new.write_text(str(replicas))
        new.replace(self.state / "replicas")

    async def run(self) -> None:
        while True:
            wanted = self.most if (await self.system.queue.depth()).depth else 0
            for _ in range(wanted - len(self.workers)):
                self.workers.append(await self.system.worker(self.app))
            self.tell(wanted)
            if (self.state / "killed").exists():
                (self.state / "killed").unlink()
                await self.workers[0].vanish()
                self.has_killed.set()
            await asyncio.sleep(0.05)


@pytest.fixture
async def system(redis, redis_settings) -> AsyncIterator[System]:
    async with System(redis_settings, slots=3) as system:
        yield system


def patient_app(has_killed: asyncio.Event, *, gives_up: bool = False) -> App:
    """An agent that goes on until a worker was killed: the check sees it run, however slow this machine is."""
    app = App("patient")

    @app.agent
    async def research(question: dict[str, Any]) -> dict[str, Any]:
        assert question == {"sources": 10, "seconds_each": 0.1}
        await has_killed.wait()
        if gives_up:
            raise GiveUp("no")
        return question

    return app


async def checked(
    system: System, tmp_path: Path, *, most: int = 2, patience: int = 60, gives_up: bool = False
) -> tuple[int, str]:
    """Run the script against all that; return its exit code and what it said."""
    keda = Keda(system, tmp_path, most=most)
    keda.app = patient_app(keda.has_killed, gives_up=gives_up)
    serving = ApiSettings(port=0, linger_seconds=0.0, keys=(key_line("e2e"),))
    api = await RunningApi(
        ApiProcess(msgspec.structs.replace(system.settings, api=serving), keda.app)
    ).ready()
    scaling = asyncio.create_task(keda.run())
    kubectl = tmp_path / "kubectl"
    program = KUBECTL.format(state=str(tmp_path), port=api.process.port)
    # Through a shell: the first line of a script takes no path with a space in it.
    kubectl.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(program)} "$@"\n')
    kubectl.chmod(0o755)
    words = ["--key", "e2e-secret", "--runs", "12", "--seconds-each", "1", "--patience", str(patience)]
    path = f"{tmp_path}:{os.environ['PATH']}"
    try:
        script = await asyncio.create_subprocess_exec(
            sys.executable,
            "-B",
            str(SCRIPT),
            *words,
            env={**os.environ, "PATH": path},
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await script.communicate()
    finally:
        keda.has_killed.set()
        scaling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await scaling
        await api.close()
    return script.returncode or 0, said.decode()


async def test_it_tells_the_whole_story_of_a_system_that_is_well(system, tmp_path):
    code, said = await checked(system, tmp_path)
    assert code == 0, said
    story = [
        "there is no worker",
        "12 runs submitted",
        "killing pod-0",
        "all 12 runs succeeded",
        "no worker again",
    ]
    assert [line for line in story if line not in said] == []


async def test_it_fails_when_a_run_does_not_succeed(system, tmp_path):
    code, said = await checked(system, tmp_path, gives_up=True)
    assert code == 1
    assert "runs that did not succeed" in said


async def test_it_fails_when_nobody_scales(system, tmp_path):
    code, said = await checked(system, tmp_path, most=0, patience=2)
    assert code == 1
    assert "KEDA wants workers: not within 2 s" in said


def test_the_agent_that_it_asks_for_is_in_the_app_that_is_deployed():
    assert "research" in load_app(str(ROOT / "examples/support_desk.py")).agents
    assert yaml.safe_load(VALUES.read_text())["app"] == "examples/support_desk.py:app"


def test_its_values_are_ones_that_the_chart_takes_and_name_what_it_asks_for():
    done = helm("--values", str(VALUES))
    assert done.returncode == 0, done.stderr
    manifests = parsed(done.stdout)
    named = {(each["kind"], each["metadata"]["name"]) for each in manifests}
    assert {("Deployment", "holdfast-worker-default"), ("Service", "holdfast-api")} <= named
    (scaled,) = [each["spec"] for each in manifests if each["kind"] == "ScaledObject"]
    assert scaled["scaleTargetRef"]["name"] == "holdfast-worker-default"
    assert scaled["minReplicaCount"] == 0
    (service,) = [
        each for each in manifests if (each["kind"], each["metadata"]["name"]) == ("Service", "holdfast-api")
    ]
    assert 80 in [port["port"] for port in service["spec"]["ports"]]
    assert json.dumps(manifests).count("holdfast:e2e") >= 3
