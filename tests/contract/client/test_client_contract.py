"""What a client does, whichever way it goes: one suite, over Redis and over HTTP."""

from __future__ import annotations

import asyncio
import math
import threading
from datetime import timedelta

import msgspec
import pytest

from holdfast import (
    App,
    Client,
    Conflict,
    Context,
    EventsExpired,
    GiveUp,
    HoldfastError,
    InputError,
    NotFound,
    PayloadTooLarge,
    QueuePaused,
    ResultTimeout,
    RunCancelled,
    RunFailed,
    RunTimedOut,
    SyncClient,
    UnknownAgent,
)
from holdfast.events import feed, hub
from holdfast.runs.run import Run, Status
from holdfast.store.archive import ArchivedRun
from holdfast.telemetry.logs import speaking_of
from tests.support.waiting import PATIENCE_SECONDS, until

app = App("tests")


@app.agent
async def echo(value):
    return value


class Ticket(msgspec.Struct):
    id: int


@app.agent(name="sorting/by-hand", timeout="1m")
async def sort_by_hand(ticket: Ticket):
    """Sort a ticket
    by hand.

    It takes a while.
    """
    return ticket.id


@app.agent
async def talk(ctx: Context, words):
    for word in words:
        await ctx.emit("word", word)
    return len(words)


@app.agent
async def give_up(value):
    raise GiveUp(f"not with {value}")


@app.agent
async def sleep(value):
    await asyncio.Event().wait()


@app.agent
async def show(ctx: Context, value):
    return {"thread": ctx.thread_id, "metadata": dict(ctx.metadata), "run": ctx.run_id}


@app.agent
async def ask(ctx: Context, questions):
    return [await ctx.interrupt({"question": question}) for question in questions]


@pytest.fixture
async def worker(system):
    return await system.worker(app)


# -- the agents that there are


async def test_registered_agents_are_listed_with_who_serves_them(client, worker, face):
    found = await client.agents.list()
    assert [agent.name for agent in found] == sorted(app.agents)
    shown = await client.agents.get("sorting/by-hand")
    assert shown == found[-2]
    assert shown.description == "Sort a ticket by hand."
    assert shown.input_schema is not None
    assert shown.input_schema["properties"]["id"] == {"type": "integer"}
    assert (shown.result_schema, shown.isolation, shown.timeout_seconds) == (None, "loop", 60.0)
    assert (shown.queues, shown.served_by, shown.workers) == (["agent-queue"], [worker.process.name], 1)
    assert await asyncio.to_thread(_listed_by_a_script, face) == (found, shown)


def _listed_by_a_script(face):
    with SyncClient(**face.here) as client:
        return client.agents.list(), client.agents.get("sorting/by-hand")


async def test_an_agent_that_nobody_has_is_unknown(client, system):
    assert await client.agents.list() == []
    with pytest.raises(UnknownAgent, match=r"'sort'.*no worker is alive"):
        await client.agents.get("sort")
    await system.worker(app)
    for wrong in ("", "a b", "x" * 201, 7):
        with pytest.raises(InputError, match="no agent can be called so"):
            await client.agents.get(wrong)
    with pytest.raises(UnknownAgent, match=r"'eccho': did you mean 'echo'\?.*holdfast residents show"):
        await client.agents.get("eccho")


async def test_calls_that_residents_had_here_name_those_of_residents(client):
    scripted = SyncClient().agents
    for agents in (client.agents, scripted):
        for name in ("start", "stop", "move", "send", "ask", "hosts"):
            with pytest.raises(AttributeError, match=f"use client.residents.{name}$"):
                getattr(agents, name)
        with pytest.raises(AttributeError, match="'nothing'"):
            _ = agents.nothing


# -- a run and its result


