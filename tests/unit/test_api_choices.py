"""What a caller is told of a word that a body may not have there."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from holdfast.api.choices import told
from holdfast.api.shapes import BatchRequest, ExecuteRequest, ResumeRequest
from holdfast.views.schedule_options import ScheduleRequest


class Speed(Enum):
    SLOW = "slow"
    FAST = "fast"


class Part(msgspec.Struct):
    speed: Annotated[Speed | None, Meta(description="how fast")] = None
    way: Literal["in", "out"] = msgspec.field(default="in", name="theWay")


class Whole(msgspec.Struct):
    one: Part | None = None
    many: list[Part] = []
    named: dict[str, list[Part]] = {}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"one": {"speed": "quick"}}', "one.speed: 'quick' is not one of slow, fast"),
        (b'{"many": [{}, {"theWay": "up"}]}', "many[1].theWay: 'up' is not one of in, out"),
        (b'{"named": {"a.b": [{"theWay": "up"}]}}', "named[...][0].theWay: 'up' is not one of in, out"),
        (b'{"one": 7}', "Expected `object | null`, got `int` - at `$.one`"),
    ],
)
def test_a_wrong_word_is_told_with_its_place_and_those_that_are_allowed(body: bytes, said: str):
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(body, type=Whole)
    assert told(str(refused.value), Whole) == said


def test_a_long_word_is_cut():
    said = told(f"Invalid enum value '{'x' * 500}' - at `$.one.speed`", Whole)
    assert len(said) < 130


@pytest.mark.parametrize(
    ("shape", "body", "said"),
    [
        (ExecuteRequest, b'{"agent_id": "a", "delay": 5}', "`delay`: did you mean `delay_seconds`?"),
        (ExecuteRequest, b'{"agent_id": "a", "timeout": 5}', "`timeout`: did you mean `timeout_seconds`?"),
        (ExecuteRequest, b'{"agent": "a"}', "`agent`: did you mean `agent_id`?"),
        (ExecuteRequest, b'{"payload": 1}', "`payload`: did you mean `input`?"),
        (ExecuteRequest, b'{"priorty": "low"}', "`priorty`: did you mean `priority`?"),
        (ExecuteRequest, b'{"idempotency_key": "k"}', "did you mean the header `Idempotency-Key`?"),
        (ExecuteRequest, b'{"push": {"tokn": ""}}', "`tokn` in push: did you mean `token`?"),
        (BatchRequest, b'{"runs": [{"delay": 5}]}', "in runs[0]: did you mean `delay_seconds`?"),
        (ResumeRequest, b'{"answer": 5}', "`answer`: did you mean `value`?"),
        (ResumeRequest, b'{"zzz": 5}', "`zzz`: the fields are value"),
        (ScheduleRequest, b'{"timezone": "UTC"}', "`timezone`: did you mean `tz`?"),
        (ExecuteRequest, b'{"zzz": 5}', "`zzz`: the fields are agent_id, input, action, "),
    ],
)
def test_an_unknown_field_is_told_with_what_was_meant_or_with_all_there_are(shape, body: bytes, said: str):
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(body, type=shape)
    answer = told(str(refused.value), shape)
    assert answer.startswith("unknown field `")
    assert said in answer


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ('"webhook": "example.com"', "webhook must be an http:// or https:// URL"),
        ('"push": {"url": "ftp://x"}', "push.url must be an http:// or https:// URL"),
        ('"push": {"url": "http://x", "token": "a b"}', "push.token must be printable ASCII characters"),
        ('"tenant": "a/b"', "tenant must be letters, digits and . _ -"),
        ('"thread_id": "a b"', "thread_id must be printable ASCII characters without blanks"),
        ('"agent_id": "a b"', "agent_id must be letters, digits and _ . : / -, beginning"),
        ('"queue": "a\\nb"', "queue must be one line of printable ASCII characters"),
    ],
)
def test_nobody_is_shown_a_regular_expression(fields: str, said: str):
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.json.decode(f'{{"agent_id": "a", {fields}}}', type=ExecuteRequest)
    assert told(str(refused.value), ExecuteRequest).startswith(said)
