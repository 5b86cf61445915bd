from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import subprocess
import sys
import threading
import time

import pytest
from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import GiveUp, LeaseLost
from holdfast.agents.context import Context
from holdfast.agents.failures import FailureClass
from holdfast.agents.invoke import Invocation
from holdfast.agents.outcome import Cancelled, Failed, Lost, StopReason, Succeeded, TimedOut, Yielded
from holdfast.agents.spec import describe
from holdfast.telemetry.logs import run_context
from tests.support.waiting import until


class Hanging:
    """An async agent that says when it runs and then waits for ever."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.cleaned_up = False

    async def __call__(self) -> None:
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cleaned_up = True


async def begin(invocation: Invocation, started: asyncio.Event) -> asyncio.Task:
    task = asyncio.create_task(invocation.run())
    await started.wait()
    return task


# What is called, with what


async def test_an_async_agents_value_is_the_result(invocation):
    async def agent(ctx, value):
        return {"attempt": ctx.attempt, "value": value}

    assert await invocation(agent, 5).run() == Succeeded({"attempt": 2, "value": 5})


async def test_a_sync_agent_runs_in_a_thread_of_the_pool(invocation):
    def agent(value):
        return value, threading.current_thread() is threading.main_thread()

    assert await invocation(agent, 5).run() == Succeeded((5, False))


@pytest.mark.parametrize(
    ("agent", "result"),
    [
        (lambda: "nothing", "nothing"),
        (lambda ctx: ctx.run_id, "run-1"),
        (lambda value: value, "in"),
        (lambda ctx, value: (ctx.run_id, value), ("run-1", "in")),
        (lambda value="default": value, "in"),
        (lambda *values: values, ("in",)),
        (functools.partial(lambda prefix, value: prefix + value, "pre-"), "pre-in"),
    ],
    ids=["()", "(ctx)", "(input)", "(ctx, input)", "(input=default)", "(*inputs)", "partial"],
)
async def test_an_agent_is_called_with_what_it_takes(invocation, agent, result):
    assert await invocation(agent, "in").run() == Succeeded(result)


async def test_an_object_with_an_async_call_is_an_async_agent(invocation):
    class Agent:
        async def __call__(self, value):
            return value + 1

    assert await invocation(Agent(), 1).run() == Succeeded(2)


async def test_a_coroutine_that_a_sync_agent_returns_is_awaited(invocation):
    async def inner(value):
        return value + 1

    def agent(value):
        return inner(value)

    assert await invocation(agent, 1).run() == Succeeded(2)


# Generators


async def test_an_async_generator_streams_its_chunks_and_returns_their_list(invocation, feed):
    async def agent(ctx, words):
        for word in words:
            yield word

    assert await invocation(agent, ["a", "b"]).run() == Succeeded(["a", "b"])
    assert feed.events == [("chunk", "a"), ("chunk", "b")]


async def test_a_generator_streams_from_its_thread(invocation, feed):
    def agent(words):
        yield from words

    assert await invocation(agent, ["a", "b"]).run() == Succeeded(["a", "b"])
    assert feed.events == [("chunk", "a"), ("chunk", "b")]


async def test_what_a_generator_returns_beats_what_it_yields(invocation, feed):
    def agent():
        yield "a"
        return "whole"

    assert await invocation(agent).run() == Succeeded("whole")
    assert feed.events == [("chunk", "a")]


async def test_an_async_generator_that_is_stopped_gets_to_clean_up(invocation):
    hanging = Hanging()

    async def agent():
        yield "a"
        await hanging()

    running = invocation(agent)
    task = await begin(running, hanging.started)
    running.stop(StopReason.CANCEL)
    assert await task == Cancelled("cancel")
    assert hanging.cleaned_up


async def test_a_generator_whose_chunk_cannot_be_written_is_closed(invocation, ctx, feed):
    closed = []

    async def agent():
        try:
            yield "a"
        finally:
            closed.append(True)

    async def refuse(event_type, data):
        raise ConnectionResetError("feed away")

    ctx._emit = refuse
    outcome = await invocation(agent).run()
    assert outcome.failure.kind is FailureClass.TRANSIENT
    assert closed == [True]


# Failures


@pytest.mark.parametrize("isolation", ["loop", "thread"])
@pytest.mark.parametrize(
    ("exc", "kind"),
    [
        (ValueError("bad"), FailureClass.UNKNOWN),
        (GiveUp("no"), FailureClass.INVALID),
        (TimeoutError("its own"), FailureClass.TRANSIENT),
        (asyncio.CancelledError("its own"), FailureClass.UNKNOWN),
        (SystemExit(3), FailureClass.UNKNOWN),
        (KeyboardInterrupt(), FailureClass.UNKNOWN),
        (GeneratorExit(), FailureClass.UNKNOWN),
        (StopIteration("odd"), FailureClass.UNKNOWN),
        (MemoryError(), FailureClass.THROTTLED),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_whatever_an_agent_raises_is_a_failure_of_the_run_only(invocation, isolation, exc, kind):
    async def agent():
        raise exc

    def sync_agent():
        raise exc

    outcome = await invocation(agent if isolation == "loop" else sync_agent).run()
    assert isinstance(outcome, Failed)
    assert outcome.failure.kind is kind
    assert outcome.retry_in is None
    assert asyncio.current_task().cancelling() == 0


async def test_a_failure_tells_where_it_happened(invocation):
    def broken():
        raise ValueError("bad")

    outcome = await invocation(broken).run()
    assert outcome.failure.message == "ValueError: bad"
    first = outcome.failure.traceback.splitlines()[1]
    assert "in broken" in first, "frames of ours are above the agent's"


async def test_an_agent_awaiting_a_task_that_somebody_cancelled_has_failed(invocation):
    async def agent():
        child = asyncio.create_task(asyncio.Event().wait())
        child.cancel()
        await child

    assert isinstance(await invocation(agent).run(), Failed)


async def test_a_child_that_fails_in_a_task_group_is_the_failure(invocation):
    async def fail():
        raise ConnectionResetError("x")

    async def agent():
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(asyncio.Event().wait())

    outcome = await invocation(agent).run()
    assert outcome.failure.kind is FailureClass.TRANSIENT


async def test_a_task_group_that_failed_earlier_hides_neither_the_deadline_nor_the_owners_timeouts(
    invocation,
):
    async def fail():
        raise ConnectionResetError("x")

    async def agent():
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())
        await asyncio.Event().wait()

    assert await invocation(agent, timeout_seconds=0.01).run() == TimedOut(0.01)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.Event().wait()


async def test_an_agents_own_timeout_is_a_failure_not_the_deadline(invocation):
    async def agent():
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    outcome = await invocation(agent).run()
    assert isinstance(outcome, Failed)
    assert outcome.failure.kind is FailureClass.TRANSIENT


async def test_a_lost_lease_met_by_the_agent_is_lost_not_failed(invocation):
    async def agent():
        raise LeaseLost("fence 8 has been seen")

    assert await invocation(agent).run() == Lost()


# Deadline and stop


async def test_the_deadline_ends_an_agent(invocation):
    hanging = Hanging()
    assert await invocation(hanging, timeout_seconds=0.01).run() == TimedOut(0.01)
    assert hanging.cleaned_up


@pytest.mark.parametrize(
    ("reason", "text", "outcome"),
    [
        (StopReason.CANCEL, "by anna", Cancelled("by anna")),
        (StopReason.DRAIN, "shutdown", Yielded("shutdown")),
        (StopReason.DRAIN, "", Yielded("drain")),
    ],
)
async def test_a_stop_ends_an_agent_with_its_reason(invocation, reason, text, outcome):
    hanging = Hanging()
    running = invocation(hanging)
    task = await begin(running, hanging.started)
    assert running.stop(reason, text)
    assert await task == outcome
    assert hanging.cleaned_up


async def test_a_run_stopped_before_it_began_never_calls_its_agent(invocation):
    hanging = Hanging()
    running = invocation(hanging)
    running.stop(StopReason.DRAIN)
    assert await running.run() == Yielded("drain")
    assert not hanging.started.is_set()


async def test_the_first_stop_decides(invocation):
    hanging = Hanging()
    running = invocation(hanging)
    task = await begin(running, hanging.started)
    assert running.stop(StopReason.DRAIN)
    assert not running.stop(StopReason.CANCEL)
    assert await task == Yielded("drain")


async def test_a_stop_after_the_end_changes_nothing(invocation):
    async def agent():
        return 1

    running = invocation(agent)
    assert await running.run() == Succeeded(1)
    assert not running.stop(StopReason.CANCEL)


async def test_a_stop_while_the_agent_unwinds_from_its_deadline_changes_nothing(invocation):
    unwinding, go_on = asyncio.Event(), asyncio.Event()

    async def agent():
        try:
            await asyncio.Event().wait()
        finally:
            unwinding.set()
            await go_on.wait()

    running = invocation(agent, timeout_seconds=0.01)
    task = await begin(running, unwinding)
    assert not running.stop(StopReason.CANCEL)
    go_on.set()
    assert await task == TimedOut(0.01)


async def test_run_ends_only_when_an_async_body_ends(invocation):
    started, ignoring, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn():
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ignoring.set()
        await go_on.wait()
        return "late"

    running = invocation(stubborn)
    task = await begin(running, started)
    running.stop(StopReason.CANCEL)
    await ignoring.wait()
    assert not task.done()
    go_on.set()
    assert await task == Cancelled("cancel")


@pytest.mark.parametrize("reaction", ["return", "raise"])
async def test_after_a_stop_neither_a_value_nor_an_error_counts(invocation, reaction):
    started = asyncio.Event()

    async def agent():
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if reaction == "return":
                return "half done"
            raise ValueError("while cleaning up") from None

    running = invocation(agent)
    task = await begin(running, started)
    running.stop(StopReason.DRAIN)
    assert await task == Yielded("drain")
    assert task.cancelling() == 0


async def test_a_stop_after_the_body_ended_does_not_undo_its_success(invocation):
    answers = []

    async def agent():
        # Runs after the body has ended and before its owner is woken.
        asyncio.get_running_loop().call_soon(lambda: answers.append(running.stop(StopReason.CANCEL)))
        return "done"

    running = invocation(agent)
    assert await running.run() == Succeeded("done")
    assert answers == [False]


# Cancellation from outside


@pytest.mark.parametrize("reaction", ["let it through", "return", "raise"])
async def test_a_cancellation_from_outside_is_never_swallowed(invocation, reaction):
    started = asyncio.Event()

    async def agent():
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if reaction == "return":
                return "swallowed"
            if reaction == "raise":
                raise ValueError("while cleaning up") from None
            raise

    task = await begin(invocation(agent), started)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_from_outside_beats_a_stop(invocation):
    hanging = Hanging()
    running = invocation(hanging)
    task = await begin(running, hanging.started)
    running.stop(StopReason.DRAIN)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_outer_timeout_sees_its_own_cancellation(invocation):
    hanging = Hanging()

    async def expire(timeout: asyncio.Timeout) -> None:
        await hanging.started.wait()
        timeout.reschedule(0.0)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as timeout:
            expiring = asyncio.create_task(expire(timeout))
            await invocation(hanging).run()
    await expiring
    assert hanging.cleaned_up


# Bodies that ignore their stop


class Stubborn:
    """An async agent that ignores every cancellation until it may end."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.may_end = asyncio.Event()
        self.cancelled = 0

    async def __call__(self, ctx) -> str:
        self.started.set()
        while not self.may_end.is_set():
            try:
                await self.may_end.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
        await ctx.emit("late", 1)
        return "at last"

    async def end(self, running: Invocation) -> None:
        body = running.lingering
        assert body is not None
        self.may_end.set()
        await asyncio.wait((body,))
        assert running.lingering is None