async def test_a_result_is_waited_for(client, worker):
    handle = await client.submit("echo", {"a": [1, 2]})
    assert handle.fresh
    assert await handle.result(timeout=PATIENCE_SECONDS) == {"a": [1, 2]}
    assert await handle.status() is Status.SUCCEEDED
    assert await handle.result() == {"a": [1, 2]}


async def test_a_result_that_comes_later_is_waited_for(client, system):
    handle = await client.submit("echo", 1)
    waiting = asyncio.create_task(handle.result(timeout=20))
    await system.worker(app)
    assert await waiting == 1


async def test_a_run_that_gave_up_raises_with_its_reason(client, worker):
    handle = await client.submit("give_up", "you")
    with pytest.raises(RunFailed, match="not with you") as caught:
        await handle.result(timeout=PATIENCE_SECONDS)
    assert caught.value.run_id == handle.run_id


async def test_a_run_past_its_deadline_raises(client, worker):
    handle = await client.submit("sleep", timeout="50ms")
    with pytest.raises(RunTimedOut, match=handle.run_id):
        await handle.result(timeout=PATIENCE_SECONDS)


async def test_a_cancelled_run_raises_with_its_reason(client, worker, system):
    waiting, running = await client.submit("sleep", delay="1h"), await client.submit("sleep")
    await system.reaches(running.run_id, Status.RUNNING)
    assert await waiting.cancel("no longer wanted") == "cancelled"
    assert await client.cancel(running.run_id, reason="too late") == "requested"
    with pytest.raises(RunCancelled, match="no longer wanted"):
        await waiting.result(timeout=PATIENCE_SECONDS)
    with pytest.raises(RunCancelled, match="too late"):
        await running.result(timeout=PATIENCE_SECONDS)


async def test_waiting_may_end_before_the_run_does(client):
    handle = await client.submit("echo", 1)
    for patience in (0, 0.05, "50ms", timedelta(milliseconds=50)):
        with pytest.raises(ResultTimeout, match=handle.run_id):
            await handle.result(timeout=patience)
    assert await handle.status() is Status.QUEUED


async def test_without_any_patience_a_run_that_has_ended_has_its_result(client, worker, face):
    """Fails if no time is left for the look that finds out."""
    handle, failed = await client.submit("echo", 1), await client.submit("give_up", "you")
    assert await handle.result(timeout=PATIENCE_SECONDS) == 1
    with pytest.raises(RunFailed):
        await failed.result(timeout=PATIENCE_SECONDS)
    for patience in (0, "0s", timedelta()):
        assert await handle.result(timeout=patience) == 1
    with pytest.raises(RunFailed, match="not with you"):
        await failed.result(timeout=0)
    with pytest.raises(NotFound, match="nobody"):
        await client.handle("nobody").result(timeout=0)
    assert await asyncio.to_thread(_result_at_once, face, handle.run_id) == 1


def _result_at_once(face, run_id):
    with SyncClient(**face.here) as client:
        return client.handle(run_id).result(timeout=0)


async def test_a_patience_that_is_no_duration_is_the_callers_mistake(client, subtests):
    for patience in (-1, "-1s", timedelta(seconds=-1), "soon", math.nan, True):
        with subtests.test(repr(patience)), pytest.raises(InputError, match="timeout"):
            await client.handle("a").result(timeout=patience)
        with subtests.test(f"ask {patience!r}"), pytest.raises(InputError, match="timeout"):
            await client.residents.ask("a", 1, timeout=patience)


async def test_cancelling_the_waiting_does_not_cancel_the_run(client):
    handle = await client.submit("echo", 1)
    waiting = asyncio.create_task(handle.result())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await handle.status() is Status.QUEUED


async def test_a_retried_run_has_a_result_again(client, system):
    handle = await client.submit("echo", 5)
    await handle.cancel()
    again = await client.retry(handle.run_id)
    waiting = asyncio.create_task(again.result(timeout=20))
    await system.worker(app)
    assert await waiting == 5
    with pytest.raises(Conflict, match="succeeded"):
        await client.retry(handle.run_id)


