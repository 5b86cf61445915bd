"""The run path on a real server: what is submitted is run, once, and told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import pytest

from holdfast import App, GiveUp, RetryLater
from holdfast.config import load
from holdfast.errors import Conflict, InputError, NotFound, PayloadTooLarge, QueueFull, QueuePaused
from holdfast.leases.keeper import Keeper
from holdfast.redis.members import Members
from holdfast.runs.execution.slots import Slots
from holdfast.runs.execution.worker import PartitionWorker, WorkerResources
from holdfast.runs.run import Priority, Status, Submission
from holdfast.services.connections import Connections
from holdfast.services.worker import WorkerProcess
from holdfast.telemetry.metrics import Metrics
from tests.support.runs.system import System
from tests.support.waiting import stays, until


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


async def test_a_run_is_performed_and_its_result_kept(system, app):
    run_id = await system.submit("echo", {"n": 1})
    await system.worker(app)
    run = await system.ended(run_id)
    assert (run.status, run.result, run.attempt, run.fence, run.owner) == (
        Status.SUCCEEDED,
        {"n": 1},
        1,
        1,
        "",
    )
    assert await system.events(run_id) == ["submitted", "started", "succeeded"]
    await system.nothing_left()


async def test_a_refused_result_and_a_run_that_is_not_begun_are_logged_by_all_their_names(system, log_lines):
    app, gate = App("test"), asyncio.Event()

    @app.agent(log_fields=["job.id"])
    async def waits(payload):
        await gate.wait()

    def submission(number: int) -> Submission:
        return Submission(agent="waits", input={"job": {"id": number}}, logger_context={"user": "ada"})

    poison = await system.queue.submit(submission(1))
    await system.queue.redis.hset(system.queue.keys.run(poison.run_id), mapping={"fence": 7, "attempt": 7})
    stale = await system.queue.submit(submission(2))
    await system.worker(app)
    await system.ended(poison.run_id)
    await system.reaches(stale.run_id, Status.RUNNING)
    await system.queue.redis.hincrby(system.queue.keys.run(stale.run_id), "fence", 1)
    gate.set()

    def line(event: str) -> dict | None:
        return next((line for line in log_lines() if line["event"].startswith(event)), None)

    for event, ticket, number in (("run failed", poison, 1), ("result refused", stale, 2)):
        said = await until(lambda event=event: line(event))
        names = ("correlation_id", "message_id", "agent_id", "id", "user", "platform")
        expected = [ticket.run_id, ticket.message_id, "waits", number, "ada", "redis-streams"]
        assert [said[name] for name in names] == expected
        assert said["duration_seconds"] >= 0


async def test_the_time_of_a_shutdown_phase_is_shown_while_it_lasts(system):
    """Fails if it is set at the phase's end: the process is gone before anybody scrapes that."""
    app, gate = App("test"), asyncio.Event()

    @app.agent
    async def waits(payload):
        await gate.wait()

    run_id = await system.submit("waits")
    worker = await system.worker(app, drain_seconds=600.0)
    await system.reaches(run_id, Status.RUNNING)

    def phase(number: str) -> float:
        registry = worker.process.metrics.registry
        return registry.get_sample_value("holdfast_shutdown_phase_seconds", {"kind": number}) or 0.0

    worker.process.request_stop()
    await until(lambda: phase("2") > 0)
    seen = phase("2")
    await until(lambda: phase("2") > seen)
    assert phase("3") == 0
    gate.set()
    await worker.stop()
    ended = {number: phase(number) for number in "123"}
    assert min(ended.values()) > 0
    assert ended == {number: phase(number) for number in "123"}, "what is over does not go on"


async def test_a_workers_record_says_at_once_that_it_has_work(redis, redis_settings):
    """Else a scale-in takes it for an idle one until its next heartbeat, here in an hour."""
    app = App("test")

    @app.agent
    async def waits(payload):
        await asyncio.Event().wait()

    async with System(redis_settings, ttl=30.0, heartbeat=3600.0) as system:
        await system.worker(app, name="w")
        members = Members.of(system.settings)

        async def load() -> str:
            member = await members.find(redis, "worker", "w")
            return member.fields["load"] if member else ""

        assert await load() == "0"
        await system.submit("waits")
        await until(load, lambda found: found == "1")


async def test_an_idle_worker_starts_a_run_at_once(redis, redis_settings, app):
    """A run ends the worker's blocked read of a minute."""
    async with System(redis_settings, slots=4, block_ms=60_000, ttl=30.0) as system:
        await system.worker(app)
        for n in range(5):
            run = await system.ended(await system.submit("echo", n))
            assert run.result == n
            assert run.started_at - run.submitted_at < 10


