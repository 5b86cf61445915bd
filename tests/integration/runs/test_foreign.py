"""Entries of other producers: adopted if they can be read, dead-lettered with a reason if not, never in the way."""

from __future__ import annotations

import asyncio
import base64
import pickle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import App
from holdfast.errors import QueueFull
from holdfast.runs.deadletter import DeadLetters
from holdfast.runs.run import Status
from tests.support.runs.system import System
from tests.support.waiting import until


@pytest.fixture
def app() -> App:
    app = App("test")

    @app.agent
    async def echo(payload):
        return payload

    return app


@pytest.fixture
async def system(redis, redis_settings):
    async with System(redis_settings, slots=4, ttl=30.0) as system:
        yield system


def entry(message: bytes | str, run_id: str = "f1", agent: str = "echo") -> dict:
    return {
        "message_data": message,
        "agent_id": agent,
        "task_id": run_id,
        "timestamp": "1.5",
        "correlation_id": run_id,
    }


@pytest.mark.parametrize(
    ("message", "seen"),
    [
        ('{"input": {"a": 1}}', {"a": 1}),
        ('{"input": null}', None),
        ('{"pet_id": "p", "image_ids": ["i"]}', {"pet_id": "p", "image_ids": ["i"]}),
        ("[1, 2]", [1, 2]),
        ('"text"', "text"),
    ],
)
async def test_a_foreign_entry_is_adopted(system, app, message, seen):
    await system.queue.redis.xadd(system.queue.keys.stream, entry(message))
    await system.worker(app)
    run = await system.adopted("f1")
    assert (run.status, run.result) == (Status.SUCCEEDED, seen)
    assert (await system.events("f1"))[0] == "adopted"
    await system.nothing_left()


async def test_a_pickle_is_dead_lettered_with_that_reason_and_never_read(system, app):
    class Bomb:
        def __reduce__(self):
            return (exec, ("raise SystemExit",))

    await system.queue.redis.xadd(system.queue.keys.stream, entry(base64.b64encode(pickle.dumps(Bomb()))))
    await system.worker(app)
    run = await system.adopted("f1")
    assert (run.status, run.error.kind, run.attempt) == (Status.FAILED, "malformed", 1)
    assert "pickle" in run.error.message


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (b"\xff\xfe\x00", "not JSON"),
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "nested more than 200 levels deep"),
        (b'{"input": 1, "metadata": 5}', "metadata"),
        (b'{"input": 1, "timeout_seconds": "soon"}', "timeout_seconds"),
        (b'{"input": 1, "timeout_seconds": 1e300}', "timeout_seconds"),
        (b'{"input": 1, "timeout_seconds": -1}', "timeout_seconds"),
    ],
)
async def test_what_cannot_be_read_is_dead_lettered_and_the_worker_goes_on(
    system, app, message, named, redis
):
    await redis.xadd(system.queue.keys.stream, entry(message))
    await system.worker(app)
    run = await system.adopted("f1")
    assert (run.status, run.error.kind) == (Status.FAILED, "malformed")
    assert named in run.error.message
    assert await redis.xlen(system.queue.keys.deadletter) == 1
    assert (await system.ended(await system.submit("echo", 9))).result == 9


async def test_an_entry_with_no_field_we_know_is_dead_lettered(system, app, redis):
    entry_id = (await redis.xadd(system.queue.keys.stream, {"foo": "bar"})).decode()
    await system.worker(app)
    run = await system.adopted(f"entry-{entry_id}")
    assert (run.status, run.attempt) == (Status.FAILED, 1)
    assert "agent_id" in run.error.message


async def test_a_foreign_message_over_the_limit_is_dead_lettered(redis, redis_settings, app):
    async with System(redis_settings, max_payload_bytes=1000, ttl=30.0) as system:
        await redis.xadd(system.queue.keys.stream, entry('"' + "x" * 2000 + '"'))
        await system.worker(app)
        run = await system.adopted("f1")
        assert (run.status, run.error.kind) == (Status.FAILED, "malformed")
        assert "max_payload_bytes = 1000" in run.error.message


async def test_an_id_that_names_another_runs_feed_does_no_harm(system, app, redis):
    first = await system.submit("echo", 1, run_id="r")
    entry_id = (await redis.xadd(system.queue.keys.stream, entry('{"input":2}', run_id="r:events"))).decode()
    await system.worker(app)
    assert (await system.ended(first)).result == 1
    assert (await system.adopted(f"entry-{entry_id}")).result == 2


async def test_an_entry_without_an_agent_goes_to_the_queues_default_agent(redis, redis_settings, app):
    async with System(redis_settings, default_agent="echo", ttl=30.0) as system:
        entry_id = (await redis.xadd(system.queue.keys.stream, {"job_id": "j1", "reason": "new"})).decode()
        await system.worker(app)
        run = await system.adopted(f"entry-{entry_id}")
        assert run.result == {"job_id": "j1", "reason": "new"}


