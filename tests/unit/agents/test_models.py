"""An agent's input and result as pydantic model, dataclass, TypedDict or msgspec Struct."""

from __future__ import annotations

import dataclasses
import enum
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest

from holdfast import App, AppError, Context, InputError, SyncContext
from holdfast.agents.context import scope_of
from holdfast.agents.failures import FailureClass
from holdfast.agents.loader import load_app
from holdfast.agents.models import dumped
from holdfast.agents.outcome import Failed, Succeeded
from holdfast.runs.execution.settlement import written_result
from holdfast.runs.message import encode_value

if TYPE_CHECKING:
    from collections.abc import Mapping


class Level(enum.Enum):
    HIGH = "high"
    LOW = "low"


class Model(pydantic.BaseModel):
    id: int
    level: Level = Level.LOW
    at: datetime | None = None


@dataclasses.dataclass
class Data:
    id: int
    level: Level = Level.LOW
    at: datetime | None = None


class Typed(TypedDict):
    id: int


class Struct(msgspec.Struct):
    id: int
    level: Level = Level.LOW
    at: datetime | None = None


@pydantic.dataclasses.dataclass
class Checked:
    id: pydantic.PositiveInt


@dataclasses.dataclass
class Outer:
    inner: Model
    others: list[Struct] = dataclasses.field(default_factory=list)


async def takes_model(ctx: Context, ticket: Model) -> Model:
    return ticket


async def takes_data(ctx: Context, ticket: Data) -> Data:
    return ticket


async def takes_typed(ticket: Typed) -> Typed:
    return ticket


async def takes_struct(ctx: Context, ticket: Struct) -> Struct:
    return ticket


def takes_model_sync(ctx: SyncContext, ticket: Model) -> Model:
    return ticket


async def takes_checked(ticket: Checked) -> Checked:
    return ticket


async def takes_outer(ticket: Outer) -> Outer:
    return ticket


async def takes_list(tickets: list[Model]) -> Any:
    return tickets


async def takes_maybe(ticket: Annotated[Data | None, "a ticket"] = None) -> Any:
    return ticket


class Holder:
    async def receive(self, ctx: Context, ticket: Model) -> Model:
        return ticket


@pytest.mark.parametrize(
    ("call", "payload", "expected"),
    [
        (takes_model, {"id": 7, "level": "high"}, Model(id=7, level=Level.HIGH)),
        (takes_model_sync, {"id": 7, "at": "2030-01-02T03:04:05Z"}, None),
        (takes_data, {"id": 7, "level": "high"}, Data(7, Level.HIGH)),
        (takes_typed, {"id": 7}, {"id": 7}),
        (takes_struct, {"id": 7, "level": "high"}, Struct(7, Level.HIGH)),
        (takes_checked, {"id": 7}, Checked(7)),
        (takes_outer, {"inner": {"id": 7}, "others": [{"id": 8}]}, Outer(Model(id=7), [Struct(8)])),
        (takes_list, [{"id": 7}], [Model(id=7)]),
        (takes_maybe, None, None),
        (takes_maybe, {"id": 7}, Data(7)),
        (Holder().receive, {"id": 7}, Model(id=7)),
    ],
)
async def test_the_input_is_what_its_annotation_promises(invocation, call, payload, expected):
    outcome = await invocation(call, payload).run()
    assert isinstance(outcome, Succeeded), outcome
    if expected is None and payload is not None:
        expected = Model.model_validate(payload)
    assert outcome.result == expected
    assert type(outcome.result) is type(expected)


async def streams(ticket: Model):
    yield ticket
    yield Model(id=ticket.id + 1)


def streams_sync(ticket: Model):
    yield ticket
    yield Model(id=ticket.id + 1)


@pytest.mark.parametrize("call", [streams, streams_sync])
async def test_generators_take_and_yield_models(invocation, feed, call):
    outcome = await invocation(call, {"id": 1}).run()
    assert [each.id for each in outcome.result] == [1, 2]
    assert [type(data) for _, data in feed.events] == [Model, Model]