async def test_an_ended_run_has_its_time_to_leave(system, app, redis):
    run_id = await system.submit("echo")
    await system.worker(app)
    await system.ended(run_id)
    keys = system.queue.keys
    leaves = await redis.zscore(keys.ended, run_id) / 1000
    assert 86300 < leaves - (await redis.time())[0] <= 86401


async def test_what_an_agent_emits_is_in_the_feed_in_order(system, app):
    @app.agent
    async def talk(ctx, payload):
        for n in range(20):
            await ctx.emit("word", n)
        await ctx.stream("chunk")

    run_id = await system.submit("talk")
    await system.worker(app)
    await system.ended(run_id)
    assert await system.events(run_id) == ["submitted", "started", *["word"] * 20, "chunk", "succeeded"]


async def test_an_agent_cannot_emit_the_systems_own_words(system, app):
    @app.agent(max_attempts=1)
    async def liar(ctx):
        await ctx.emit("succeeded", None)

    run_id = await system.submit("liar")
    await system.worker(app)
    run = await system.ended(run_id)
    assert run.status is Status.FAILED
    assert "'succeeded'" in run.error.message


async def test_a_sync_agent_runs_in_a_thread(system, app):
    @app.agent
    def where(ctx, payload):
        ctx.emit("here", threading.current_thread().name)
        return threading.current_thread() is threading.main_thread()

    run_id = await system.submit("where")
    await system.worker(app)
    assert (await system.ended(run_id)).result is False
    assert "here" in await system.events(run_id)


# -- failures


async def test_a_failing_run_is_retried_and_then_given_up(system, app, redis):
    @app.agent(max_attempts=3)
    async def broken(payload):
        raise RuntimeError("always")

    run_id = await system.submit("broken", {"keep": "me"})
    await system.worker(app)
    run = await system.ended(run_id)
    assert (run.status, run.attempt, run.error.message) == (Status.FAILED, 3, "RuntimeError: always")
    assert (await system.events(run_id)).count("retrying") == 2
    ((_, letter),) = await redis.xrange(system.queue.keys.deadletter)
    assert letter[b"run_id"].decode() == run_id
    assert letter[b"attempts"] == b"3"
    assert json.loads(letter[b"message_data"])["input"] == {"keep": "me"}
    await system.nothing_left()


async def test_a_run_that_gives_up_is_not_retried(system, app):
    @app.agent
    async def hopeless(payload):
        raise GiveUp("no such customer")

    run_id = await system.submit("hopeless")
    await system.worker(app)
    run = await system.ended(run_id)
    assert (run.status, run.attempt) == (Status.FAILED, 1)


async def test_a_flaky_run_succeeds_in_the_end(system, app):
    @app.agent
    async def flaky(ctx, payload):
        if ctx.attempt < 3:
            raise ConnectionError("not yet")
        return ctx.attempt

    run_id = await system.submit("flaky")
    await system.worker(app)
    assert (await system.ended(run_id)).result == 3


async def test_retry_later_is_honoured(system, app):
    @app.agent
    async def busy(ctx, payload):
        if ctx.attempt == 1:
            raise RetryLater(after=0.4)

    run_id = await system.submit("busy")
    await system.worker(app)
    run = await system.ended(run_id)
    assert run.status is Status.SUCCEEDED
    assert run.started_at - run.submitted_at >= 0.4


async def test_a_run_that_takes_too_long_is_timed_out_told_and_dead_lettered(system, app, redis):
    @app.agent(timeout=0.1)
    async def slow(payload):
        await asyncio.Event().wait()

    run_id = await system.submit("slow")
    await system.worker(app)
    run = await system.ended(run_id)
    assert run.status is Status.TIMED_OUT
    assert (await system.events(run_id))[-1] == "timed_out"
    ((_, letter),) = await redis.xrange(system.queue.keys.deadletter)
    assert letter[b"reason"] == b"timed_out"


DEADLINES = {
    "the queue's": ("100ms", None, None),
    "the agent's, shorter": ("1h", 0.1, None),
    "the agent's, longer": ("50ms", 0.1, None),
    "the run's, shorter": ("1h", 3600, 0.1),
    "the run's, longer": ("50ms", 0.05, 0.1),
}
"""Whose counts, and how long the queue, the agent and the run give."""