async def test_events_are_followed_to_the_end(client, worker):
    handle = await client.submit("talk", ["a", "b"])
    events = [event async for event in handle.events()]
    assert [event.type for event in events] == ["submitted", "started", "word", "word", "succeeded"]
    assert [event.data for event in events if event.type == "word"] == ["a", "b"]
    rest = [event.type async for event in handle.events(after=events[2].id)]
    assert rest == ["word", "succeeded"]


async def test_what_is_said_about_a_run_reaches_its_agent(client, worker):
    handle = await client.submit("show", run_id="order-7", thread_id="t1", metadata={"user": "ada"})
    assert await handle.result(timeout=PATIENCE_SECONDS) == {
        "thread": "t1",
        "metadata": {"user": "ada"},
        "run": "order-7",
    }


async def test_an_interrupted_run_goes_on_with_its_answers(client, worker, system):
    handle = await client.submit("ask", ["name?", "age?"])
    waiting = asyncio.create_task(handle.result(timeout=20))
    run = await system.reaches(handle.run_id, Status.INTERRUPTED)
    assert (await handle.run()).interrupt == run.interrupt == {"question": "name?"}
    await handle.resume("ada")
    await until(handle.run, lambda found: found.interrupt == {"question": "age?"})
    assert (await client.resume(handle.run_id, {"years": 36})).run_id == handle.run_id
    assert await waiting == ["ada", {"years": 36}]
    with pytest.raises(Conflict, match="succeeded"):
        await handle.resume("too late")
    with pytest.raises(InputError, match="JSON"):
        await handle.resume(object())


async def test_everything_known_of_a_run_is_the_same_by_both_ways(client, worker, system):
    handle = await client.submit("give_up", {"n": 1}, thread_id="t", metadata={"a": [1]}, tenant="acme")
    with pytest.raises(RunFailed):
        await handle.result(timeout=PATIENCE_SECONDS)
    known, stored = await handle.run(), await system.queue.get(handle.run_id)
    # Where it lies in Redis is nobody's business over HTTP.
    for name in sorted(set(Run.__struct_fields__) - {"lane", "entry", "thread_id"}):
        assert getattr(known, name) == getattr(stored, name), name
    assert known.thread_id == "t"


async def test_a_run_that_only_the_archive_has_is_known_and_unchangeable(client, archive):
    await archive(
        ArchivedRun(
            id="old", queue="agent-queue", agent="echo", status="succeeded", finished_at=9.0, result=b"7"
        ),
        ArchivedRun(
            id="bad", queue="agent-queue", agent="echo", status="failed", error=b'{"kind":"k","message":"no"}'
        ),
    )
    run = await client.handle("old").run()
    assert (run.status, run.result, run.finished_at) == (Status.SUCCEEDED, 7, 9.0)
    assert await client.handle("old").result() == 7
    with pytest.raises(RunFailed, match="k: no"):
        await client.handle("bad").result()
    with pytest.raises(EventsExpired, match="old"):
        await anext(client.handle("old").events())
    with pytest.raises(Conflict, match="already ended: succeeded"):
        await client.cancel("old")
    with pytest.raises(Conflict, match="only an interrupted run"):
        await client.resume("old", 1)
    with pytest.raises(Conflict, match="submit its input again"):
        await client.retry("bad")
    for call in (client.cancel("nobody"), client.resume("nobody"), client.retry("nobody")):
        with pytest.raises(NotFound, match="nobody"):
            await call


CANCELLED = ArchivedRun(
    id="gone",
    queue="agent-queue",
    agent="echo",
    status="cancelled",
    finished_at=9.0,
    error=b'{"kind":"cancelled","message":"too expensive"}',
)


async def test_an_archived_run_tells_why_it_was_cancelled(client, archive):
    await archive(CANCELLED)
    assert (await client.handle("gone").run()).cancel == "too expensive"
    with pytest.raises(RunCancelled, match="was cancelled: too expensive"):
        await client.handle("gone").result()