@pytest.mark.parametrize(
    ("call", "payload", "words"),
    [
        (takes_model, {"id": "x"}, ["agent 'tester'", "Model", "integer", "`$.id`"]),
        (takes_model, {}, ["agent 'tester'", "Model", "required", "`$.id`"]),
        (takes_model_sync, None, ["agent 'tester'", "Model"]),
        (takes_data, {"id": "x"}, ["agent 'tester'", "Data", "`int`", "`str`", "`$.id`"]),
        (takes_data, {}, ["agent 'tester'", "Data", "required field `id`"]),
        (takes_typed, {}, ["agent 'tester'", "Typed", "required field `id`"]),
        (takes_struct, {"id": 1, "level": "middle"}, ["agent 'tester'", "Struct", "`$.level`", "middle"]),
        (takes_struct, ["id"], ["agent 'tester'", "Struct", "`object`", "`array`"]),
        (takes_checked, {"id": -1}, ["agent 'tester'", "Checked", "greater than 0", "`$.id`"]),
        (takes_list, [{"id": 1}, {"id": "x"}], ["agent 'tester'", "integer", "at `$[1].id`"]),
        (takes_outer, {"inner": {"id": "x"}}, ["agent 'tester'", "integer", "at `$.inner.id`"]),
    ],
)
async def test_an_input_that_does_not_fit_is_a_final_failure_that_says_why(invocation, call, payload, words):
    outcome = await invocation(call, payload).run()
    assert isinstance(outcome, Failed), outcome
    assert outcome.failure.kind is FailureClass.INVALID
    for word in words:
        assert word in outcome.failure.message
    assert outcome.failure.message.count(" - at ") <= 1
    assert not outcome.failure.traceback


class Pair(pydantic.BaseModel):
    id: int
    city: str


async def takes_pairs(pairs: list[Pair]) -> Any:
    return pairs


async def test_every_wrong_field_of_a_list_item_has_its_whole_path(invocation):
    outcome = await invocation(takes_pairs, [{"id": 1, "city": "x"}, {"cit": "y"}]).run()
    assert "Field required - at `$[1].id`; Field required - at `$[1].city`" in outcome.failure.message


async def test_an_input_error_that_an_agent_raises_keeps_its_traceback(invocation):
    async def refuses(ticket: Model) -> None:
        raise InputError("no such ticket")

    outcome = await invocation(refuses, {"id": 1}).run()
    assert "in refuses" in outcome.failure.traceback


async def test_the_class_of_a_method_is_named_too(invocation):
    outcome = await invocation(Holder().receive, {}).run()
    assert "agent 'tester' of Holder: the input does not fit Model" in outcome.failure.message


async def plain(ctx: Context, ticket: dict[str, Any]) -> Any:
    return ticket


async def number(ticket: int) -> Any:
    return ticket


async def mapping(ticket: Mapping[str, int]) -> Any:  # a name that only a type checker can look up
    return ticket


async def bare(ctx, ticket):
    return ticket


@pytest.mark.parametrize("call", [plain, number, mapping, bare])
async def test_other_annotations_leave_the_input_as_it_was_sent(invocation, call):
    sent = {"id": "x", "more": [1]}
    assert await invocation(call, sent).run() == Succeeded(sent)


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(alias_generator=lambda name: name.upper())
    name: str


def test_models_are_written_as_json_as_they_are_read():
    assert encode_value(Model(id=7), "it") == b'{"id":7,"level":"low","at":null}'
    assert encode_value({"all": [Checked(7), Data(1), Struct(2)]}, "it").startswith(b'{"all":[{"id":7},')
    assert Aliased.model_validate_json(encode_value(Aliased(NAME="x"), "it")) == Aliased(NAME="x")


class Inner(pydantic.BaseModel):
    count: int = pydantic.Field(alias="innerCount")


