"""Numbers that JSON does not have are refused by name, and nothing else is."""

from __future__ import annotations

import dataclasses
import decimal
import math

import msgspec
import pydantic
import pytest

from holdfast import InputError
from holdfast.agents.steps import as_json
from holdfast.runs.message import encode_value


@dataclasses.dataclass
class Point:
    x: float


class Scores(msgspec.Struct):
    values: list[float | None]


class Model(pydantic.BaseModel):
    score: float


@pytest.mark.parametrize("write", [encode_value, as_json])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (math.nan, r"\$ is nan"),
        ({"a": [None, {"b": math.inf}]}, r"\$\.a\[1\]\.b is inf"),
        ((1, -math.inf), r"\$\[1\] is -inf"),
        ([Point(math.nan)], r"\$\[0\]\.x is nan"),
        (Scores([None, math.inf, math.nan]), r"\$\.values\[1\] is inf"),
        ({7: math.nan}, r"\$\.7 is nan"),
    ],
)
def test_a_number_that_is_none_is_refused_with_its_place(write, value, said):
    with pytest.raises(InputError, match=f"the result can't be written as JSON: {said}"):
        write(value, "the result")


def test_one_in_a_pydantic_model_is_found_too():
    with pytest.raises(InputError, match=r"\$\[0\]\.score is nan"):
        as_json([Model(score=math.nan)], "what a step gave")


@pytest.mark.parametrize("write", [encode_value, as_json])
@pytest.mark.parametrize(
    "value",
    [
        None,
        [None],
        {"a": None},
        "null",
        [1e308, -0.0],
        {"n": decimal.Decimal("1.5"), "none": None},
        {math.nan: None},
    ],
)
def test_everything_else_is_written(write, value):
    assert write(value, "the result") == msgspec.json.encode(value)
