"""The description of the API: complete, with examples that hold; and no input, right or wrong, ends in a 5xx."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import jsonschema_rs
import pytest
import redis as redis_py
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES = 30


@pytest.fixture(scope="module")
def address(valkey_server, tmp_path_factory) -> Iterator[str]:
    """A real api process on a queue of its own."""
    place: Path = tmp_path_factory.mktemp("api")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environ |= {"REDIS_URL": valkey_server.url, "MESSAGING_QUEUE_NAME": "described-queue"}
    with redis_py.Redis.from_url(valkey_server.url) as client:  # as a worker would
        client.xgroup_create("described-queue", "described-queue-group", "0", mkstream=True)
    command = [sys.executable, "-m", "holdfast", "api", "--port", "0", "--json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=place, env=environ) as child:
        assert child.stderr is not None
        said = next(line for line in child.stderr if "api ready" in line)
        try:
            yield f"http://127.0.0.1:{json.loads(said)['port']}"
        finally:
            child.terminate()
            child.stderr.read()


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


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_input_makes_the_api_fail(address, document, mode):
    schema = schemathesis.openapi.from_dict(document)
    asked = 0
    with requests.Session() as session, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hypothesis has opinions on strategies that schemathesis makes
        for found in schema.get_all_operations():
            operation = found.ok()
            if mode is GenerationMode.NEGATIVE and not _has_input(operation):
                continue

            @given(case=operation.as_strategy(generation_mode=mode))
            @settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            def ask(case):
                nonlocal asked
                asked += 1
                _hurry(case)
                case.call_and_validate(base_url=address, session=session, checks=CHECKS, timeout=30)

            try:
                ask()
            except Unsatisfiable:  # every input of these kinds is allowed
                assert mode is GenerationMode.NEGATIVE
    assert asked > 100


def _hurry(case) -> None:
    """A run that was made by chance never ends here: don't wait for it."""
    if case.path.endswith("/events"):
        case.query = {**(case.query or {}), "follow": "false"}
    if "wait" in (case.query or {}):
        case.query = {**case.query, "wait": "0.01"}


def _has_input(operation) -> bool:
    return bool(operation.body or operation.path_parameters or operation.query or operation.headers)