class Written(pydantic.BaseModel):
    """Aliases of all kinds: for both ways, for writing only, for reading only, and in a model inside."""

    both: int = pydantic.Field(alias="bothWays")
    written: int = pydantic.Field(serialization_alias="onlyWritten")
    read: int = pydantic.Field(validation_alias="onlyRead")
    inner: Inner


WRITTEN = Written(bothWays=1, written=2, onlyRead=3, inner=Inner(innerCount=4))


async def test_a_step_gives_its_model_back_whatever_aliases_it_has(ctx):
    def make() -> Written:
        return WRITTEN

    assert await ctx.step("make", make) == WRITTEN
    kept = await scope_of(ctx).journal.get("make")
    assert msgspec.json.decode(kept) == {"both": 1, "written": 2, "read": 3, "inner": {"count": 4}}


async def test_a_step_that_was_written_by_alias_is_read(ctx):
    def make() -> Inner:
        raise AssertionError("it was done before")

    await scope_of(ctx).journal.put("make", b'{"innerCount": 4}')
    assert await ctx.step("make", make) == Inner(innerCount=4)


async def test_state_has_the_names_of_fields_and_results_have_aliases(ctx):
    await ctx.state.set("it", WRITTEN)
    assert (await ctx.state.get("it"))["written"] == 2
    aliased = {"bothWays": 1, "onlyWritten": 2, "read": 3, "inner": {"innerCount": 4}}
    assert msgspec.json.decode(encode_value(WRITTEN, "it")) == aliased


@pytest.mark.parametrize("given", [Model(id=7), Data(7), Struct(7)], ids=lambda each: type(each).__name__)
def test_a_schedule_may_be_declared_with_a_model(given):
    app = App("a")

    @app.schedule(every="5m", input=given)
    async def takes(ticket: Model): ...

    app.complete()
    assert app.schedules["takes"].input == {"id": 7, "level": "low", "at": None}


class Moody(pydantic.BaseModel):
    prices: dict[str, int]

    @pydantic.computed_field
    @property
    def total(self) -> int:
        return self.prices["total"]


class Bag:
    """Looks up every attribute in a dict, as some wrappers of JSON do."""

    def __getattr__(self, name: str):
        return {}[name]


@pytest.mark.parametrize("result", [Moody(prices={}), {"all": [Bag()]}], ids=["computed field", "getattr"])
def test_a_result_whose_own_code_raises_can_not_be_written(result):
    failure = written_result("model", result, 1000)
    assert failure.kind is FailureClass.INVALID
    assert "result of agent 'model' can't be written as JSON: writing the " in failure.message
    assert "raised KeyError: " in failure.message


def test_the_class_of_a_resident_is_made_with_what_its_init_takes():
    app = App("a")

    @app.resident
    class Modelled:
        def __init__(self, ticket: Model) -> None:
            self.ticket = ticket

        async def receive(self, ctx, message): ...

    @app.resident
    @dataclasses.dataclass
    class Dataclass:
        ticket: Struct | None = None

        async def receive(self, ctx, message): ...

    @app.resident
    class Bare:
        def __init__(self, ticket=None) -> None:
            self.ticket = ticket

        async def receive(self, ctx, message): ...

    @app.resident
    class Empty:
        async def receive(self, ctx, message): ...

    app.complete()
    sent = {"id": 7}
    assert app.residents["Modelled"].arguments(sent) == (Model(id=7),)
    assert app.residents["Dataclass"].arguments(sent) == (Struct(7),)
    assert app.residents["Dataclass"].arguments(None) == ()
    assert app.residents["Bare"].arguments(sent) == (sent,)
    assert app.residents["Empty"].arguments(None) == ()
    with pytest.raises(InputError, match="the class of resident 'Modelled': the input does not fit Model"):
        app.residents["Modelled"].arguments({"id": "x"})


