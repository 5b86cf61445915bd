from __future__ import annotations

import asyncio
import threading

import pytest
from msgspec.structs import replace

from holdfast import LeaseLost
from holdfast.agents.context import Context, SyncContext
from holdfast.agents.outcome import StopReason, Succeeded, TimedOut
from tests.support.waiting import until


def test_a_context_shows_the_facts_of_its_run(ctx, info):
    assert (ctx.run_id, ctx.thread_id, ctx.agent_id) == ("run-1", "thread-1", "tester")
    assert (ctx.attempt, ctx.fence, ctx.deadline) == (2, 7, info.deadline)
    assert ctx.metadata == {"team": "a"}
    assert ctx.log is ctx.log


@pytest.mark.parametrize("kind", [Context, SyncContext])
def test_a_context_shows_an_agent_only_what_is_an_agents(kind):
    shown = {name for name in dir(kind) if not name.startswith("_")}
    facts = {"run_id", "thread_id", "agent_id", "attempt", "fence", "deadline", "metadata", "log"}
    stopping = {"draining", "cancelled", "wait_draining"}
    assert shown == facts | stopping | {"emit", "stream", "step", "state", "interrupt", "idempotency_key"}


def test_an_idempotency_key_is_the_same_in_every_attempt(info, feed):
    first, second = Context(info, feed), Context(replace(info, attempt=3, fence=9), feed)
    assert first.idempotency_key("charge") == second.idempotency_key("charge")
    assert first.idempotency_key("charge") != first.idempotency_key("refund")


async def test_emit_and_stream_write_to_the_feed_in_order(ctx, feed):
    await ctx.emit("thinking", {"about": "it"})
    await ctx.stream("word")
    await ctx.emit("done")
    assert feed.events == [("thinking", {"about": "it"}), ("chunk", "word"), ("done", None)]


async def test_draining_is_seen_by_whoever_looks_or_waits(ctx, signals):
    waiting = asyncio.create_task(ctx.wait_draining())
    assert not ctx.draining
    signals.draining.set()
    await waiting
    assert ctx.draining
    assert not ctx.cancelled


@pytest.mark.parametrize(
    ("reason", "draining", "cancelled"),
    [(StopReason.DRAIN, True, False), (StopReason.CANCEL, False, True)],
)
def test_a_stop_shows_in_the_context(ctx, signals, reason, draining, cancelled):
    signals.stop = reason
    assert (ctx.draining, ctx.cancelled) == (draining, cancelled)


async def test_a_run_that_is_over_looks_cancelled_and_takes_no_events(ctx, signals, feed):
    signals.closed = True
    assert ctx.cancelled
    with pytest.raises(LeaseLost, match="fence 7"):
        await ctx.emit("late")
    assert feed.events == []


async def test_a_thread_emits_through_the_loop_and_sees_its_errors(invocation, ctx, feed):
    loop_thread = threading.get_ident()

    async def emit(event_type, data):
        assert threading.get_ident() == loop_thread
        if data == "bad":
            raise ConnectionResetError("feed away")
        await feed(event_type, data)

    ctx._emit = emit

    def agent(ctx):
        ctx.emit("one", 1)
        ctx.stream("word")
        with pytest.raises(ConnectionResetError):
            ctx.emit("two", "bad")
        return ctx.run_id, ctx.attempt

    assert await invocation(agent).run() == Succeeded(("run-1", 2))
    assert feed.events == [("one", 1), ("chunk", "word")]


async def test_a_thread_waits_for_draining_with_a_limit(invocation, signals):
    def agent(ctx):
        early = ctx.wait_draining(0.01)
        loop.call_soon_threadsafe(signals.draining.set)
        return early, ctx.wait_draining()

    loop = asyncio.get_running_loop()
    assert await invocation(agent).run() == Succeeded((False, True))


async def test_a_thread_that_waits_when_its_run_ends_is_let_go(invocation, deadline):
    running = invocation(lambda ctx: ctx.wait_draining(), timeout_seconds=5, deadlines=deadline)
    ending = asyncio.create_task(running.run())
    await until(lambda: any("_drained" in repr(task.get_coro()) for task in asyncio.all_tasks()))
    thread = running.lingering
    deadline.come()
    assert await ending == TimedOut(5)
    with pytest.raises(LeaseLost):
        await asyncio.wrap_future(thread)


def test_a_thread_whose_loop_is_gone_is_let_go(ctx):
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(LeaseLost, match="has ended"):
        SyncContext(ctx, loop).emit("late")


def test_a_thread_whose_loop_goes_while_it_waits_is_let_go(ctx):
    loop = asyncio.new_event_loop()
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            SyncContext(ctx, loop).wait_draining()
        except BaseException as exc:
            failed.append(exc)
        asked.set()

    async def nearly_ended() -> None:
        while not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]:
            await asyncio.sleep(0)

    asked = threading.Event()
    thread = threading.Thread(target=wait)
    thread.start()
    loop.run_until_complete(nearly_ended())
    (pending,) = asyncio.all_tasks(loop)
    loop.close()
    assert asked.wait(10)
    thread.join()
    assert isinstance(failed[0], LeaseLost)
    pending._log_destroy_pending = False
    pending.get_coro().close()