@pytest.mark.parametrize("expired", [False, True])
@pytest.mark.parametrize("replayed_by", ["one who knows the default agent", "one who does not"])
async def test_dead_letters_without_an_agent_are_replayed_once_there_is_a_default_agent(
    redis, redis_settings, system, app, replayed_by, expired
):
    entry_id = (await redis.xadd(system.queue.keys.stream, {"message_data": '{"input": 7}'})).decode()
    run_id = f"entry-{entry_id}"
    worker = await system.worker(app)
    assert (await system.adopted(run_id)).status is Status.FAILED
    await worker.stop()
    if expired:
        await redis.delete(system.queue.keys.run(run_id))
    same_store = system.settings.database
    async with System(redis_settings, default_agent="echo", ttl=30.0, database=same_store) as mended:
        by = mended if replayed_by == "one who knows the default agent" else system
        assert [letter.agent for letter in (await DeadLetters(by.queue).replay_all()).done] == [""]
        await mended.worker(app)
        run = await mended.ended(run_id)
        assert (run.status, run.result, run.agent) == (Status.SUCCEEDED, 7, "echo")


async def test_an_entry_whose_agent_is_empty_goes_to_the_default_agent(redis, redis_settings, app):
    async with System(redis_settings, default_agent="echo", ttl=30.0) as system:
        await redis.xadd(system.queue.keys.stream, entry('{"input": 7}', agent=""))
        await redis.xadd(system.queue.keys.stream, {"agent_id": "", "job": "j", "task_id": "f2"})
        await system.worker(app)
        run = await system.adopted("f1")
        assert (run.result, run.agent) == (7, "echo")
        run = await system.adopted("f2")
        assert (run.status, run.agent) == (Status.SUCCEEDED, "echo")


async def test_the_only_agent_of_an_app_can_be_the_default_agent(redis, redis_settings, app):
    async with System(redis_settings, default_agent="*", ttl=30.0) as system:
        await redis.xadd(system.queue.keys.stream, {"message_data": "7", "task_id": "f1"})
        await system.worker(app)
        run = await system.adopted("f1")
        assert (run.result, run.agent) == (7, "echo")


async def test_of_several_agents_none_is_the_default_by_itself(redis, redis_settings, app):
    app.register("other", lambda: None)
    async with System(redis_settings, default_agent="*", ttl=30.0) as system:
        await redis.xadd(system.queue.keys.stream, {"message_data": "7", "task_id": "f1"})
        await system.worker(app)
        run = await system.adopted("f1")
        assert (run.status, run.agent) == (Status.FAILED, "")
        assert "default_agent" in run.error.message


async def test_two_entries_with_one_correlation_id_are_one_execution(system, app):
    """The run's record is the lock on its correlation id: the second entry is dropped, whoever reads it."""
    runs, gate = [], asyncio.Event()

    @app.agent
    async def once(payload):
        runs.append(payload)
        await gate.wait()

    for n in range(3):
        await system.queue.redis.xadd(system.queue.keys.stream, entry(f'{{"input":{n}}}', agent="once"))
    await system.worker(app, "w1")
    await system.worker(app, "w2")
    await until(lambda: runs)
    await until(system.queue.depth, lambda found: found.depth <= 1)
    gate.set()
    await system.ended("f1")
    assert runs == [0]
    await system.nothing_left()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    entries=st.lists(
        st.dictionaries(
            st.one_of(
                st.sampled_from(["message_data", "agent_id", "task_id", "correlation_id", "timestamp"]),
                st.binary(min_size=1, max_size=8),
            ),
            st.one_of(
                st.binary(max_size=40),
                st.sampled_from([b"echo", b'{"input":1}', b"{}", b"x" * 300, b"a b", b"\x00"]),
            ),
            min_size=1,
            max_size=6,
        ),
        min_size=1,
        max_size=8,
    )
)
def test_no_entry_whatever_it_holds_stops_a_worker(valkey_server, redis_settings, entries):
    async def check() -> None:
        app = App("test")

        @app.agent
        async def echo(payload):
            return None

        async with System(redis_settings, slots=4, max_attempts=1, name="fuzz", ttl=30.0) as system:
            await system.queue.redis.flushall()
            await system.queue.ensure()
            for fields in entries:
                await system.queue.redis.xadd(system.queue.keys.stream, fields)
            worker = await system.worker(app)
            await until(system.queue.depth, lambda found: not found.depth)
            assert not worker.task.done()
            await system.nothing_left()

    asyncio.run(check())


async def test_a_second_entry_of_a_known_correlation_id_is_dropped_with_a_line(system, app, log_lines):
    redis, stream = system.queue.redis, system.queue.keys.stream
    await redis.xadd(stream, entry('{"input": 1}'))
    second = await redis.xadd(stream, entry('{"input": 2}'))
    await system.worker(app)
    assert (await system.adopted("f1")).result == 1
    (line,) = await until(
        lambda: [line for line in log_lines() if line["event"].startswith("duplicate entry dropped")]
    )
    assert (line["correlation_id"], line["message_id"]) == ("f1", second.decode())
    assert line["queue"] == system.queue.name


async def test_a_full_queue_names_how_many_runs_it_holds(redis, redis_settings):
    async with System(redis_settings, max_depth=2) as system:
        for number in range(5):  # whoever adds entries is not refused
            await system.queue.redis.xadd(system.queue.keys.stream, entry("1", run_id=f"f{number}"))
        with pytest.raises(QueueFull, match=r"holds 5 runs, its max_depth \(STREAM_MAXLEN\) is 2"):
            await system.submit("echo")