def test_a_result_that_can_not_be_written_is_named_with_its_place():
    failure = written_result("model", {"a": [1, {"b": object()}]}, 1000)
    assert failure.kind is FailureClass.INVALID
    assert "agent 'model'" in failure.message
    assert "$.a[1].b is an object" in failure.message
    failure = written_result("model", {"a": Unwritable()}, 1000)
    assert "$.a is an Unwritable" in failure.message
    with pytest.raises(TypeError, match="a value of type Unwritable can't be written as JSON"):
        dumped(Unwritable())
    failure = written_result("model", Outer(inner=Level), 1000)
    assert "$.inner is a" in failure.message


class Unwritable:
    """Something that can't be written as JSON."""


class Handle:
    """Something that no JSON can be read as."""


@dataclasses.dataclass
class Holding:
    handle: Handle


@dataclasses.dataclass
class Holds:
    handle: Handle | None = None


async def takes_holding(ticket: Holding): ...


async def takes_holds(ticket: Holds):
    return ticket


async def takes_one_of_two(ticket: Model | Data): ...


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (takes_holding, ["agent 'holding'", "Holding", "`handle`", "Handle"]),
        (takes_one_of_two, ["agent 'holding'", "Model", "Data"]),
    ],
)
def test_a_type_that_json_can_not_be_read_as_is_an_error_when_it_is_declared(call, words):
    with pytest.raises(AppError) as caught:
        App("a").register("holding", call)
    for word in words:
        assert word in str(caught.value)


async def test_what_is_never_sent_may_be_of_any_type(invocation):
    assert await invocation(takes_holds, {}).run() == Succeeded(Holds())


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)

    def write(text: str) -> str:
        path = tmp_path / "hf_models.py"
        path.write_text("from __future__ import annotations\n" + text)
        return str(path)

    yield write
    for name in set(sys.modules) - known:
        del sys.modules[name]


LATER = """
import dataclasses
from holdfast import App
app = App("later")

@app.agent
async def late(ctx, ticket: Ticket):
    return ticket

@dataclasses.dataclass
class Ticket:
    id: {type}
"""


async def test_a_class_further_down_in_the_module_is_found(module, ctx, executor):
    app = load_app(module(LATER.format(type="int")))
    ticket = app.agents["late"].arguments(ctx, {"id": 7})[1]
    assert type(ticket).__name__ == "Ticket"
    assert ticket.id == 7


@pytest.mark.parametrize("wrong", ["Nothing", "object()", "complex"])
def test_a_wrong_class_further_down_is_an_error_when_the_app_is_loaded(module, wrong):
    with pytest.raises(AppError, match="agent 'late'"):
        load_app(module(LATER.format(type=wrong)))


def test_an_annotation_that_can_not_be_looked_up_is_logged(module, log_lines):
    app = load_app(module(LATER.partition("@dataclasses")[0]))
    assert app.agents["late"].arguments(None, {"id": 7}) == (None, {"id": 7})
    (line,) = [line for line in log_lines() if line.get("agent") == "late"]
    assert line["level"] == "warning"
    assert "Ticket" in line["annotation"]


SCHEDULED = """
import dataclasses
from holdfast import App
app = App("later")

@dataclasses.dataclass
class Ticket:
    id: int

@app.schedule(every="1h", input={input})
async def hourly(ctx, ticket: Ticket):
    return ticket
"""


def test_the_input_of_a_schedule_is_checked_when_the_app_is_loaded(module):
    with pytest.raises(AppError, match=r"schedule 'hourly'.*Ticket.*required field `id`"):
        load_app(module(SCHEDULED.format(input="{}")))


def test_an_input_that_fits_is_fine(module):
    assert load_app(module(SCHEDULED.format(input="{'id': 1}"))).schedules["hourly"].input == {"id": 1}


RESIDENT = """
from holdfast import App
app = App("later")

class Handle: ...

import dataclasses
@dataclasses.dataclass
class Ticket:
    id: Handle

@app.resident
class Clerk:
    async def receive(self, ctx, ticket: Ticket):
        return ticket
"""


def test_a_wrong_message_of_a_resident_is_an_error_when_the_app_is_loaded(module):
    with pytest.raises(AppError, match=r"resident 'Clerk'.*Handle"):
        load_app(module(RESIDENT))