async def test_a_run_that_leaves_redis_while_it_is_waited_for_is_found_in_the_archive(
    client, archive, system, redis, monkeypatch
):
    monkeypatch.setattr(feed, "_BLOCK_SECONDS", 0.1)
    monkeypatch.setattr(hub, "_POLL_SECONDS", 0.1)
    handle = await client.submit("echo", 1)
    waiting = asyncio.create_task(handle.result(timeout=PATIENCE_SECONDS))
    await until(lambda: redis.info("clients"), lambda found: found["blocked_clients"])
    kept = ArchivedRun(
        id=handle.run_id, queue="agent-queue", agent="echo", status="succeeded", finished_at=9.0, result=b"7"
    )
    await archive(kept)
    await redis.delete(system.queue.keys.run(handle.run_id), system.queue.keys.feed(handle.run_id))
    assert await waiting == 7


async def test_events_are_the_same_by_both_ways(client, worker, system):
    handle = await client.submit("talk", ["é", {"a": [1, None]}, "two\nlines", "x" * 300_000])
    assert await handle.result(timeout=PATIENCE_SECONDS) == 4
    async with Client(settings=system.settings) as direct:
        stored = [event async for event in direct.handle(handle.run_id).events()]
    assert [event async for event in handle.events()] == stored


async def test_a_run_that_is_queued_again_is_followed_to_its_new_end(client, system):
    handle = await client.submit("echo", 1)
    await handle.cancel()
    assert [event.type async for event in handle.events()] == ["submitted", "cancelled"]
    await handle.retry()
    following = asyncio.create_task(_types(handle))
    await system.worker(app)
    assert await asyncio.wait_for(following, 20) == [
        "submitted",
        "cancelled",
        "replayed",
        "started",
        "succeeded",
    ]


async def _types(handle):
    return [event.type async for event in handle.events()]


async def test_what_can_not_be_an_events_id_is_refused(client, subtests):
    handle = await client.submit("echo", 1)
    for after in ("yesterday", "1-", "1-0\r\nX-Header: 1", ""):
        with subtests.test(repr(after)), pytest.raises(InputError, match="after"):
            await anext(handle.events(after=after))


async def test_events_of_nobody_are_not_found(client):
    with pytest.raises(NotFound, match="nobody"):
        await anext(client.handle("nobody").events())


async def test_leaving_the_events_early_leaves_nothing_behind(client, worker, system):
    handle = await client.submit("sleep")
    for _ in range(3):
        events = handle.events()
        assert (await anext(events)).type == "submitted"
        await events.aclose()
    await system.reaches(handle.run_id, Status.RUNNING)
    assert await client.cancel(handle.run_id) == "requested"


async def test_an_id_may_hold_any_printable_character(client, worker, subtests):
    for run_id in ("a/b", "a?b#c", "100%25", "..", "a+b&c=d", "{x}:'\"", "é".encode().hex(), "a/result/b"):
        with subtests.test(run_id):
            handle = await client.submit("echo", 1, run_id=run_id)
            assert handle.run_id == run_id
            assert await handle.result(timeout=PATIENCE_SECONDS) == 1
            assert (await client.handle(run_id).run()).id == run_id
            assert (await anext(handle.events())).type == "submitted"
            with pytest.raises(Conflict):
                await client.cancel(run_id)


# -- submitting


async def test_the_same_key_or_id_gives_the_same_run(client):
    first = await client.submit("echo", 1, idempotency_key="k")
    again = await client.submit("echo", 2, idempotency_key="k")
    assert (again.run_id, again.fresh) == (first.run_id, False)
    named = await client.submit("echo", 1, correlation_id="c")
    assert named.run_id == "c"
    assert not (await client.submit("echo", 1, run_id="c")).fresh
    assert (await named.run()).input == 1


