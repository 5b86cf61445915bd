from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

import holdfast
from holdfast import App, AppError, Context, InputError, SyncContext, UnknownAgent
from holdfast.agents.spec import AgentSpec


@pytest.fixture
def app() -> App:
    return App("support")


def test_a_decorated_function_is_an_agent_and_stays_itself(app):
    @app.agent
    async def triage(ctx: Context, ticket: dict) -> dict:
        """Sort a ticket.

        At length.
        """
        return ticket

    spec = app.get("triage")
    assert spec == AgentSpec(
        name="triage",
        call=triage,
        is_async=True,
        wants_context=True,
        wants_input=True,
        isolation="loop",
        description="Sort a ticket.",
    )


def test_options_reach_the_spec(app):
    @app.agent(name="sorter", timeout="30m", max_attempts=2, description="Sorts.")
    def triage(ticket):
        return ticket

    spec = app.get("sorter")
    assert (spec.timeout_seconds, spec.max_attempts, spec.description) == (1800.0, 2, "Sorts.")
    assert (spec.is_async, spec.isolation, spec.wants_context) == (False, "thread", False)


@pytest.mark.parametrize("timeout", [90, "90s", "1.5m", timedelta(seconds=90)])
def test_a_timeout_may_be_written_in_several_ways(app, timeout):
    assert app.register("a", lambda: None, timeout=timeout).timeout_seconds == 90.0


def test_a_reference_registers_what_it_points_at(app):
    assert app.register("encode", "json:dumps").call is json.dumps


def test_the_agents_of_an_app_are_read_only(app):
    app.register("a", lambda: None)
    assert list(app.agents) == ["a"]
    with pytest.raises(TypeError):
        app.agents["b"] = app.agents["a"]


def test_an_app_shows_its_agents(app):
    app.register("a", lambda: None)
    assert repr(app) == "App('support', agents=['a'])"


def sync_with_context(first: Context, value): ...
def sync_with_sync_context(first: SyncContext): ...
def with_dotted_context(first: holdfast.Context, value): ...
def with_quoted_context(first: "Context", value): ...  # noqa: UP037
def with_other_annotation(first: dict): ...


SHAPES = [
    (lambda: None, False, False),
    (lambda ctx: None, True, False),
    (lambda value: None, False, True),
    (lambda ctx, value: None, True, True),
    (lambda ctx, value=1, other=2: None, True, True),
    (lambda ctx, *rest: None, True, True),
    (lambda value, *, option=1: None, False, True),
    (lambda **options: None, False, False),
    (sync_with_context, True, True),
    (sync_with_sync_context, True, False),
    (with_dotted_context, True, True),
    (with_quoted_context, True, True),
    (with_other_annotation, False, True),
]


@pytest.mark.parametrize(("call", "wants_context", "wants_input"), SHAPES)
def test_what_an_agent_takes_is_read_from_its_parameters(app, call, wants_context, wants_input):
    spec = app.register("a", call)
    assert (spec.wants_context, spec.wants_input) == (wants_context, wants_input)


class Clerk:
    async def receive(self, ctx, message): ...

    async def __call__(self, message): ...


def test_a_bound_method_and_a_callable_object_are_agents(app):
    method, instance = app.register("m", Clerk().receive), app.register("i", Clerk())
    assert (method.is_async, method.wants_context, method.wants_input) == (True, True, True)
    assert (instance.is_async, instance.wants_context, instance.wants_input) == (True, False, True)


async def async_agent(ctx: SyncContext): ...


REFUSED = [
    ("two required inputs", "a", lambda a, b: None, {}, r"requires a, b.*\(ctx, input\).*one dict"),
    ("three with context", "a", lambda ctx, a, b: None, {}, "requires a, b"),
    ("required keyword", "a", lambda value, *, key: None, {}, "requires key"),
    ("context last", "a", lambda value, ctx: None, {}, "put ctx first"),
    ("a class", "a", Clerk, {}, "Clerk is a class"),
    ("not callable", "a", {"graph": 1}, {}, r"\{'graph': 1\} is not callable: register a function or"),
    ("no signature", "a", min, {}, "parameters can't be read"),
    ("async with SyncContext", "a", async_agent, {}, "is async, so its context is a Context"),
    ("empty name", "", lambda: None, {}, "invalid agent name '': use up to 200"),
    (
        "name with a space",
        "my agent",
        lambda: None,
        {},
        "invalid agent name 'my agent': use up to 200 letters",
    ),
    ("name that is no text", 7, lambda: None, {}, "invalid agent name 7"),
    ("long name", "a" * 201, lambda: None, {}, "up to 200"),
    ("timeout nonsense", "a", lambda: None, {"timeout": "soon"}, "timeout 'soon'"),
    ("timeout zero", "a", lambda: None, {"timeout": 0}, "more than 0"),
    ("timeout negative", "a", lambda: None, {"timeout": -1}, "timeout -1"),
    ("no attempts", "a", lambda: None, {"max_attempts": 0}, "at least 1"),
    ("attempts as text", "a", lambda: None, {"max_attempts": "3"}, "max_attempts is '3': a whole number"),
    ("sync on the loop", "a", lambda: None, {"isolation": "loop"}, "is sync: its isolation is 'thread'"),
    ("unknown isolation", "a", lambda: None, {"isolation": "moon"}, "'thread' or 'process', not 'moon'"),
    (
        "memory of a thread",
        "a",
        lambda: None,
        {"memory_mb": 9},
        "memory_mb limits a process: write isolation",
    ),
    ("nice on the loop", "a", lambda: None, {"nice": 5}, "nice limits a process"),
    ("no memory", "a", lambda: None, {"isolation": "process", "memory_mb": 0}, "memory_mb is 0"),
    ("not nice", "a", lambda: None, {"isolation": "process", "nice": -1}, "nice is -1.*from 0 to 19"),
    ("too nice", "a", lambda: None, {"isolation": "process", "nice": 20}, "nice is 20"),
    ("reference without name", "a", "json", {}, "json:name"),
    ("reference to nothing", "a", "json:dmups", {}, "did you mean 'dumps'"),
]