@pytest.mark.parametrize("whose", DEADLINES)
async def test_the_deadline_is_the_runs_own_or_its_agents_or_the_queues(redis, redis_settings, app, whose):
    """Fails if MESSAGE_LOCK_DURATION ends no run, or one whose agent or producer said how long it may take."""
    of_queue, of_agent, of_run = DEADLINES[whose]
    seconds = load(environ={"MESSAGE_LOCK_DURATION": of_queue}).settings.queue.timeout_seconds

    @app.agent(timeout=of_agent)
    async def slow(payload):
        await asyncio.Event().wait()

    async with System(redis_settings, timeout_seconds=seconds, ttl=30.0) as system:
        await system.worker(app)
        run_id = await system.submit("slow", timeout_seconds=of_run)
        run = await system.ended(run_id)
        assert (run.status, run.attempt, run.error.kind) == (Status.TIMED_OUT, 1, "timed_out")
        assert run.error.message == "agent 'slow' did not end within 0.1 s"
        assert await system.events(run_id) == ["submitted", "started", "timed_out"]
        ((_, letter),) = await redis.xrange(system.queue.keys.deadletter)
        assert (letter[b"run_id"], letter[b"reason"]) == (run_id.encode(), b"timed_out")


async def test_a_result_that_is_not_json_fails_the_run_with_its_name(system, app):
    @app.agent
    async def odd(payload):
        return object()

    run_id = await system.submit("odd")
    await system.worker(app)
    run = await system.ended(run_id)
    assert run.status is Status.FAILED
    assert "result of agent 'odd'" in run.error.message


@pytest.mark.parametrize("way", ["result", "event", "chunk", "state", "step", "question"])
async def test_a_number_that_json_has_not_fails_the_run_with_its_place(system, app, way):
    """Fails if it is written as null: whoever reads it is told something else than was said."""

    @app.agent
    async def odd(ctx, _):
        value = {"scores": [1.0, None, float("nan")]}
        ways = {
            "event": lambda: ctx.emit("scored", value),
            "chunk": lambda: ctx.stream(value),
            "state": lambda: ctx.state.set("scores", value),
            "step": lambda: ctx.step("score", lambda: value),
            "question": lambda: ctx.interrupt(value),
        }
        if way in ways:
            await ways[way]()
        return value

    run_id = await system.submit("odd")
    await system.worker(app)
    run = await system.ended(run_id)
    assert (run.status, run.attempt, run.error.kind) == (Status.FAILED, 1, "invalid")
    assert "can't be written as JSON: $.scores[2] is nan" in run.error.message


async def test_a_result_that_was_not_awaited_is_told_by_its_name(system):
    app = App("test")

    @app.agent
    async def hasty(ctx):
        return {"answer": ctx.interrupt("may I?")}

    run_id = await system.submit("hasty")
    await system.worker(app)
    run = await system.ended(run_id)
    assert (run.status, run.attempt, run.error.kind) == (Status.FAILED, 1, "invalid")
    told = "result of agent 'hasty' holds the coroutine Context.interrupt at $.answer: did you forget await?"
    assert run.error.message == told


async def test_an_input_with_a_number_that_json_has_not_is_refused(system):
    with pytest.raises(InputError, match=r"input for agent 'echo' can't be written .* \$\.n is inf"):
        await system.submit("echo", {"n": float("inf")})
    with pytest.raises(InputError, match=r"metadata for agent 'echo' can't be written .* \$\.n is nan"):
        await system.submit("echo", 1, metadata={"n": float("nan")})
    run_id = await system.submit("echo", 1, delay_seconds=60)
    with pytest.raises(InputError, match=r"the answer to run .* \$ is nan"):
        await system.queue.resume_run(run_id, float("nan"))


async def test_a_result_over_the_limit_fails_the_run(redis, redis_settings, app):
    async with System(redis_settings, max_payload_bytes=1000, ttl=30.0) as system:

        @app.agent
        async def huge(payload):
            return "x" * 2000

        run_id = await system.submit("huge")
        await system.worker(app)
        run = await system.ended(run_id)
        assert "max_payload_bytes" in run.error.message


async def test_an_unknown_agent_is_tried_elsewhere_and_then_given_up_by_name(redis, redis_settings, app):
    async with System(redis_settings, max_attempts=2, ttl=30.0) as system:
        run_id = await system.submit("nobody")
        await system.worker(app)
        run = await system.ended(run_id)
        assert (run.status, run.error.kind, run.attempt) == (Status.FAILED, "unknown_agent", 2)
        assert "nobody" in run.error.message
        assert "echo" in run.error.message