async def test_a_handle_can_be_made_from_an_id(client, worker):
    handle = await client.submit("echo", 1)
    assert await client.handle(handle.run_id).result(timeout=PATIENCE_SECONDS) == 1
    with pytest.raises(NotFound, match="nobody"):
        await client.handle("nobody").result()
    with pytest.raises(NotFound, match="nobody"):
        await client.handle("nobody").cancel()
    with pytest.raises(NotFound, match="nobody"):
        await client.retry("nobody")


async def test_a_run_is_in_the_queue_that_was_named(client):
    handle = await client.submit("echo", 1, queue="media", priority="high")
    assert handle.queue == "media"
    assert (await handle.run()).queue == "media"
    assert await client.handle(handle.run_id, queue="media").status() is Status.QUEUED
    elsewhere = client.handle(handle.run_id, queue="even")
    for work in (
        elsewhere.status(),
        elsewhere.result(),
        elsewhere.cancel(),
        elsewhere.resume(),
        elsewhere.retry(),
    ):
        with pytest.raises(NotFound, match=handle.run_id):
            await work
    with pytest.raises(NotFound, match=handle.run_id):
        await anext(elsewhere.events())
    assert await handle.status() is Status.QUEUED


async def test_many_are_submitted_in_order_to_their_queues(client):
    handles = await client.submit_many(
        {"agent": "echo", "input": n, "queue": "even" if n % 2 == 0 else None} for n in range(6)
    )
    assert [(await handle.run()).input for handle in handles] == list(range(6))
    assert {(await handle.run()).queue for handle in handles} == {"even", "agent-queue"}
    assert await client.submit_many([]) == []


async def test_what_an_agent_submits_knows_its_parent(client, face):
    def script() -> str:
        with SyncClient(**face.here) as sync:
            return sync.submit("echo", 3).run_id

    with speaking_of({"run_id": "the/parent"}):
        handles = [await client.submit("echo", 1), *await client.submit_many([{"agent": "echo", "input": 2}])]
        handles.append(client.handle(await asyncio.to_thread(script)))
    handles.append(await client.submit("echo", 4))
    assert [(await handle.run()).parent for handle in handles] == [*["the/parent"] * 3, ""]


async def test_many_of_one_thread_are_accepted_in_their_order(client):
    wanted = [{"agent": "echo", "input": n, "thread_id": f"t{n % 3}"} for n in range(60)]
    runs = [await handle.run() for handle in await client.submit_many(wanted)]
    assert [run.input for run in runs] == list(range(60))
    for thread in ("t0", "t1", "t2"):
        asked = [run for run in runs if run.thread_id == thread]
        assert asked == sorted(asked, key=lambda run: run.submitted_at)


async def test_a_refusal_among_many_is_raised_or_returned(client):
    requests = [
        {"agent": "echo", "input": 1, "run_id": "fine"},
        {"agent": "echo", "input": "x" * 2_000_000},
    ]
    with pytest.raises(PayloadTooLarge) as caught:
        await client.submit_many(requests)
    assert caught.value.__notes__ == ["1 of 2 runs were accepted"]
    accepted, refused = await client.submit_many(requests, return_errors=True)
    assert (accepted.run_id, accepted.fresh) == ("fine", False)
    assert isinstance(refused, PayloadTooLarge)


MISTAKES = [
    {"agent": "echo", "priority": "urgent"},
    {"agent": "echo", "delay": -1},
    {"agent": "two words"},
    {"agent": "echo", "run_id": "two words"},
    {"agent": "echo", "queue": "two words"},
    {"agent": "echo", "webhook": "ftp://x"},
    {"agent": "echo", "bogus": 1},
    "echo",
]


