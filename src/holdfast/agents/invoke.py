"""Run one agent once, and turn whatever it does into an Outcome.

The body has a task of its own, whose cancellation is both the deadline and the stop: it decides the outcome,
whatever the body still returns or raises. A cancellation of the caller is never swallowed. A body that
ignores its stop is waited for during the grace, if there is one; then its run ends without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from typing import TYPE_CHECKING, Any, cast

from holdfast.agents.context import SyncContext
from holdfast.agents.deadlines import Deadlines
from holdfast.agents.failures import classify
from holdfast.agents.outcome import (
    Asking,
    Cancelled,
    Decided,
    Failed,
    Lost,
    Outcome,
    StopReason,
    Succeeded,
    TimedOut,
    Yielded,
)
from holdfast.errors import HandBack, LeaseLost
from holdfast.leases.trust import Trusted
from holdfast.telemetry.logs import run_context
from holdfast.telemetry.traces import mark_failed, run_span

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import AsyncGenerator, Callable, Generator

    from holdfast.agents.context import Context, RunInfo, Signals
    from holdfast.agents.spec import AgentSpec


class _End(asyncio.Future[None]):
    """What the owner waits for. Cancelling the owner cancels this, and with it the body, in the same moment.

    A turn of the loop later would be too late: a body that was due while its process was frozen would go on.
    """

    def __init__(
        self, body: asyncio.Task[Outcome], signals: Signals, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(loop=loop)
        self._body = body
        self._signals = signals

    def cancel(self, msg: Any | None = None) -> bool:
        self._signals.trust.lost = True
        self._body.cancel()  # guard: lost-lease-cancels-body
        return super().cancel(msg)


class Invocation:
    """One attempt of one agent at one run; used once, on one event loop."""

    __slots__ = (
        "_body",
        "_ctx",
        "_deadlines",
        "_executor",
        "_grace_seconds",
        "_over",
        "_patience",
        "_payload",
        "_spec",
        "_stopped",
        "_thread",
        "_timeout_seconds",
        "log_context",
    )

    def __init__(
        self,
        spec: AgentSpec,
        ctx: Context,
        payload: Any,
        timeout_seconds: float,
        executor: concurrent.futures.Executor,
        *,
        grace_seconds: float | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        self._spec = spec
        self._ctx = ctx
        self._payload = payload
        self._timeout_seconds = timeout_seconds
        self._executor = executor
        self._grace_seconds = grace_seconds
        self._deadlines = Deadlines() if deadlines is None else deadlines
        self.log_context = ctx.info.log_context()
        """What every log line of this attempt carries."""
        self._over: _End | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._body: asyncio.Task[Outcome] | None = None
        self._stopped: TimedOut | Cancelled | Yielded | None = None
        self._thread: concurrent.futures.Future[Any] | None = None

    @property
    def info(self) -> RunInfo:
        """The facts of this attempt."""
        return self._ctx.info

    @property
    def lingering(self) -> concurrent.futures.Future[Any] | asyncio.Task[Any] | None:
        """The thread of a sync agent that goes on; after ``run()``, any body that ignored its stop."""
        if self._thread is not None and not self._thread.done():
            return self._thread
        body = self._body
        return body if body is not None and self._ctx.signals.closed and not body.done() else None

    def when_it_ends(self, call: Callable[[], None]) -> None:
        """Have ``call`` called on this loop once what lingers has ended, if the loop is still there."""
        loop, body = asyncio.get_running_loop(), self.lingering

        def ended(_: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(call)

        if body is None:
            call()
        else:
            body.add_done_callback(ended)

    def stop(self, reason: StopReason, text: str = "") -> bool:
        """Ask the agent to stop, from the loop's thread; return whether this is what ends it.

        The first stop decides the outcome: a later one, or one after the deadline, changes nothing.
        """
        said = text or reason.value
        if not self._cut_short(Cancelled(said) if reason is StopReason.CANCEL else Yielded(said)):
            return False
        self._ctx.signals.stop = reason
        return True

    async def run(self) -> Outcome:
        """Run the agent and return how it ended.

        An async agent is stopped by cancellation, and this returns when its body has ended, or when it has
        ignored that for the grace: then it lingers. Without a grace, and for one that is handed back, there
        is no end to the waiting: nobody may have the run while a body goes on here under its lease.
        A sync agent can't be interrupted: this returns at once and its thread lingers.
        """
        owner = asyncio.current_task()
        assert owner is not None
        before = owner.cancelling()
        try:
            outcome = self._stopped or await self._until_deadline()
        except asyncio.CancelledError as exc:
            if owner.cancelling() > before:
                raise
            # The agent's own, or that of something it waited for.
            outcome = Lost() if self._ctx.signals.trust.lost else Failed(classify(exc, by_agent=True))
        finally:
            self._ctx.signals.closed = True
        if owner.cancelling() > before:
            raise asyncio.CancelledError  # it was meant for the owner, and the agent swallowed it
        return self._stopped or outcome

    async def _until_deadline(self) -> Outcome:
        # Not in the owner's task: a TaskGroup that fails there leaves the count of cancellations too high
        # (until Python 3.13), which would look as if the owner, say because of a lost lease, were cancelled.
        loop = asyncio.get_running_loop()
        body = self._body = asyncio.create_task(self._observed(), name=self._ctx.info.run_id)
        over = self._over = _End(body, self._ctx.signals, loop)
        body.add_done_callback(self._let_go)
        deadlines, expire = self._deadlines, self._expire
        deadlines.set(expire, loop.time() + self._timeout_seconds)
        try:
            await over
        except asyncio.CancelledError:
            # The owner's: its lease is lost, or it is told to end. The body goes with it.
            await asyncio.wait((body,), timeout=self._grace_seconds)
            raise
        finally:
            deadlines.clear(expire)
            if self._patience is not None:
                self._patience.cancel()
        return self._stopped if self._stopped is not None and not body.done() else body.result()

    def _let_go(self, _: object = None) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def _expire(self) -> None:
        self._cut_short(TimedOut(self._timeout_seconds))

    def _cut_short(self, outcome: TimedOut | Cancelled | Yielded) -> bool:
        """Cancel the body and record why, unless it has ended or was cut short already."""
        if self._stopped is not None or self._ctx.signals.closed:
            return False
        if self._body is not None and not self._body.cancel():
            return False
        self._stopped = outcome
        # guard: yield-waits-for-body
        if self._body is not None and self._grace_seconds is not None and not isinstance(outcome, Yielded):
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(self._grace_seconds, self._let_go)
        return True

    async def _observed(self) -> Outcome:
        """Run the agent with its log fields and its span; both end with this task."""
        info = self._ctx.info
        run_context.set(self.log_context)
        attributes = {"holdfast.run_id": info.run_id, "holdfast.attempt": info.attempt}
        with run_span(f"run {info.agent_id}", info.trace, attributes) as span:
            try:
                outcome = await self._outcome()
            except asyncio.CancelledError:
                if isinstance(self._stopped, TimedOut):
                    mark_failed(span, "timed out")
                raise
            if isinstance(outcome, Failed) and self._stopped is None:
                mark_failed(span, outcome.failure.message)
            return outcome

    async def _outcome(self) -> Outcome:
        try:
            result = await Trusted(self._perform(), self._ctx.signals.trust)
            return self._ctx.asking or Succeeded(result)
        except asyncio.CancelledError:
            raise
        except BaseException as exc:
            # Also SystemExit and KeyboardInterrupt: what agent code raises must not end the worker.
            return _signalled(exc, self._ctx) or Failed(classify(exc, by_agent=True))

    async def _perform(self) -> Any:
        spec = self._spec
        produced: Any
        if spec.is_async:
            produced = spec.call(*spec.arguments(self._ctx, self._payload))
        else:
            produced = await self._in_thread()
        if inspect.isasyncgen(produced):
            return await _stream(produced, self._ctx)
        return await produced if spec.is_async or inspect.isawaitable(produced) else produced

    async def _in_thread(self) -> Any:
        ctx = SyncContext(self._ctx, asyncio.get_running_loop())
        context = contextvars.copy_context()
        self._thread = self._executor.submit(context.run, _call, self._spec, ctx, self._payload)
        return await asyncio.wrap_future(self._thread)


def _signalled(exc: BaseException, ctx: Context) -> Outcome | None:
    """What an exception says that is no failure; also from inside a task group, where it comes wrapped."""
    if isinstance(exc, Decided):
        return exc.outcome
    if isinstance(exc, LeaseLost):
        return Lost()
    if isinstance(exc, Asking):
        return ctx.asking or exc.question
    if isinstance(exc, HandBack):
        return Yielded(str(exc) or "the agent hands it back")
    if not isinstance(exc, BaseExceptionGroup):
        return None
    group = cast("BaseExceptionGroup[BaseException]", exc)
    return next((found for each in group.exceptions if (found := _signalled(each, ctx))), None)


async def _stream(chunks: AsyncGenerator[Any, Any], ctx: Context) -> list[Any]:
    """Stream what an async generator yields; its result is the list of it."""
    streamed: list[Any] = []
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            await ctx.stream(chunk)
            streamed.append(chunk)
    return streamed


def _call(spec: AgentSpec, ctx: SyncContext, payload: Any) -> Any:
    """Call a sync agent, in its thread."""
    ctx.require_open()  # its turn in the pool may come after the run is over
    try:
        produced: Any = spec.call(*spec.arguments(ctx, payload))
        return _stream_sync(produced, ctx) if inspect.isgenerator(produced) else produced
    except (StopIteration, GeneratorExit) as exc:
        # A future can't carry these: the first would hang the run until its deadline (on Python 3.11), the
        # second would close the coroutines that wait for it.
        raise RuntimeError(f"the agent raised {type(exc).__name__}") from exc


def _stream_sync(chunks: Generator[Any, Any, Any], ctx: SyncContext) -> Any:
    """Stream what a generator yields; its result is what it returns, or the list of what it yielded."""
    streamed: list[Any] = []
    with contextlib.closing(chunks):
        while True:
            try:
                chunk = next(chunks)
            except StopIteration as end:
                return streamed if end.value is None else end.value
            ctx.stream(chunk)
            streamed.append(chunk)