async def test_system_exit_in_an_agent_fails_its_run_and_not_the_worker(system, app):
    @app.agent(max_attempts=1)
    async def leaver(payload):
        raise SystemExit(3)

    failed = await system.submit("leaver")
    await system.worker(app)
    assert (await system.ended(failed)).status is Status.FAILED
    assert (await system.ended(await system.submit("echo", 1))).result == 1


# -- idempotency, lanes, delay


async def test_the_same_run_id_is_the_same_run(system, app):
    first = await system.queue.submit(Submission(agent="echo", run_id="order-7"))
    second = await system.queue.submit(Submission(agent="echo", run_id="order-7"))
    assert (first.fresh, second.fresh, second.run_id) == (True, False, "order-7")
    assert (await system.queue.depth()).undelivered == 1


async def test_a_run_that_has_ended_is_known_with_its_status(system, app):
    await system.worker(app)
    await system.ended(await system.submit("echo", run_id="done"))
    ticket = await system.queue.submit(Submission(agent="echo", run_id="done"))
    assert (ticket.fresh, ticket.status) == (False, Status.SUCCEEDED)


async def test_the_same_idempotency_key_is_the_same_run(system, app):
    first = await system.queue.submit(Submission(agent="echo", idempotency_key="k"))
    second = await system.queue.submit(Submission(agent="echo", idempotency_key="k"))
    assert second.run_id == first.run_id
    assert not second.fresh


async def test_a_key_stands_for_its_run_as_long_as_that_is_known(redis, redis_settings):
    """Fails if it is forgotten when ended runs are: a long run was begun a second time while the first one went on."""
    async with System(redis_settings, retention_seconds=1.0, ttl=30.0) as system:
        key = {"agent": "echo", "idempotency_key": "k"}
        first = await system.queue.submit(Submission(**key))
        assert await redis.pttl(f"{system.queue.keys.idempotency_prefix}k") > 60_000
        await redis.delete(system.queue.keys.run(first.run_id), system.queue.keys.feed(first.run_id))
        again = await system.queue.submit(Submission(**key))
        assert (again.fresh, again.run_id == first.run_id) == (True, False)
        assert (await system.queue.submit(Submission(**key))).run_id == again.run_id


async def test_a_key_used_twice_in_one_batch_is_one_run(system):
    tickets = await system.queue.submit_many(
        [Submission(agent="echo", idempotency_key="k") for _ in range(3)]
    )
    assert len({ticket.run_id for ticket in tickets}) == 1
    assert [ticket.fresh for ticket in tickets] == [True, False, False]


async def test_urgent_runs_go_first(redis, redis_settings, app):
    async with System(redis_settings, slots=1, ttl=30.0) as system:
        order: list[str] = []

        @app.agent
        async def note(payload):
            order.append(payload)

        for name, priority in (("l", Priority.LOW), ("n", Priority.NORMAL), ("h", Priority.HIGH)):
            await system.submit("note", name, priority=priority)
        await system.worker(app)
        await until(lambda: len(order) == 3)
        assert order == ["h", "n", "l"]


async def test_no_lane_starves_beside_the_others(redis, redis_settings, app):
    async with System(redis_settings, slots=1, ttl=30.0) as system:
        order: list[str] = []

        @app.agent
        async def note(payload):
            order.append(payload)

        for lane in ("low", "normal", "high"):
            await system.queue.submit_many(
                [Submission(agent="note", input=lane, priority=Priority(lane)) for _ in range(80)]
            )
        await system.worker(app)
        await until(lambda: len(order) >= 80)
        early = order[:80]
        assert early.count("high") > early.count("normal") > 0
        assert early.count("low") > 0


async def test_a_flood_of_urgent_runs_does_not_starve_the_low_lane(redis, redis_settings, app):
    async with System(redis_settings, slots=1, ttl=30.0) as system:
        order: list[str] = []

        @app.agent
        async def note(payload):
            order.append(payload)

        await system.submit("note", "low", priority=Priority.LOW)
        await system.queue.submit_many(
            [Submission(agent="note", input="high", priority=Priority.HIGH) for _ in range(60)]
        )
        await system.worker(app)
        await until(lambda: len(order) == 61)
        assert order.index("low") < 30


