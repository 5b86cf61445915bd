"""Nothing is done under a lease that the clock has ended, at whatever moment of an attempt that is."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time

import pytest

from holdfast.agents.context import Context, Signals, SyncContext, scope_of
from holdfast.agents.frameworks.replay import Replay
from holdfast.agents.memory import LocalMemory
from holdfast.agents.outcome import Lost, StopReason, Succeeded, Yielded
from holdfast.errors import LeaseLost
from holdfast.leases.trust import Trust, Trusted

FOR_EVER = float("inf")


class LeaseByHand:
    """A lease that ends when the test says so."""

    def __init__(self) -> None:
        self.until = FOR_EVER

    def end(self) -> None:
        self.until = 0.0


@pytest.fixture
def lease() -> LeaseByHand:
    return LeaseByHand()


@pytest.fixture
def signals(lease) -> Signals:
    return Signals(trust=Trust(lambda: lease.until))


async def test_a_body_takes_no_step_after_the_end_of_its_lease(invocation, lease):
    went_on = []

    async def agent() -> None:
        lease.end()
        await asyncio.sleep(0)
        went_on.append(1)

    assert await invocation(agent).run() == Lost()
    assert went_on == []


async def test_a_body_never_begins_after_the_end_of_its_lease(invocation, lease):
    begun = []

    async def agent() -> None:
        begun.append(1)

    lease.end()
    assert await invocation(agent).run() == Lost()
    assert begun == []


async def test_a_thread_never_begins_after_the_end_of_its_lease(invocation, lease):
    begun = []
    lease.end()
    assert await invocation(lambda: begun.append(1)).run() == Lost()
    assert begun == []


async def test_a_generator_goes_on_to_no_other_value_after_the_end_of_its_lease(invocation, lease, feed):
    async def agent():
        yield 1
        lease.end()
        yield 2
        yield 3

    assert await invocation(agent).run() == Lost()
    assert feed.events == [("chunk", 1)]


async def test_a_body_that_lost_its_lease_may_clean_up_once(invocation, lease):
    cleaned = []

    async def agent() -> str:
        try:
            lease.end()
            await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            cleaned.append(1)
        return "a result that nobody wants"

    assert await invocation(agent).run() == Lost()
    assert cleaned == [1]


async def test_a_result_after_a_lost_lease_does_not_count(invocation, lease):
    async def agent() -> str:
        lease.end()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return "it ignores what it was sent"

    assert await invocation(agent).run() == Lost()


async def test_a_lease_that_is_kept_changes_nothing(invocation, lease):
    async def agent() -> int:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        return 7

    assert await invocation(agent).run() == Succeeded(7)


async def test_a_stop_during_the_clean_up_of_a_lost_body_ends_it(invocation, lease):
    """A cancellation from outside is never swallowed, also not by a body that is ending already."""
    cleaning = asyncio.Event()

    async def agent() -> None:
        try:
            lease.end()
            await asyncio.sleep(0)
        finally:
            cleaning.set()
            await asyncio.Event().wait()

    attempt = invocation(agent)
    running = asyncio.create_task(attempt.run())
    await cleaning.wait()
    attempt.stop(StopReason.DRAIN, "the worker leaves")
    assert isinstance(await running, Yielded)


async def test_a_cancellation_from_outside_is_passed_on(lease):
    async def body() -> None:
        await asyncio.Event().wait()

    async def awaits() -> None:
        await Trusted(body(), Trust(lambda: lease.until))

    task = asyncio.create_task(awaits())
    await asyncio.sleep(0)
    lease.end()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def its_own_timeout(lease) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.001):
            lease.end()
            await asyncio.Event().wait()


async def a_call_that_failed(lease) -> None:
    failed = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(failed.set_exception, ConnectionError("reset"))
    lease.end()
    with contextlib.suppress(ConnectionError):
        await failed


async def a_task_that_failed(lease) -> None:
    async def fails() -> None:
        lease.end()
        raise ConnectionError("reset")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
    except* ConnectionError:
        pass


async def a_task_that_failed_beside_a_wait(lease) -> None:
    async def fails() -> None:
        lease.end()
        raise ConnectionError("reset")

    with contextlib.suppress(Exception):
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            await asyncio.Event().wait()


async def a_task_that_failed_after_another(lease) -> None:
    """The TaskGroup waits for a child that needs a while to end, also after it was cancelled."""

    async def fails() -> None:
        lease.end()
        raise ConnectionError("reset")

    async def cleans_up() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)

    with contextlib.suppress(Exception):
        async with asyncio.TaskGroup() as group:
            group.create_task(cleans_up())
            group.create_task(fails())


async def tasks_that_fail_when_they_end(lease) -> None:
    async def fails() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionError("reset")

    with contextlib.suppress(Exception):
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            await asyncio.sleep(0)
            lease.end()
            await asyncio.sleep(0)


async def its_own_timeout_of_tasks(lease) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.001), asyncio.TaskGroup() as group:
            lease.end()
            group.create_task(asyncio.Event().wait())


async def an_answer_in_time(lease) -> None:
    async def answers() -> None:
        lease.end()
        await asyncio.sleep(0)  # since Python 3.12 nothing else waits in here

    await asyncio.wait_for(answers(), 60)


async def a_wait_for_that_timed_out(lease) -> None:
    lease.end()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.001)


WAKES = [
    its_own_timeout,
    a_call_that_failed,
    a_task_that_failed,
    a_task_that_failed_beside_a_wait,
    a_task_that_failed_after_another,
    tasks_that_fail_when_they_end,
    its_own_timeout_of_tasks,
    an_answer_in_time,
    a_wait_for_that_timed_out,
]


@pytest.mark.parametrize("wakes", WAKES)
async def test_a_body_does_not_handle_what_has_woken_it_after_the_end_of_its_lease(invocation, lease, wakes):
    """As after a freeze: what it waited for has failed or timed out, and another process has the work."""
    went_on = []

    async def agent() -> None:
        await wakes(lease)
        went_on.append(1)

    assert await invocation(agent).run() == Lost()
    assert went_on == []


@pytest.mark.parametrize("wakes", WAKES)
async def test_a_body_whose_owner_cancels_it_does_not_handle_what_has_woken_it_either(
    invocation, signals, lease, wakes
):
    """In a worker the timer of the lease is overdue too: the owner is cancelled a turn of the loop later."""
    went_on = []

    async def agent() -> None:
        try:
            await wakes(lease)
            went_on.append(1)
        except Exception:
            went_on.append(2)

    running = asyncio.create_task(invocation(agent).run())
    while not signals.trust.lost and not running.done():
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert went_on == []


async def a_step(ctx, wait) -> None:
    await ctx.step("wait", wait)


async def a_call_of_a_framework(ctx, wait) -> None:
    await Replay(ctx, "some").leased(wait)


@pytest.mark.parametrize("owner_cancels", [True, False], ids=["owner_cancels", "alone"])
@pytest.mark.parametrize("inside", [a_step, a_call_of_a_framework])
@pytest.mark.parametrize("wakes", WAKES)
async def test_a_body_that_waits_in_a_step_or_a_call_does_not_handle_its_end(
    invocation, ctx, signals, lease, wakes, inside, owner_cancels
):
    """What ends the body passes through the step, where it would become an Exception that agents catch."""
    went_on = []

    async def agent() -> None:
        try:
            await inside(ctx, functools.partial(wakes, lease))
            went_on.append(1)
        except Exception:
            went_on.append(2)

    running = asyncio.create_task(invocation(agent).run())
    while owner_cancels and not signals.trust.lost and not running.done():
        await asyncio.sleep(0)
    if owner_cancels:
        running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        assert await running == Lost()
    assert went_on == []


async def test_a_body_does_not_handle_the_end_of_a_step_that_its_owner_has_woken(invocation, ctx, lease):
    """Nothing else wakes it: after the end of the lease its owner's timer is the first that is due."""
    went_on = []
    waits = asyncio.Event()

    async def wait() -> None:
        lease.end()
        waits.set()
        await asyncio.Event().wait()

    async def agent() -> None:
        with contextlib.suppress(Exception):
            await ctx.step("wait", wait)
        went_on.append(1)

    running = asyncio.create_task(invocation(agent).run())
    await waits.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert went_on == []