async def test_each_of_many_has_its_handle_or_its_error_in_order(client):
    """Fails if a mistake in one request takes the answers to all others."""
    fine = [{"agent": "echo", "input": n, "queue": "even" if n % 2 == 0 else None} for n in range(3)]
    unwritable = {"agent": "echo", "input": object()}
    answers = await client.submit_many([fine[0], *MISTAKES, fine[1], unwritable, fine[2]], return_errors=True)
    refused = [answers.pop(at) for at in (10, *range(8, 0, -1))]
    assert [type(answer) for answer in refused] == [InputError] * 9
    named = ("input", "mapping", "bogus", "webhook", "queue", "run_id", "agent", "delay", "priority")
    assert all(word in str(answer) for word, answer in zip(named, refused, strict=True))
    assert [(await handle.run()).input for handle in answers] == [0, 1, 2]


async def test_nothing_is_sent_if_one_of_many_can_not_be_a_request(client, system, subtests):
    """Fails if those before it are accepted, and their handles lost."""
    for mistake in MISTAKES:
        with subtests.test(str(mistake)):
            with pytest.raises(InputError) as caught:
                await client.submit_many([{"agent": "echo"}, {"agent": "echo", "queue": "even"}, mistake])
            assert caught.value.__notes__ == ["it is number 3 of 3 requests; nothing was sent"]
            assert (await system.queue.depth()).depth == 0


async def test_each_of_many_has_its_error_if_the_system_is_away(face):
    async with Client(**face.away) as client:
        requests = [{"agent": "echo"}, {"agent": "echo", "queue": "even"}, {"agent": "two words"}]
        answers = await client.submit_many(requests, return_errors=True)
    assert [type(answer) for answer in answers] == [face.error, face.error, InputError]


async def test_a_script_has_an_answer_for_each_of_many(face, worker):
    def script():
        with SyncClient(**face.here) as client:
            requests = [{"agent": "echo", "input": 1}, {"agent": "echo", "priority": "urgent"}]
            handle, refused = client.submit_many(requests, return_errors=True)
            with pytest.raises(InputError, match="urgent"):
                client.submit_many(requests)
            return handle.result(timeout=PATIENCE_SECONDS), refused

    result, refused = await asyncio.to_thread(script)
    assert result == 1
    assert isinstance(refused, InputError)


async def test_a_paused_queue_refuses(client, system):
    await system.queue.pause()
    with pytest.raises(QueuePaused, match="queue 'agent-queue' is paused;"):
        await client.submit("echo", 1)


async def test_a_queue_that_is_closed_says_why(client, system):
    """Fails if only those who look at the queue are told the reason."""
    await system.queue.pause("db migration")
    with pytest.raises(QueuePaused, match=r"is paused \(db migration\);"):
        await client.submit("echo", 1)
    await system.queue.drain("moving")
    (refused,) = await client.submit_many([{"agent": "echo"}], return_errors=True)
    assert isinstance(refused, QueuePaused)
    assert "is draining (moving);" in str(refused)