async def test_a_delayed_run_starts_when_it_is_due(system, app):
    run_id = await system.submit("echo", 1, delay_seconds=1.0)
    assert (
        await system.queue.get(run_id)
    ).status is Status.DELAYED  # it may be over before a worker is there
    await system.worker(app)
    run = await system.ended(run_id)
    assert run.started_at >= run.due_at == pytest.approx(run.submitted_at + 1.0, abs=0.01)


# -- agents that ignore their stop


class Stubborn:
    """Async agents that ignore being stopped until they may end, and how many of them are at it."""

    def __init__(self, app: App) -> None:
        self.may_end = asyncio.Event()
        self.bodies: list[int] = []

        @app.agent
        async def stubborn(ctx, payload):
            self.bodies.append(ctx.fence)
            while not self.may_end.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await self.may_end.wait()
            self.bodies.remove(ctx.fence)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.may_end.set()
        await until(lambda: not self.bodies)


async def test_a_run_that_a_draining_worker_hands_back_is_not_logged_as_completed(
    redis_settings, app, log_lines
):
    @app.agent
    async def waits(payload):
        await asyncio.Event().wait()

    slow = System(redis_settings, slots=2, stop_grace_seconds=60.0, ttl=90.0, drain=0.1)
    async with slow as system, Stubborn(app) as stubborn:
        worker = await system.worker(app, progress_seconds=0.1)
        for agent in ("waits", "stubborn"):
            await system.reaches(await system.submit(agent), Status.RUNNING)
        worker.process.request_stop()

        def of_one_run() -> list[dict]:
            return [line for line in log_lines() if line.get("active_count") == 1]

        first = (await until(of_one_run))[0]
        assert (first["event"], first["completed"]) == ("waiting for runs", 0)
        stubborn.may_end.set()
        await asyncio.wait_for(worker.task, 30)


async def test_every_event_that_a_worker_writes_is_counted(system, app):
    """Fails if only those are counted that agents emit."""
    tries: list[int] = []

    @app.agent
    async def says(ctx, payload=None):
        await ctx.emit("hello", 1)
        tries.append(ctx.attempt)
        if len(tries) == 1:
            raise RetryLater("once more", after=0.01)

    worker = await system.worker(app)
    queue = system.settings.queue.name
    runs = [await system.submit("says"), await system.submit("echo", 1, delay_seconds=0.01)]
    for run_id in runs:
        await system.ended(run_id)
    kinds = [kind for run_id in runs for kind in await system.events(run_id)]
    assert {"retrying", "queued", "hello"} <= set(kinds)
    written = len(kinds) - kinds.count("submitted")  # this is counted by whoever submits
    await until(lambda: sample(worker, "events_appended_total", queue=queue), lambda count: count == written)


async def test_the_events_of_what_a_worker_gives_back_are_counted(system, app):
    """Fails if only the runs count that it knows of: the answers to these claims were lost."""
    settings, metrics = system.settings, Metrics()
    async with Connections(settings) as connections:
        keeper = Keeper(settings.lease, connections.for_keeper, metrics)
        resources = WorkerResources(
            app=app,
            lease=settings.lease,
            owner="w",
            keeper=keeper,
            metrics=metrics,
            store=connections.store,
            open_reader=connections.blocking,
            threads=ThreadPoolExecutor(1),
        )
        worker = PartitionWorker(resources, system.queue.partitions[0], Slots(settings.queue, metrics))
        await worker.join(None)
        run_id = await system.submit("echo", 1)
        for number, give_back in enumerate((worker.claim_loop._return_unattended, worker.leave), 1):
            assert (await worker.claimer.claim(1, [])).runs
            await give_back()
            assert await system.events(run_id) == ["submitted", *["started", "handed_back"] * number]
            labels = {"queue": settings.queue.name}
            assert metrics.registry.get_sample_value("holdfast_events_appended_total", labels) == number


def sample(worker, name: str, **labels: str) -> float | None:
    return worker.process.metrics.registry.get_sample_value(f"holdfast_{name}", labels)