async def test_a_body_that_ignores_its_deadline_is_left_behind_and_can_write_no_more(invocation, feed):
    stubborn = Stubborn()
    running = invocation(stubborn, timeout_seconds=0.01, grace_seconds=0.01)
    assert await asyncio.wait_for(running.run(), 5) == TimedOut(0.01)
    assert stubborn.cancelled == 1
    await stubborn.end(running)
    assert feed.events == []


async def test_a_body_that_ignores_a_cancel_is_left_behind(invocation):
    stubborn = Stubborn()
    running = invocation(stubborn, grace_seconds=0.01)
    task = await begin(running, stubborn.started)
    running.stop(StopReason.CANCEL, "no longer wanted")
    assert await asyncio.wait_for(task, 5) == Cancelled("no longer wanted")
    await stubborn.end(running)


async def test_a_body_that_ignores_the_end_of_its_lease_is_left_behind(invocation):
    stubborn = Stubborn()
    running = invocation(stubborn, grace_seconds=0.01)
    task = await begin(running, stubborn.started)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    await stubborn.end(running)


async def test_a_body_that_ends_within_the_grace_is_waited_for(invocation):
    cleaned = []

    async def agent():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(1)

    running = invocation(agent, timeout_seconds=0.01, grace_seconds=30)
    assert await running.run() == TimedOut(0.01)
    assert (cleaned, running.lingering) == ([1], None)