REFUSED = [
    ({"agent": ""}, "agent"),
    ({"agent": 7}, "agent"),
    ({"input": object()}, "echo"),
    ({"input": {1j: 2}}, "input for agent 'echo'"),
    ({"metadata": {"k": object()}}, "metadata for agent 'echo'"),
    ({"logger_context": {"k": object()}}, "logger_context for agent 'echo'"),
    ({"client_id": "\ud800"}, "client_id for agent 'echo'"),
    ({"run_id": "two words"}, "run_id"),
    ({"run_id": "x" * 300}, "run_id"),
    ({"run_id": 5}, "run_id"),
    ({"run_id": "a", "correlation_id": "b"}, "correlation_id"),
    ({"idempotency_key": "ключ"}, "idempotency_key"),
    ({"priority": "urgent"}, "urgent"),
    ({"delay": -1}, "delay"),
    ({"delay": "soon"}, "soon"),
    ({"delay": math.inf}, "delay"),
    ({"delay": None}, "delay"),
    ({"delay": "100000d"}, "delay"),
    ({"timeout": 0}, "timeout"),
    ({"timeout": "never"}, "never"),
    ({"thread_id": None}, "thread_id"),
    ({"metadata": {1: 2}}, "metadata"),
    ({"metadata": "x"}, "metadata must be a mapping"),
    ({"push": "http://x"}, "push must be a mapping"),
    ({"webhook": "ftp://x"}, "webhook must be an http:// or https:// URL .* got 'ftp://x'"),
    ({"webhook": "http://"}, "webhook must be"),
    ({"webhook": "http://x\n"}, "webhook must be"),
    ({"webhook": "http://x/" + "y" * 2048}, "webhook must be"),
    ({"push": {"url": "x"}}, "push.url must be an http:// or https:// URL"),
    ({"push": {"url": object()}}, "push.url must be"),
    ({"push": {"token": "t"}}, "push.url must be"),
    ({"push": {"url": "http://x", "token": "two words"}}, "push.token must be"),
    ({"push": {"url": "http://x", "tokn": "t"}}, "push has 'tokn', which is not one of url, token"),
    ({"queue": "two words"}, "queue"),
    ({"queue": 7}, "queue must be text, got 7"),
    ({"queue": "{a}{b}"}, "queue"),
]


async def test_what_can_not_be_accepted_is_named(client, subtests):
    for options, named in REFUSED:
        with subtests.test(str(options)[:80]), pytest.raises(InputError, match=named):
            await client.submit(**{"agent": "echo", **options})


async def test_a_word_that_does_not_exist_is_a_type_error_that_tells_those_that_do(client, subtests):
    """Fails if what is said depends on what the word was given."""
    told = r"no option 'prority': it has agent, input, .* priority,"
    for value in ("high", 1, None):
        with subtests.test(repr(value)), pytest.raises(TypeError, match=told):
            await client.submit("echo", prority=value)


NO_REQUESTS = [
    ("a", "a request must be a mapping with the words of submit, got 'a'"),
    (None, "mapping .* got None"),
    ({"agent": "echo", "prority": "high"}, r"no option 'prority': it has agent, input, .* priority,"),
    ({"agent": "echo", "prority": 1}, "no option 'prority'"),
    ({"agent": "echo", 7: 1}, "no option 7"),
    ({"input": 1}, "agent"),
    ({"agent": "echo", "queue": 7}, "queue must be text, got 7"),
    ({"agent": "echo", "queue": ["a"]}, "queue must be text"),
]


async def test_a_request_among_many_that_is_none_is_named(client, subtests):
    for request, named in NO_REQUESTS:
        with subtests.test(str(request)), pytest.raises(InputError, match=named):
            await client.submit_many([request])


async def test_what_can_not_be_a_run_id_is_refused(client, subtests):
    for run_id in ("", "two words", "é"):
        with subtests.test(repr(run_id)), pytest.raises(InputError, match="run_id"):
            client.handle(run_id)


# -- connections


async def test_a_closed_client_says_how_to_open_it(face):
    client = Client(**face.here)
    with pytest.raises(HoldfastError, match="async with"):
        await client.submit("echo")


async def test_a_system_that_is_away_is_our_error(face):
    async with Client(**face.away) as client:
        for work in (
            client.submit("echo"),
            client.submit_many([{"agent": "echo"}]),
            client.handle("a").status(),
            client.handle("a").result(),
            client.handle("a").cancel(),
            client.handle("a").resume(1),
            client.retry("a"),
            anext(client.handle("a").events()),
        ):
            with pytest.raises(face.error) as caught:
                await work
            assert "secret" not in str(caught.value)
            assert "127.0.0.1" in str(caught.value)
            assert caught.value.retry_after > 0


# -- the sync face