@pytest.mark.parametrize("stop", ["deadline", "cancel"])
async def test_a_run_ends_though_its_agent_ignores_its_stop(redis, redis_settings, app, stop, log_lines):
    """Fails without a grace: such a run is never settled, and its worker holds its lease for ever."""
    brief = System(redis_settings, slots=2, stop_grace_seconds=0.05, ttl=30.0)
    async with brief as system, Stubborn(app) as stubborn:
        worker = await system.worker(app)
        run_id = await system.submit("stubborn", timeout_seconds=0.1 if stop == "deadline" else None)
        await until(lambda: stubborn.bodies)
        if stop == "cancel":
            await system.queue.cancel(run_id, "enough")
        run = await system.ended(run_id)
        assert run.status is {"deadline": Status.TIMED_OUT, "cancel": Status.CANCELLED}[stop]
        assert await redis.xlen(system.queue.keys.deadletter) == (stop == "deadline")
        partition = worker.process.workers[0]
        await until(lambda: partition.lingering)
        assert partition.slots.permits.free == 1
        assert sample(worker, "bodies_lingering", queue="agent-queue") == 1
        assert sample(worker, "runs_abandoned_total", queue="agent-queue", agent="stubborn") == 1
        (line,) = [line for line in log_lines() if "ignored its stop" in line["event"]]
        assert (line["agent"], line["run_id"], line["slots"]) == ("stubborn", run_id, 2)
        assert (await system.ended(await system.submit("echo", 1))).result == 1
        stubborn.may_end.set()
        await until(lambda: partition.slots.permits.free == 2)
        assert sample(worker, "bodies_lingering", queue="agent-queue") == 0


async def test_a_claim_that_redis_has_lost_gives_no_fence_to_two_bodies(redis, redis_settings, app):
    """A restart may lose the last writes. Fails if what is claimed again begins beside the body that we have."""
    bodies, ended = [], []

    @app.agent
    async def slow(ctx, payload):
        bodies.append(ctx.fence)
        if len(bodies) == 1:
            await asyncio.Event().wait()
        ended.append(ctx.fence)

    async with System(redis_settings, slots=4, ttl=30.0) as system:
        worker = await system.worker(app)
        keys, group = system.queue.keys, system.queue.settings.group
        run_id = await system.submit("slow")
        await until(lambda: bodies)
        await redis.hset(keys.run(run_id), "status", "queued")
        await redis.hdel(keys.run(run_id), "fence", "attempt", "owner", "started_at")
        await redis.xgroup_delconsumer(keys.stream, group, worker.process.name)
        await redis.execute_command("XGROUP", "SETID", keys.stream, group, "0")
        await system.submit("echo", 1)  # wakes the worker
        assert (await system.ended(run_id)).status is Status.SUCCEEDED
        assert not worker.task.done()
    assert len(bodies) == len(set(bodies)) == 2
    assert ended == [bodies[-1]]


async def test_a_replay_beside_the_body_that_lingers_has_a_fence_of_its_own(redis, redis_settings, app):
    brief = System(redis_settings, slots=2, stop_grace_seconds=0.05, ttl=30.0)
    async with brief as system, Stubborn(app) as stubborn:
        await system.worker(app)
        run_id = await system.submit("stubborn", timeout_seconds=0.1)
        await system.ended(run_id)
        await system.queue.replay(run_id)
        await until(lambda: len(stubborn.bodies) == 2)
        assert stubborn.bodies == [1, 2]
        stubborn.may_end.set()
        await system.ended(run_id)


async def test_a_worker_leaves_without_an_agent_that_lingers(redis, redis_settings, app):
    """Its task would keep the process for ever: the event loop waits for it when it closes."""
    brief = System(redis_settings, slots=2, stop_grace_seconds=0.05, ttl=30.0)
    async with brief as system, Stubborn(app):
        left: list[int] = []
        process = WorkerProcess(system.settings, app, abandon=lambda: left.append(1))
        task = asyncio.create_task(process.run())
        await system.ended(await system.submit("stubborn", timeout_seconds=0.1))
        await until(lambda: process.workers[0].lingering)
        process.request_stop()
        await asyncio.wait_for(task, 30)
        assert left == [1]


# -- cancel


async def test_a_queued_run_is_cancelled_and_never_started(system, app):
    run_id = await system.submit("echo")
    assert await system.queue.cancel(run_id, "changed my mind") == "cancelled"
    await system.worker(app)
    assert (await system.ended(await system.submit("echo", 2))).result == 2
    run = await system.queue.get(run_id)
    assert (run.status, run.attempt) == (Status.CANCELLED, 0)
    assert await system.events(run_id) == ["submitted", "cancelled"]
    await system.nothing_left()


async def test_a_delayed_run_is_cancelled(system):
    run_id = await system.submit("echo", delay_seconds=60)
    await system.queue.cancel(run_id)
    assert (await system.queue.get(run_id)).status is Status.CANCELLED
    assert (await system.queue.depth()).delayed == 0