async def test_a_run_is_not_handed_back_while_its_body_goes_on(invocation):
    """Somebody else would begin it: two bodies at once, and this one still has the lease."""
    stubborn = Stubborn()
    running = invocation(stubborn, grace_seconds=0.001)
    task = await begin(running, stubborn.started)
    running.stop(StopReason.DRAIN)
    ended, _ = await asyncio.wait((task,), timeout=0.05)
    stubborn.may_end.set()
    assert not ended
    assert await task == Yielded("drain")


# Threads


async def test_a_thread_that_ignores_its_stop_lingers_and_can_write_no_more(invocation, feed):
    loop, started, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def stubborn(ctx):
        loop.call_soon_threadsafe(started.set)
        go_on.wait(10)
        assert ctx.cancelled
        ctx.emit("late", 1)

    running = invocation(stubborn)
    task = await begin(running, started)
    running.stop(StopReason.DRAIN)
    assert await task == Yielded("drain")
    thread = running.lingering
    assert thread is not None
    go_on.set()
    with pytest.raises(LeaseLost):
        await asyncio.wrap_future(thread)
    assert running.lingering is None
    assert feed.events == []


async def test_a_thread_past_its_deadline_is_timed_out(invocation, deadline):
    loop, started, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def agent():
        loop.call_soon_threadsafe(started.set)
        go_on.wait(10)

    running = invocation(agent, timeout_seconds=5, deadlines=deadline)
    task = await begin(running, started)
    deadline.come()
    assert await task == TimedOut(5)
    assert running.lingering is not None
    go_on.set()