@pytest.mark.parametrize(
    ("name", "call", "options", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_a_wrong_declaration_is_refused_when_it_is_made(app, name, call, options, message):
    with pytest.raises(AppError, match=message):
        app.register(name, call, **options)
    assert not app.agents


def decorated(app):
    @app.agent(timeout="soon")
    def agent(): ...


def scheduled(app):
    @app.schedule(cron="now and then")
    def agent(): ...


def scheduled_oddly(app):
    @app.schedule(every="5m", misfire="never")
    def agent(): ...


def scheduled_in_no_zone(app):
    @app.schedule(every="5m", tz="Mars/Base")
    def agent(): ...


def scheduled_by_another_name(app):
    @app.schedule(cron="0 3 * * *", timezone="Europe/Berlin")
    def agent(): ...


def scheduled_never(app):
    @app.schedule
    def agent(): ...


def misspelt(app):
    @app.agent(timeuot="5m")
    def agent(): ...


def registered(app):
    app.register("a", {})


def named(app):
    App("two words")


@pytest.mark.parametrize(
    "declare",
    [
        decorated,
        scheduled,
        scheduled_oddly,
        scheduled_in_no_zone,
        scheduled_by_another_name,
        scheduled_never,
        misspelt,
        registered,
        named,
    ],
)
def test_a_wrong_declaration_names_its_file_and_line(app, declare):
    first = declare.__code__.co_firstlineno
    with pytest.raises(
        (AppError, InputError), match=rf"\(declared at {__file__}:({first + 1}|{first + 2})\)$"
    ):
        declare(app)
    assert not app.agents
    assert not app.schedules


@pytest.mark.parametrize(
    ("declare", "said"),
    [
        (scheduled, "schedule 'agent': cron: 'now and then' is not a cron expression"),
        (scheduled_oddly, "schedule 'agent': misfire: 'never' is not one of coalesce, skip, catch_up"),
        (scheduled_in_no_zone, "schedule 'agent': tz: only a cron expression has a time zone"),
        (scheduled_by_another_name, "timezone: a schedule has no such option: did you mean tz?"),
        (scheduled_never, r"write @app.schedule\(every=...\)"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_said_in_the_words_of_its_declaration(app, declare, said):
    with pytest.raises((AppError, InputError), match=said):
        declare(app)


async def async_process_agent() -> None: ...


def test_an_option_that_an_agent_does_not_have_is_named(app):
    with pytest.raises(AppError, match="no option 'timeuot': did you mean 'timeout'"):
        misspelt(app)


def test_the_options_of_an_agent_are_those_of_register(app):
    options: Any = {"zzz": 1}
    known = "name, timeout, max_attempts, retry_programming_errors, isolation, description, concurrency, memory_mb, nice, log_fields"
    with pytest.raises(AppError, match=f"no option 'zzz': there are {known}"):
        app.agent(**options)(lambda: None)


@pytest.mark.parametrize("call", [lambda: None, async_process_agent], ids=["sync", "async"])
def test_any_agent_can_have_processes_of_its_own(app, call):
    spec = app.register("a", call, isolation="process", memory_mb=64, nice=0)
    assert (spec.isolation, spec.memory_mb, spec.nice) == ("process", 64, 0)


def test_an_async_agent_in_a_thread_is_refused(app):
    with pytest.raises(AppError, match="is async: its isolation is 'loop'"):

        @app.agent(isolation="thread")
        async def agent(): ...


def test_a_lambda_needs_a_name(app):
    with pytest.raises(AppError, match="name="):
        app.agent(lambda: None)


def test_a_second_agent_of_a_name_is_refused_and_says_where_the_first_is(app):
    app.register("a", sync_with_context)
    with pytest.raises(AppError, match=r"'a' already \(.*test_app\.sync_with_context\)"):
        app.register("a", lambda: None)
    assert app.get("a").call is sync_with_context


def test_an_app_needs_a_proper_name():
    with pytest.raises(AppError, match="invalid app name"):
        App("")


def test_an_unknown_agent_is_answered_with_what_there_is(app):
    with pytest.raises(UnknownAgent, match="none: register one"):
        app.get("triage")
    app.register("triage", lambda: None)
    app.register("writer", lambda: None)
    with pytest.raises(UnknownAgent, match="did you mean 'triage'"):
        app.get("trage")
    with pytest.raises(UnknownAgent, match="its agents: triage, writer"):
        app.get("zzz")


def test_every_public_name_is_there():
    assert all(hasattr(holdfast, name) for name in holdfast.__all__)
