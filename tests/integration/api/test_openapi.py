"""The description of the API: complete, with examples that hold; and no input, right or wrong, ends in a 5xx."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import jsonschema_rs
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import randoms
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

from holdfast.config import DatabaseSettings, RedisSettings
from holdfast.redis.embedded import EmbeddedServer
from holdfast.redis.members import Member, Members
from tests.support.processes import forked
from tests.support.runs.sample_runs import EACH, Seeds, seed
from tests.support.runs.system import System

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES = {GenerationMode.POSITIVE: 25, GenerationMode.NEGATIVE: 10}


QUEUE = "described-queue"
AGENT = "described-agent"
HOST = "described-host"
RESIDENTS = str(Path(__file__).parents[1] / "hosts" / "residents.py") + ":app"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def redis_url_of_module() -> Iterator[str]:
    """A server of these tests' own: what they prepare must outlive one test, and start from nothing."""
    with tempfile.TemporaryDirectory(prefix="hf") as path:
        server = EmbeddedServer(path, append_only=False, port=0)
        server.start_sync()
        yield server.url
        server.stop_sync()


@pytest.fixture(scope="module")
def seeds(redis_url_of_module: str, place: Path) -> Seeds:
    """Runs in every state, on a queue of their own."""

    async def sow() -> Seeds:
        database = DatabaseSettings(path=str(place / "seeds.sqlite"))
        redis = RedisSettings(url=redis_url_of_module)
        queue = {"name": QUEUE, "group": f"{QUEUE}-group", "slots": EACH}
        async with System(redis, ttl=30.0, database=database, **queue) as system:
            worker = Member("worker", "described-worker", {"queues": QUEUE, "agents": AGENT})
            await Members(prefix="", heartbeat_seconds=3600).announce(system.queue.redis, worker)
            return await seed(system)

    return asyncio.run(sow())


@pytest.fixture(scope="module")
def environ(redis_url_of_module: str, place: Path) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environ |= {"REDIS_URL": redis_url_of_module, "MESSAGING_QUEUE_NAME": QUEUE}
    # A janitor would bring the runs of the worker that vanished back to the queue.
    environ |= {"HOLDFAST_DATABASE_PATH": str(place / "seeds.sqlite"), "HOLDFAST_API_JANITOR": "false"}
    return environ | {"GRPC_PORT": "0", "HOLDFAST_HOSTS_NAME": HOST, "MAX_PROCESSES": "1000"}


@pytest.fixture(scope="module")
def host(environ: dict[str, str], place: Path) -> Iterator[None]:
    """A real host, for the agents that are asked for."""
    with serving(environ, place, "host", "--app", RESIDENTS, "--json"):
        yield


@pytest.fixture(scope="module")
def address(environ: dict[str, str], place: Path, seeds: Seeds, host: None) -> Iterator[str]:
    """A real api process on that queue."""
    with serving(environ, place, "api", "--port", "0", "--json") as said:
        yield f"http://127.0.0.1:{json.loads(said)['port']}"


@contextlib.contextmanager
def serving(environ: dict[str, str], place: Path, *command: str) -> Iterator[str]:
    """Run a service until it is not needed any more; gives what it said when it was ready."""
    whole = [sys.executable, "-m", "holdfast", *command]
    with forked.Popen(whole, stderr=subprocess.PIPE, text=True, cwd=place, env=environ) as child:
        assert child.stderr is not None
        said = next(line for line in child.stderr if f"{command[0]} ready" in line)
        # A process whose log nobody reads stands still when the pipe is full.
        reading = threading.Thread(target=child.stderr.read)
        reading.start()
        try:
            yield said
        finally:
            child.terminate()
            reading.join()


@pytest.fixture(scope="module")
def document(address: str):
    with requests.Session() as session:
        return session.get(f"{address}/openapi.json", timeout=20).json()


def operations(document):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_every_operation_is_described_with_examples(document):
    for name, operation in operations(document):
        assert operation["summary"], name
        assert operation["tags"], name
        for status, answer in operation["responses"].items():
            assert answer["description"], (name, status)
            for kind, content in answer.get("content", {}).items():
                if kind.endswith("json"):
                    assert "example" in content, (name, status)
        if "requestBody" in operation:
            assert operation["requestBody"]["content"]["application/json"]["examples"], name
        codes = set(operation["responses"])
        if name.split()[1] not in {"/healthz", "/readyz"}:
            assert {"401", "403"} <= codes, name


def test_every_example_fits_its_schema(document):
    def check(schema, example):
        whole = {**schema, "components": document["components"]}
        jsonschema_rs.Draft202012Validator(whole).validate(example)

    count = 0
    for _, operation in operations(document):
        for answer in operation["responses"].values():
            for content in answer.get("content", {}).values():
                if "example" in content and "$ref" in content["schema"]:
                    check(content["schema"], content["example"])
                    count += 1
        body = operation.get("requestBody", {"content": {}})["content"]
        for content in body.values():
            for example in content["examples"].values():
                check(content["schema"], example["value"])
                count += 1
    assert count > 50