async def test_a_sync_agent_still_waiting_for_a_thread_never_starts_after_its_stop(invocation, executor):
    gate, called = threading.Event(), []
    busy = [executor.submit(gate.wait, 10) for _ in range(2)]
    running = invocation(lambda: called.append(1))
    task = asyncio.create_task(running.run())
    await until(lambda: running.lingering is not None)
    running.stop(StopReason.CANCEL)
    assert await task == Cancelled("cancel")
    assert running.lingering is None
    gate.set()
    await asyncio.gather(*map(asyncio.wrap_future, busy))
    assert await asyncio.wrap_future(executor.submit(lambda: called)) == []


async def test_a_cancellation_from_outside_leaves_the_thread_lingering(invocation):
    loop, started, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def agent():
        loop.call_soon_threadsafe(started.set)
        go_on.wait(10)

    running = invocation(agent)
    task = await begin(running, started)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert running.lingering is not None
    go_on.set()


async def test_context_variables_reach_the_thread(invocation):
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("set")
    assert await invocation(lambda: [variable.get()]).run() == Succeeded(["set"])


# What surrounds a run


@pytest.mark.parametrize("isolation", ["loop", "thread"])
async def test_the_run_is_in_the_log_context_while_it_runs(invocation, isolation):
    async def agent():
        return dict(run_context.get())

    def sync_agent():
        return dict(run_context.get())

    outcome = await invocation(agent if isolation == "loop" else sync_agent).run()
    assert outcome.result["run_id"] == "run-1"
    assert outcome.result["attempt"] == 2
    assert run_context.get() is None