async def test_a_script_submits_waits_and_follows(face, worker):
    def script():
        with SyncClient(**face.here) as client:
            handle = client.submit("talk", ["a"], priority="high")
            assert handle.result(timeout="30s") == 1
            assert handle.status() is Status.SUCCEEDED
            assert handle.run().agent == "talk"
            events = list(handle.events())
            many = client.submit_many([{"agent": "echo", "input": n} for n in range(3)])
            return [event.type for event in events], [each.result(timeout=PATIENCE_SECONDS) for each in many]

    events, results = await asyncio.to_thread(script)
    assert events == ["submitted", "started", "word", "succeeded"]
    assert results == [0, 1, 2]


async def test_a_script_sees_the_same_errors(face, worker):
    def script():
        with SyncClient(**face.here) as client:
            with pytest.raises(RunFailed, match="not with you"):
                client.submit("give_up", "you").result(timeout=PATIENCE_SECONDS)
            with pytest.raises(InputError, match="urgent"):
                client.submit("echo", priority="urgent")
            with pytest.raises(NotFound):
                client.handle("nobody").status()
            slow = client.submit("sleep", delay=60)
            with pytest.raises(ResultTimeout):
                slow.result(timeout=0.05)
            assert slow.cancel() == "cancelled"
            assert client.retry(slow.run_id).run_id == slow.run_id
            assert client.cancel(slow.run_id) in {"cancelled", "requested"}

    await asyncio.to_thread(script)


async def test_a_script_may_stop_following_early(face, worker):
    def script():
        with SyncClient(**face.here) as client:
            handle = client.submit("talk", ["a", "b"])
            for event in handle.events():
                if event.type == "word":
                    return event.data
        return None

    assert await asyncio.to_thread(script) == "a"


async def test_a_cell_of_a_notebook_runs_inside_an_event_loop(face, worker):
    """The mistake: closing it ran its loop on the caller's thread, where another one runs already."""

    async def cell():
        with SyncClient(**face.here) as client:
            handle = client.submit("talk", ["a", "b"])
            first = next(handle.events())  # the rest is never read
            return first.type, handle.result(timeout=30)

    assert await asyncio.to_thread(asyncio.run, cell()) == ("submitted", 2)


async def test_the_thread_of_a_sync_client_ends_with_it(face):
    def script():
        with SyncClient(**face.here) as client:
            client.submit("echo")

    await asyncio.to_thread(script)
    await until(lambda: not any(t.name == "holdfast-client" for t in threading.enumerate()))


async def test_who_waits_while_another_thread_closes_the_client_is_told(face):
    """The loop stopped under them: they waited for ever, and so did the end of the script."""
    with SyncClient(**face.here) as client:
        handle = await asyncio.to_thread(client.submit, "echo", delay=60)
        waiting = [asyncio.create_task(asyncio.to_thread(handle.result)) for _ in range(2)]
        waiting.append(asyncio.create_task(asyncio.to_thread(list, handle.events())))
        calls = client._thread._calls
        await until(lambda: len(calls) == len(waiting))
        await asyncio.to_thread(client.__exit__, None, None, None)
    done, late = await asyncio.wait(waiting, timeout=30)
    assert not late
    for task in done:
        with pytest.raises(HoldfastError, match=r"closed while a call waited|is closed"):
            task.result()


async def test_a_script_answers_a_run(face, worker, system):
    def script():
        with SyncClient(**face.here) as client:
            handle = client.submit("ask", ["a", "b"])
            for event in handle.events():
                if event.type == "interrupted" and event.data["index"] == 1:
                    client.resume(handle.run_id, 1)
                elif event.type == "interrupted":
                    handle.resume(2)
            return handle.result()

    assert await asyncio.to_thread(script) == [1, 2]


async def test_a_run_that_an_agent_submitted_names_its_parent(client, system):
    with speaking_of({"run_id": "the-parent"}):  # as inside of an agent
        await system.submit("child", run_id="the-child")
    assert (await client.handle("the-child").run()).parent == "the-parent"
