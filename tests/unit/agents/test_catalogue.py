"""The catalogue of agents: what an app announces of them, and what is made of several announcements."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypedDict

import msgspec
import pydantic
import pytest

from holdfast import App, UnknownAgent
from holdfast.agents.catalogue import catalogue_of, find_agent, listing
from holdfast.redis.members import Member
from holdfast.views.agents import AgentEntry

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTypeCheckers


class Part(pydantic.BaseModel):
    """A part of something."""

    size: int


class Model(pydantic.BaseModel):
    id: int
    parts: list[Part] = []


@pydantic.dataclasses.dataclass
class Checked:
    id: pydantic.PositiveInt


@dataclasses.dataclass
class Data:
    id: int
    models: list[Model] = dataclasses.field(default_factory=list)


class Typed(TypedDict):
    id: int


class Tree(msgspec.Struct):
    id: int
    children: list[Tree] = []


async def takes_model(ticket: Model) -> Part: ...
async def takes_checked(ticket: Checked) -> list[Part]: ...
async def takes_data(ticket: Data) -> dict: ...
async def takes_typed(ticket: Typed): ...
async def takes_tree(ticket: Tree) -> OnlyForTypeCheckers: ...
async def takes_many(tickets: list[Typed]): ...
async def takes_dict(ticket: dict) -> int: ...


async def streams(ticket: Typed) -> Part:
    yield ticket


def announced(*agents, **options) -> list[AgentEntry]:
    app = App("test")
    for agent in agents:
        app.agent(**options)(agent)
    return msgspec.json.decode(catalogue_of(app.agents).data, type=list[AgentEntry])


@pytest.mark.parametrize("agent", [takes_model, takes_checked, takes_data, takes_typed, takes_tree])
def test_a_model_has_the_schema_of_an_object(agent):
    (entry,) = announced(agent)
    assert entry.input_schema is not None
    assert entry.input_schema["type"] == "object"
    assert entry.input_schema["properties"]["id"]["type"] == "integer"
    assert entry.input_schema["required"] == ["id"]


def test_every_reference_of_a_schema_leads_somewhere(subtests):
    for agent in (takes_model, takes_data, takes_tree, takes_many, takes_checked):
        (entry,) = announced(agent)
        for schema in (entry.input_schema, entry.result_schema):
            with subtests.test(agent.__name__):
                _follow_references(schema, schema)


def _follow_references(part, whole) -> None:
    if isinstance(part, list):
        for each in part:
            _follow_references(each, whole)
    if isinstance(part, dict):
        for key, value in part.items():
            if key == "$ref":
                assert value.removeprefix("#/$defs/") in whole["$defs"], value
            _follow_references(value, whole)


def test_a_result_has_a_schema_if_it_is_a_model():
    entries = {
        entry.name: entry for entry in announced(takes_model, takes_data, takes_tree, takes_checked, streams)
    }
    assert entries["takes_model"].result_schema["properties"]["size"]["type"] == "integer"
    assert entries["takes_checked"].result_schema["type"] == "array"
    for name in ("takes_data", "takes_tree", "streams"):
        assert entries[name].result_schema is None, name


def test_an_annotation_that_is_no_model_has_no_schema():
    (entry,) = announced(takes_dict, isolation="process", timeout="1m", max_attempts=2, concurrency=3)
    assert entry == AgentEntry(
        name="takes_dict", isolation="process", timeout_seconds=60.0, max_attempts=2, concurrency=3
    )


def test_a_model_whose_schema_can_not_be_made_has_none():
    class Odd(pydantic.BaseModel):
        id: int

        @classmethod
        def __get_pydantic_json_schema__(cls, core, handler):
            raise ZeroDivisionError

    async def takes_odd(ticket) -> None: ...

    takes_odd.__annotations__["ticket"] = Odd
    (entry,) = announced(takes_odd)
    assert (entry.name, entry.input_schema) == ("takes_odd", None)


def test_what_is_too_large_is_left_out():
    wide = msgspec.defstruct("Wide", [(f"field_{number:04}", int) for number in range(1000)])

    async def takes_wide(ticket) -> None: ...

    takes_wide.__annotations__["ticket"] = wide
    (entry,) = announced(takes_wide, description="x" * 5000)
    assert (entry.input_schema, len(entry.description)) == (None, 1000)


def test_a_crowd_of_agents_keeps_its_size():
    app = App("test")
    fitting = msgspec.defstruct("Fitting", [(f"field_{number:04}", int) for number in range(200)])

    async def takes_fitting(ticket) -> None: ...

    takes_fitting.__annotations__["ticket"] = fitting
    for number in range(1000):
        app.agent(name=f"agent-{number:04}", description="x" * 300)(takes_fitting)
    data = catalogue_of(app.agents).data
    assert len(data) < 257 << 10
    first, *_, last = msgspec.json.decode(data, type=list[AgentEntry])
    assert first.input_schema is not None
    assert last.input_schema is None


def test_the_same_agents_have_the_same_digest():
    app, other = App("a"), App("b")
    for each in (app, other):
        each.agent(takes_model)
    assert catalogue_of(app.agents) == catalogue_of(other.agents)
    other.agent(takes_data)
    assert catalogue_of(app.agents).digest != catalogue_of(other.agents).digest


# -- several announcements


def member(name: str, agents: str, kind: str = "worker", **fields: str) -> Member:
    return Member(kind, name, {"agents": agents, "queues": "q", "state": "idle", "since": "1", **fields})


def test_live_workers_are_named_and_counted():
    found = listing([member("b", "echo"), member("a", "echo,sort", queues="q,media")], {})
    assert [(each.name, each.queues, each.served_by, each.workers) for each in found.agents] == [
        ("echo", ["media", "q"], ["a", "b"], 2),
        ("sort", ["media", "q"], ["a"], 1),
    ]
    assert found.note == ""


def test_of_many_workers_some_are_named():
    (found,) = listing([member(f"w{number}", "echo") for number in range(150)], {}).agents
    assert (len(found.served_by), found.workers) == (100, 150)


def test_the_newest_worker_says_what_an_agent_is():
    catalogues = {
        digest: {"echo": AgentEntry(name="echo", description=digest)} for digest in ("old", "new", "api")
    }
    crowd = [
        member("api", "echo", kind="api", queues="", since="9", catalogue="api"),
        member("new", "echo", since="5", catalogue="new"),
        member("old", "echo", since="3", catalogue="old"),
        member("of a version without catalogues", "echo", since="7"),
    ]
    (found,) = listing(crowd, catalogues).agents
    assert (found.description, found.workers) == ("new", 3)


def test_who_takes_no_runs_serves_no_agent():
    crowd = [
        member("leaving", "echo", state="draining"),
        member("api", "echo", kind="api", queues=""),
        member("scheduler", "sort", kind="scheduler", queues=""),
    ]
    found = listing(crowd, {})
    assert [(each.name, each.queues, each.served_by) for each in found.agents] == [
        ("echo", [], []),
        ("sort", [], []),
    ]
    assert found.note == "no worker is alive: runs of these agents wait for one"


def test_hosts_and_mailboxes_have_no_agents():
    crowd = [member("h", "12", kind="host"), member("clerk", "receive", queues="mailbox:clerk")]
    assert listing(crowd, {}).agents == []


def test_an_empty_list_says_why():
    assert "no worker is alive: start one" in listing([], {}).note
    assert "the live workers have no agents" in listing([member("a", "")], {}).note


def test_what_is_not_there_is_answered_with_what_is():
    found = listing([member("a", "echo,sort")], {})
    assert find_agent(found, "echo").name == "echo"
    with pytest.raises(UnknownAgent, match="did you mean 'sort'"):
        find_agent(found, "sorted")
    with pytest.raises(UnknownAgent, match="there are echo, sort"):
        find_agent(found, "zzz")
    with pytest.raises(UnknownAgent, match="no worker is alive"):
        find_agent(listing([], {}), "echo")