async def test_a_running_run_is_cancelled_at_once(redis, redis_settings, app):
    @app.agent
    async def endless(payload):
        await asyncio.Event().wait()

    async with System(redis_settings, ttl=240.0) as system:
        run_id = await system.submit("endless")
        await system.worker(app)
        await system.reaches(run_id, Status.RUNNING)
        await until(lambda: redis.pubsub_numsub(system.queue.keys.control), lambda found: found[0][1])
        assert await system.queue.cancel(run_id, "enough") == "requested"
        async with asyncio.timeout(20):  # by the channel: the lease's beat alone comes after ttl/4 = 60 s
            run = await system.ended(run_id)
    assert (run.status, run.error.message) == (Status.CANCELLED, "enough")


async def test_a_cancel_that_the_channel_missed_comes_with_the_lease_beat(redis, redis_settings, app):
    @app.agent
    async def endless(payload):
        await asyncio.Event().wait()

    async with System(redis_settings, ttl=4.0) as system:
        run_id = await system.submit("endless")
        await system.worker(app)
        await system.reaches(run_id, Status.RUNNING)
        await redis.hset(system.queue.keys.run(run_id), "cancel", "quietly")
        assert (await system.ended(run_id)).status is Status.CANCELLED


async def test_what_has_ended_cannot_be_cancelled(system, app):
    run_id = await system.submit("echo")
    await system.worker(app)
    await system.ended(run_id)
    with pytest.raises(Conflict, match="succeeded"):
        await system.queue.cancel(run_id)
    with pytest.raises(NotFound):
        await system.queue.cancel("nothing")


async def test_a_cancel_that_meets_a_failing_attempt_ends_the_run(system, app):
    """Without a look at the cancel in settle, the run would wait for its backoff and then be cancelled."""
    asked = asyncio.Event()

    @app.agent
    async def failing(ctx):
        await asked.wait()
        raise RetryLater("busy", after=600)

    run_id = await system.submit("failing")
    await system.worker(app)
    await system.reaches(run_id, Status.RUNNING)
    await system.queue.redis.hset(system.queue.keys.run(run_id), "cancel", "never mind")
    asked.set()
    run = await system.ended(run_id)
    assert (run.status, run.attempt) == (Status.CANCELLED, 1)
    await system.nothing_left()


# -- gate and limits


async def test_a_paused_queue_takes_and_starts_nothing_until_resumed(system, app):
    run_id = await system.submit("echo", 1)
    await system.queue.pause("deploying")
    with pytest.raises(QueuePaused, match="paused"):
        await system.submit("echo")
    await system.worker(app)

    async def is_queued() -> bool:
        return (await system.queue.get(run_id)).status is Status.QUEUED

    await stays(is_queued, seconds=0.3)
    assert (await system.queue.gate()).reason == "deploying"
    await system.queue.resume()
    assert (await system.ended(run_id)).result == 1


async def test_pausing_a_queue_whose_worker_is_blocked_in_a_read_loses_nothing(redis, redis_settings, app):
    async with System(redis_settings, slots=4, block_ms=60_000, ttl=30.0) as system:
        await system.worker(app)
        await system.ended(await system.submit("echo"))
        await system.queue.pause()
        # Between two reads it would find the entry only after we have seen that nobody has it.
        await until(lambda: redis.info("clients"), lambda found: found["blocked_clients"])
        # A foreign producer does not ask the gate: its entry wakes the blocked reader of a paused queue.
        fields = {
            "message_data": '{"input":5}',
            "agent_id": "echo",
            "task_id": "f1",
            "timestamp": "1",
            "correlation_id": "f1",
        }
        await redis.xadd(system.queue.keys.stream, fields)

        async def left_there() -> bool:
            depth = await system.queue.depth()
            return (depth.undelivered, depth.pending) == (1, 0)

        # The reader that it woke hands it back.
        await until(left_there)
        await stays(left_there, seconds=0.3)
        await system.queue.resume()
        assert (await system.adopted("f1")).result == 5


async def test_a_draining_queue_works_off_what_it_has_and_takes_no_more(system, app):
    run_id = await system.submit("echo", 1)
    await system.queue.drain()
    with pytest.raises(QueuePaused, match="draining"):
        await system.submit("echo")
    await system.worker(app)
    assert (await system.ended(run_id)).result == 1


async def test_a_full_queue_refuses_instead_of_trimming(redis, redis_settings):
    async with System(redis_settings, max_depth=3, ttl=30.0) as system:
        tickets = await system.queue.submit_many([Submission(agent="echo") for _ in range(5)])
        assert [isinstance(ticket, QueueFull) for ticket in tickets] == [False, False, False, True, True]
        assert tickets[4].retry_after > 0
        assert await redis.xlen(system.queue.keys.stream) == 3


