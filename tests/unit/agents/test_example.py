"""Examples of inputs, which `holdfast dev` shows: each fits the annotation of its agent."""

from __future__ import annotations

import datetime as dt
import enum
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

from holdfast import App, Context
from holdfast.agents.example import UNTYPED, example_input
from holdfast.errors import InputError


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Line:
    count: int
    note: str = "none"


class Order(msgspec.Struct):
    id: str
    lines: list[Line]
    colour: Colour
    kind: Literal["a", "b"]
    due: dt.datetime
    share: Annotated[float, msgspec.Meta(ge=10, le=20)]
    extra: str | None = None


class Person(TypedDict):
    name: str


class Ticket(pydantic.BaseModel):
    id: int = pydantic.Field(gt=100)
    title: str = pydantic.Field(min_length=8, max_length=10)
    mail: str = pydantic.Field(examples=["ada@example.com"])
    line: Line
    tags: list[str] = []


class Coded(pydantic.BaseModel):
    code: str = pydantic.Field(pattern="^[0-9]{4}$")


def example(function: Any) -> Any:
    app = App("examples")
    app.agent(function)
    return example_input(next(iter(app.agents.values())))


@pytest.mark.parametrize("annotation", [Order, Line, Person, Ticket, list[Line], Line | None])
def test_an_example_fits_the_model(annotation):
    async def agent(ctx: Context, value): ...

    agent.__annotations__["value"] = annotation
    example(agent)  # it is read as the model, which would raise


def test_an_example_has_the_required_fields_only():
    async def agent(ticket: Ticket): ...

    assert example(agent) == {
        "id": 101,
        "title": "textxxxx",
        "mail": "ada@example.com",
        "line": {"count": 7},
    }


@pytest.mark.parametrize(
    ("annotation", "expected"), [(str, "text"), (int, 7), (bool, True), (dict, UNTYPED), (Any, UNTYPED)]
)
def test_plain_types_have_plain_examples(annotation, expected):
    def agent(value): ...

    agent.__annotations__["value"] = annotation
    assert example(agent) == expected


def test_an_agent_without_an_input_has_none_and_one_without_an_annotation_any():
    async def alone(ctx: Context): ...

    async def any_input(value): ...

    assert (example(alone), example(any_input)) == (None, UNTYPED)


def test_a_rule_that_no_schema_tells_is_an_error():
    async def agent(coded: Coded): ...

    with pytest.raises(InputError):
        example(agent)
