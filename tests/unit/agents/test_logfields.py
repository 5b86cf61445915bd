"""Which fields of an input are put on log lines, and which can't be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import App
from holdfast.agents.logfields import checked_log_fields, read_log_fields
from holdfast.errors import AppError

FIELDS = checked_log_fields("a", ["job_id", "metadata.trace_id", "size", "force"])
JOB = {"job_id": "j1", "metadata": {"trace_id": "ab", "source": "x"}, "size": 1.5, "force": False, "more": 1}
READ = {"job_id": "j1", "trace_id": "ab", "size": 1.5, "force": False}


@pytest.mark.parametrize(
    "payload", [JOB, {**JOB, "metadata": json.dumps(JOB["metadata"])}], ids=["json", "flat"]
)
def test_the_declared_fields_are_read_also_from_an_object_that_is_written_as_text(payload):
    assert read_log_fields(FIELDS, payload) == READ


@pytest.mark.parametrize(
    "payload",
    [
        None,
        7,
        "text",
        [JOB],
        {},
        {"job_id": None, "metadata": None},
        {"job_id": ["j1"], "size": {"x": 1}, "metadata": []},
        {"metadata": "{broken"},
        {"metadata": "[1]"},
        {"metadata": '{"trace_id": "\ud800"}'},
        {"metadata": '{"x":' * 5000},
        {"metadata": json.dumps({"trace_id": "ab", "x": "y" * 10_000})},
    ],
)
def test_what_an_input_does_not_have_as_a_plain_value_is_left_out(payload):
    assert read_log_fields(FIELDS, payload) == {}


def test_a_long_text_is_cut():
    assert read_log_fields(FIELDS, {"job_id": "x" * 5000}) == {"job_id": "x" * 200}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("job_id", "a list of names"),
        ([7], "a list of names"),
        ([""], "is not the name of a field"),
        (["a..b"], "is not the name of a field"),
        (["run_id"], "'run_id' is on every line already"),
        (["x.agent"], "'agent' is on every line already"),
        (["a.id", "b.id"], "'id' is the name of two of them"),
    ],
)
def test_what_can_be_no_field_is_an_error_of_the_app(fields: Any, said: str):
    with pytest.raises(AppError, match=said):
        App("test").register("a", lambda payload: payload, log_fields=fields)