@pytest.mark.timeout(300)  # some of it starts, moves and stops processes
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_input_makes_the_api_fail(address, document, seeds, mode):
    schema = schemathesis.openapi.from_dict(document)
    asked, reached = 0, dict[str, set[int]]()
    with requests.Session() as session, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hypothesis has opinions on strategies that schemathesis makes
        known = Known(seeds, address, session)
        for found in schema.get_all_operations():
            operation = found.ok()
            if mode is GenerationMode.NEGATIVE and not _has_input(operation):
                continue

            @given(case=operation.as_strategy(generation_mode=mode), random=randoms(use_true_random=False))
            @settings(
                max_examples=8 if operation.path.startswith("/residents") else EXAMPLES[mode],
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def ask(case, random):
                nonlocal asked
                asked += 1
                known.put_into(case, random)
                _hurry(case)
                answer = case.call_and_validate(base_url=address, session=session, checks=CHECKS, timeout=90)
                reached.setdefault(case.operation.label, set()).add(answer.status_code)

            try:
                ask()
            except Unsatisfiable:  # every input of these kinds is allowed
                assert mode is GenerationMode.NEGATIVE
    assert asked > 100
    if mode is GenerationMode.POSITIVE:
        ours = {label: codes for label, codes in reached.items() if "/schedules" not in label}
        missed = [label for label, codes in ours.items() if not any(200 <= code < 300 for code in codes)]
        assert not missed, "only errors were reached"
        assert reached["GET /runs/{run_id}/result"] >= {200, 202, 404}
        assert reached["GET /runs/{run_id}/events"] >= {200, 410}
        assert reached["POST /runs/{run_id}/retry"] >= {202, 409}
        assert reached["POST /residents"] >= {201}
        assert reached["POST /residents/{resident_id}/messages"] >= {202, 404}


class Known:
    """What there is, put into most cases instead of names made up by chance, which nothing has."""

    FITTING: ClassVar = {
        "resume": ["interrupted"],
        "cancel": ["queued", "delayed", "running"],
        "retry": ["failed", "cancelled"],
        "events": ["succeeded", "archived"],
    }

    def __init__(self, seeds: Seeds, address: str, session: requests.Session) -> None:
        self._seeds = seeds
        self._address = address
        self._session = session
        self._made = 0
        self._clerk = ""
        self._cursors = {
            path: session.get(f"{address}{path}", params={"limit": 1}, timeout=20).json()["cursor"]
            for path in ("/runs", "/deadletters")
        }

    def put_into(self, case, random) -> None:
        if random.random() < 0.2:
            return
        parameters = case.path_parameters or {}
        for name, known in (("run_id", self._run), ("ref", self._letter), ("name", lambda *_: QUEUE)):
            if name in parameters and not case.path.startswith(("/schedules", "/hosts")):
                parameters[name] = known(case, random)
        if case.path.startswith("/hosts") and "name" in parameters:
            parameters["name"] = HOST
        if case.path.startswith("/agents") and "name" in parameters:
            parameters["name"] = AGENT
        if case.path.startswith("/residents"):
            self._put_resident(case, parameters)
        if "queue" in (case.query or {}):
            case.query["queue"] = random.choice([QUEUE, ""])
        if case.path in self._cursors and random.random() < 0.5:
            case.query = {**(case.query or {}), "cursor": self._cursors[case.path]}
            case.query.pop("queue", None)
        if isinstance(case.body, dict) and "queue" in case.body:
            case.body["queue"] = QUEUE

    def _put_resident(self, case, parameters) -> None:
        if "resident_id" in parameters:
            parameters["resident_id"] = self._resident(fresh=case.method == "DELETE")
        if case.method == "POST" and isinstance(case.body, dict):
            if case.path == "/residents" and "resident" in case.body:
                case.body |= {"resident": "Clerk", "input": "hello", "needs": {}}
            if case.path.endswith("/move") and "host" in case.body:
                case.body["host"] = HOST

    def _resident(self, *, fresh: bool) -> str:
        """A resident that lives; one of its own for who would stop it."""
        if self._clerk and not fresh:
            return self._clerk
        self._made += fresh
        resident_id = f"described/{self._made if fresh else 'clerk'}"
        wanted = {"id": resident_id, "resident": "Clerk"}
        answer = self._session.post(f"{self._address}/residents", json=wanted, timeout=60)
        assert answer.ok, answer.text
        if not fresh:
            self._clerk = resident_id
        return resident_id

    def _run(self, case, random) -> str:
        fitting = self.FITTING.get(case.path.rpartition("/")[2], [])
        states = fitting if fitting and random.random() < 0.7 else list(self._seeds.runs)
        return random.choice(self._seeds.runs[random.choice(states)])

    def _letter(self, case, random) -> str:
        return random.choice(self._seeds.dropped if case.method == "DELETE" else self._seeds.replayed)


def _hurry(case) -> None:
    """A run that does not end here is not waited for, and a host that there is not is not asked for."""
    if case.path.endswith("/events"):
        case.query = {**(case.query or {}), "follow": "false"}
    if "wait" in (case.query or {}):
        case.query = {**case.query, "wait": "0.01"}
    if case.path == "/residents" and isinstance(case.body, dict) and isinstance(case.body.get("needs"), dict):
        case.body["needs"].pop("near", None)


def _has_input(operation) -> bool:
    return bool(operation.body or operation.path_parameters or operation.query or operation.headers)