async def test_what_an_agent_left_behind_cannot_write_after_the_run(invocation, feed):
    async def agent(ctx):
        return [ctx]

    outcome = await invocation(agent).run()
    with pytest.raises(LeaseLost, match="run-1"):
        await outcome.result[0].emit("late")
    assert feed.events == []


async def test_nothing_is_logged_or_left_pending_by_a_stopped_thread(invocation, caplog):
    loop, started, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def agent():
        loop.call_soon_threadsafe(started.set)
        go_on.wait(10)
        raise ValueError("nobody listens")

    running = invocation(agent)
    task = await begin(running, started)
    running.stop(StopReason.CANCEL)
    await task
    thread = running.lingering
    go_on.set()
    with caplog.at_level(logging.DEBUG, logger="asyncio"), pytest.raises(ValueError, match="nobody listens"):
        await asyncio.wrap_future(thread)
    assert caplog.records == []
    assert len(asyncio.all_tasks()) == 1


@pytest.fixture
def spans(monkeypatch):
    """The spans that end during a test; the provider is installed for the test only."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


async def test_a_run_continues_the_submitters_trace_and_marks_its_failure(spans, info, feed, executor):
    carrier = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    ctx = Context(replace(info, trace=carrier), feed)

    def agent():
        assert (
            format(trace.get_current_span().get_span_context().trace_id, "032x")
            == carrier["traceparent"][3:35]
        )
        raise ValueError("bad")

    await Invocation(describe("tester", agent), ctx, None, 30.0, executor).run()
    (span,) = spans.get_finished_spans()
    assert (span.name, span.status.description) == ("run tester", "ValueError: bad")
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize("isolation", ["loop", "thread"])
@pytest.mark.parametrize("fields", [{}, {"trace_id": ""}])
async def test_log_lines_name_the_trace_of_the_runs_span_if_the_submitter_has_none(
    spans, info, feed, executor, isolation, fields
):
    async def agent():
        return run_context.get()["trace_id"]

    def sync_agent():
        return run_context.get()["trace_id"]

    ctx = Context(replace(info, trace={}, log_fields=fields), feed)
    spec = describe("tester", agent if isolation == "loop" else sync_agent)
    invocation = Invocation(spec, ctx, None, 30.0, executor)
    outcome = await invocation.run()
    (span,) = spans.get_finished_spans()
    trace_id = format(span.context.trace_id, "032x")
    assert (outcome.result, invocation.log_context["trace_id"]) == (trace_id, trace_id)


async def test_log_lines_name_the_trace_that_the_input_names_rather_than_that_of_the_runs_span(
    spans, info, feed, executor
):
    ctx = Context(replace(info, trace={}, log_fields={"trace_id": "cd" * 16}), feed)
    invocation = Invocation(describe("tester", lambda: None), ctx, None, 30.0, executor)
    await invocation.run()
    assert spans.get_finished_spans()
    assert invocation.log_context["trace_id"] == "cd" * 16


async def test_without_tracing_log_lines_name_no_trace(info, feed, executor):
    ctx = Context(replace(info, trace={}), feed)
    invocation = Invocation(describe("tester", lambda: None), ctx, None, 30.0, executor)
    await invocation.run()
    assert "trace_id" not in invocation.log_context


def test_the_worker_side_of_agents_does_not_load_heavy_libraries():
    code = (
        "import sys, holdfast, holdfast.agents.invoke, holdfast.agents.loader\n"
        "heavy = {'pydantic', 'typer', 'rich', 'fastapi', 'httpx', 'opentelemetry.sdk', 'redis'} & set(sys.modules)\n"
        "sys.exit(' '.join(heavy) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_a_body_that_was_due_while_all_stood_still_does_not_go_on(invocation):
    """As after SIGCONT: the end of the lease and the agent's own timer are due in one turn of the loop."""
    went_on = []

    async def agent() -> None:
        await asyncio.sleep(0.1)
        went_on.append(1)

    asyncio.get_running_loop().call_later(0.02, time.sleep, 0.3)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await invocation(agent).run()
    assert went_on == []