async def test_a_worker_never_holds_more_than_it_has_slots(redis, redis_settings, app):
    async with System(redis_settings, slots=3, ttl=30.0) as system:
        going, most, full = 0, 0, asyncio.Event()

        @app.agent
        async def count(payload):
            nonlocal going, most
            going += 1
            most = max(most, going)
            if most == 3:
                full.set()
            await full.wait()
            await asyncio.sleep(0.01)  # one too many would meet the others
            going -= 1

        await system.queue.submit_many(
            [
                Submission(agent="count", priority=p)
                for p in (Priority.HIGH, Priority.NORMAL, Priority.LOW)
                for _ in range(20)
            ]
        )
        await system.worker(app)
        seen = []
        await until(system.queue.depth, lambda depth: seen.append(depth.pending) or not depth.depth)
        assert max(seen) <= 3
        assert most == 3


async def test_max_pending_caps_what_a_worker_holds(redis, redis_settings, app):
    async with System(redis_settings, slots=10, max_pending=2, ttl=30.0) as system:
        gate = asyncio.Event()

        @app.agent
        async def wait(payload):
            await gate.wait()

        await system.queue.submit_many([Submission(agent="wait") for _ in range(8)])
        worker = await system.worker(app)
        await until(lambda: len(worker.process.running()) == 2)

        async def holds_two() -> bool:
            return (await system.queue.depth()).pending == 2

        await stays(holds_two, seconds=0.2)
        gate.set()


async def test_too_large_a_message_is_refused_by_name(redis, redis_settings):
    async with System(redis_settings, max_payload_bytes=100, ttl=30.0) as system:
        with pytest.raises(PayloadTooLarge, match="max_payload_bytes = 100"):
            await system.submit("echo", "x" * 200)


@pytest.mark.parametrize(
    ("submission", "named"),
    [
        ({"agent": ""}, "agent"),
        ({"agent": "\udcff"}, "agent"),
        ({"agent": "x" * 300}, "agent"),
        ({"agent": "two words"}, "agent"),
        ({"agent": "a", "run_id": "has space"}, "run_id"),
        ({"agent": "a", "run_id": "x" * 300}, "run_id"),
        ({"agent": "a", "idempotency_key": "ü"}, "idempotency_key"),
        ({"agent": "a", "input": object()}, "input for agent 'a'"),
        ({"agent": "a", "metadata": {"k": object()}}, "metadata for agent 'a'"),
        ({"agent": "a", "logger_context": {"k": object()}}, "logger_context for agent 'a'"),
        ({"agent": "a", "client_id": "\udcff"}, "client_id for agent 'a'"),
        ({"agent": "a", "run_id": "x:events"}, "':events'"),
        ({"agent": "a", "webhook": "ftp://x"}, "webhook must be an http:// or https:// URL"),
        ({"agent": "a", "timeout_seconds": 0}, "timeout_seconds"),
        ({"agent": "a", "timeout_seconds": 1e300}, "timeout_seconds"),
        ({"agent": "a", "delay_seconds": -1}, "delay_seconds"),
        ({"agent": "a", "delay_seconds": float("nan")}, "delay_seconds"),
    ],
)
async def test_bad_submissions_are_refused_by_name(system, submission, named):
    with pytest.raises(InputError, match=named):
        await system.queue.submit(Submission(**submission))
    assert (await system.queue.depth()).depth == 0


async def test_a_bad_submission_does_not_spoil_its_batch(system):
    good, bad, also_good = await system.queue.submit_many(
        [Submission(agent="a"), Submission(agent="\udcff"), Submission(agent="a")]
    )
    assert isinstance(bad, InputError)
    assert good.fresh
    assert also_good.fresh


async def test_a_worker_without_runs_is_idle(redis, redis_settings):
    app, going = App("test"), asyncio.Event()

    @app.agent
    async def waits():
        await going.wait()

    async def states() -> list[str]:
        return [member.fields["state"] for member in await Members.of(system.settings).all(redis)]

    async with System(redis_settings) as system:
        await system.worker(app)
        await until(states, lambda found: found == ["idle"])
        run_id = await system.submit("waits")
        await until(states, lambda found: found == ["working"])
        going.set()
        await system.ended(run_id)
        await until(states, lambda found: found == ["idle"])