async def test_a_timeout_around_a_step_with_tasks_ends_the_tasks_and_does_not_handle_its_end(
    invocation, ctx, lease
):
    went_on, ended = [], []

    async def child() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    async def wait() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            await asyncio.sleep(0)
            lease.end()

    async def agent() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                await ctx.step("wait", wait)
        went_on.append(1)

    assert await invocation(agent).run() == Lost()
    assert (went_on, ended) == ([], [1])


async def test_a_body_does_not_handle_what_a_framework_makes_of_its_end(invocation, ctx, lease):
    """A tool in a task of its own has lost the lease first; then the body that waits for it is ended."""
    went_on = []
    replay = Replay(ctx, "some")

    async def framework() -> None:
        with replay.ending_as_unwound():
            replay.unwinding = LeaseLost("a tool")
            lease.end()
            await asyncio.sleep(0)

    async def agent() -> None:
        with contextlib.suppress(Exception):
            await framework()
        went_on.append(1)

    assert await invocation(agent).run() == Lost()
    assert went_on == []


async def test_the_owners_cancellation_does_not_interrupt_the_clean_up_of_a_body(invocation, lease):
    """The owner's timer is due in the same turn of the loop, and cancels a turn later than the body's own wakes it."""
    cleaned, loop = [], asyncio.get_running_loop()

    async def agent() -> None:
        try:
            await asyncio.sleep(0.001)
        finally:
            await asyncio.sleep(0.001)
            cleaned.append(1)

    running = asyncio.create_task(invocation(agent).run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    lease.end()
    loop.call_later(0.001, loop.call_soon, running.cancel)
    time.sleep(0.01)  # both timers are due now
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cleaned == [1]


CALLS = {
    "step": lambda ctx, done: ctx.step("charge", done.append, 1),
    "emit": lambda ctx, _: ctx.emit("charged"),
    "stream": lambda ctx, _: ctx.stream("charged"),
    "interrupt": lambda ctx, _: ctx.interrupt("charge?"),
    "state": lambda ctx, _: ctx.state.set("charged", True),
    "state.delete": lambda ctx, _: ctx.state.delete("charged"),
    "state.get": lambda ctx, _: ctx.state.get("charged"),
    "state.all": lambda ctx, _: ctx.state.all(),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_of_the_context_needs_the_lease(ctx, lease, feed, call):
    done = []
    await ctx.state.all()  # what was read before is known
    lease.end()
    with pytest.raises(LeaseLost):
        await CALLS[call](ctx, done)
    assert (done, feed.events, scope_of(ctx).question) == ([], [], None)
    assert ctx.cancelled


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_of_a_threads_context_needs_the_lease(ctx, lease, feed, call):
    done = []
    await ctx.state.all()
    lease.end()
    with pytest.raises(LeaseLost):
        await asyncio.to_thread(CALLS[call], SyncContext(ctx, asyncio.get_running_loop()), done)
    assert (done, feed.events, scope_of(ctx).question) == ([], [], None)


async def test_a_thread_does_not_go_on_if_the_lease_ended_inside_its_call(info, signals, lease):
    """As after a freeze: the call has an answer, and another process has the run."""
    went_on = []

    async def emit(*_: object) -> None:
        lease.end()

    sync = SyncContext(Context(info, emit, signals), asyncio.get_running_loop())

    def agent() -> None:
        sync.emit("charging")
        went_on.append(1)

    with pytest.raises(LeaseLost):
        await asyncio.to_thread(agent)
    assert went_on == []


class SlowMemory(LocalMemory):
    """Memory whose answers come after the end of the lease."""

    def __init__(self, lease: LeaseByHand) -> None:
        super().__init__()
        self._lease = lease

    async def step(self, name: str) -> bytes | None:
        found = await super().step(name)
        self._lease.end()
        return found

    async def state(self) -> dict[str, bytes]:
        self._lease.end()
        return {"charged": b"false"}


@pytest.fixture
def slow_ctx(info, feed, signals, lease) -> Context:
    return Context(info, feed, signals, memory=lambda: SlowMemory(lease))


async def test_a_step_is_not_begun_if_the_lease_ended_while_it_was_looked_up(slow_ctx):
    done = []
    with pytest.raises(LeaseLost):
        await slow_ctx.step("charge", done.append, 1)
    assert done == []


async def test_state_is_not_returned_if_the_lease_ended_while_it_was_read(slow_ctx):
    """In a task of the agent's own, which nothing else looks after."""
    with pytest.raises(LeaseLost):
        await asyncio.create_task(slow_ctx.state.get("charged"))


async def test_a_step_of_a_thread_is_not_begun_if_the_lease_ended_while_it_was_looked_up(
    slow_ctx, executor, invocation
):
    done = []
    sync = SyncContext(slow_ctx, asyncio.get_running_loop())
    with pytest.raises(LeaseLost):
        await asyncio.to_thread(sync.step, "charge", done.append, 1)
    assert done == []


async def test_a_step_takes_no_step_of_its_own_after_the_end_of_the_lease(ctx, lease):
    """Also in a task of the agent's own, which nothing else looks after."""
    done = []

    async def charge() -> None:
        lease.end()
        await asyncio.sleep(0)
        done.append(1)

    with pytest.raises(LeaseLost):
        await asyncio.create_task(ctx.step("charge", charge))
    assert done == []
