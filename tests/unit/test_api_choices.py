"""What a caller is told of a word that a body may not have there."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from holdfast.api.choices import told


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
