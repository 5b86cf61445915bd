"""Call one agent once: its result, its error, its deadline or a stop becomes the Outcome.

The body (the agent's code) has a task of its own. The deadline and a stop cancel it and decide the outcome,
whatever it still returns or raises. A cancellation of the caller is never swallowed. A body that ignores its
stop is waited for during the grace, if there is one; then its run ends without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from typing import TYPE_CHECKING, Any, cast

from holdfast.agents.context import SyncContext, scope_of
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
from holdfast.errors import HandBack, LeaseLost, ThreadTaken
from holdfast.leases.trust import Trusted
from holdfast.telemetry.logs import run_context
from holdfast.telemetry.traces import mark_failed, run_span

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import AsyncGenerator, Callable, Generator

    from holdfast.agents.context import Context, RunInfo, Signals
    from holdfast.agents.spec import AgentSpec


class _BodyOver(asyncio.Future[None]):
    """The owner waits for this. Cancelling the owner cancels it, and with it the body, in the same iteration.

    One iteration of the loop later, a body that was due while its process was frozen would have gone on.
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
        "_body_over",
        "_deadlines",
        "_executor",
        "_grace_seconds",
        "_grace_timer",
        "_payload",
        "_spec",
        "_stopped",
        "_thread",
        "_timeout_seconds",
        "context",
        "log_context",
        "scope",
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
        self.context = ctx
        self.scope = scope_of(ctx)
        self._payload = payload
        self._timeout_seconds = timeout_seconds
        self._executor = executor
        self._grace_seconds = grace_seconds
        self._deadlines = Deadlines() if deadlines is None else deadlines
        self.log_context = self.scope.info.log_context()
        """The fields of every log line of this attempt."""
        self._body_over: _BodyOver | None = None
        self._grace_timer: asyncio.TimerHandle | None = None
        self._body: asyncio.Task[Outcome] | None = None
        self._stopped: TimedOut | Cancelled | Yielded | None = None
        self._thread: concurrent.futures.Future[Any] | None = None

    @property
    def info(self) -> RunInfo:
        """The facts of this attempt."""
        return self.scope.info

    @property
    def lingering(self) -> concurrent.futures.Future[Any] | asyncio.Task[Any] | None:
        """The thread of a sync agent that goes on; after ``run()``, also the task of an async one."""
        if self._thread is not None and not self._thread.done():
            return self._thread
        body = self._body
        return body if body is not None and self.scope.signals.closed and not body.done() else None

    def when_it_ends(self, call: Callable[[], None]) -> None:
        """Call ``call`` on this loop when the lingering body has ended, unless the loop is closed."""
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
        text = text or reason.value
        if not self._stop_with(Cancelled(text) if reason is StopReason.CANCEL else Yielded(text)):
            return False
        self.scope.signals.stop = reason
        return True

    async def run(self) -> Outcome:
        """Call the agent and return how it ended.

        A stop cancels an async agent; this returns when the body has ended, or lingers after the grace.
        Without a grace, and when the run is handed back, it waits without a limit: no other worker may start
        the run while its body goes on here. A sync agent can't be cancelled: its thread lingers at once.
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
            outcome = Lost() if self.scope.signals.trust.lost else Failed(classify(exc, by_agent=True))
        finally:
            self.scope.signals.closed = True
        if owner.cancelling() > before:
            raise asyncio.CancelledError  # it was meant for the owner, and the agent swallowed it
        return self._stopped or outcome

    async def _until_deadline(self) -> Outcome:
        # Not in the owner's task: until Python 3.13, a TaskGroup that fails there leaves the count of
        # cancellations too high, which would look as if the owner were cancelled for a lost lease.
        loop = asyncio.get_running_loop()
        body = self._body = asyncio.create_task(self._traced(), name=self.scope.info.run_id)
        body_over = self._body_over = _BodyOver(body, self.scope.signals, loop)
        body.add_done_callback(self._end_wait)
        deadlines, expire = self._deadlines, self._expire
        deadlines.set(expire, loop.time() + self._timeout_seconds)
        try:
            await body_over
        except asyncio.CancelledError:
            # The owner's own: its lease is lost, or its process ends. The body was cancelled with it.
            await asyncio.wait((body,), timeout=self._grace_seconds)
            raise
        finally:
            deadlines.clear(expire)
            if self._grace_timer is not None:
                self._grace_timer.cancel()
        return self._stopped if self._stopped is not None and not body.done() else body.result()

    def _end_wait(self, _: object = None) -> None:
        if self._body_over is not None and not self._body_over.done():
            self._body_over.set_result(None)

    def _expire(self) -> None:
        self._stop_with(TimedOut(self._timeout_seconds))

    def _stop_with(self, outcome: TimedOut | Cancelled | Yielded) -> bool:
        """Cancel the body, with this outcome; False if it has ended or was stopped before."""
        if self._stopped is not None or self.scope.signals.closed:
            return False
        if self._body is not None and not self._body.cancel():
            return False
        self._stopped = outcome
        # guard: yield-waits-for-body
        if self._body is not None and self._grace_seconds is not None and not isinstance(outcome, Yielded):
            loop = asyncio.get_running_loop()
            self._grace_timer = loop.call_later(self._grace_seconds, self._end_wait)
        return True

    async def _traced(self) -> Outcome:
        """Call the agent with its log fields and its span; both end with this task."""
        info = self.scope.info
        attributes = {"holdfast.run_id": info.run_id, "holdfast.attempt": info.attempt}
        with run_span(f"run {info.agent_id}", info.trace, attributes) as span:
            if span is not None:
                self.log_context = info.log_context()  # with the id of a trace that begins with this span
            run_context.set(self.log_context)
            try:
                outcome = await self._classified()
            except asyncio.CancelledError:
                if isinstance(self._stopped, TimedOut):
                    mark_failed(span, "timed out")
                raise
            if isinstance(outcome, Failed) and self._stopped is None:
                mark_failed(span, outcome.failure.message)
            return outcome

    async def _classified(self) -> Outcome:
        try:
            result = await Trusted(self._call_agent(), self.scope.signals.trust)
            return self.scope.question or Succeeded(result)
        except asyncio.CancelledError:
            raise
        except BaseException as exc:
            # Also SystemExit and KeyboardInterrupt: raised by an agent, they must not end the worker.
            return _outcome_raised(exc, self.context) or Failed(classify(exc, by_agent=True))

    async def _call_agent(self) -> Any:
        spec = self._spec
        produced: Any
        if spec.is_async:
            produced = spec.call(*spec.arguments(self.context, self._payload))
        else:
            produced = await self._in_thread()
        if inspect.isasyncgen(produced):
            return await _stream(produced, self.context)
        return await produced if spec.is_async or inspect.isawaitable(produced) else produced

    async def _in_thread(self) -> Any:
        ctx = SyncContext(self.context, asyncio.get_running_loop())
        context = contextvars.copy_context()
        self._thread = self._executor.submit(context.run, _call, self._spec, ctx, self._payload)
        return await asyncio.wrap_future(self._thread)


def _outcome_raised(exc: BaseException, ctx: Context) -> Outcome | None:
    """The outcome of an exception that is no failure; a task group raises it inside an exception group."""
    if isinstance(exc, Decided):
        return exc.outcome
    if isinstance(exc, LeaseLost):
        # guard: taken-thread-counts
        return Failed(classify(exc)) if isinstance(exc, ThreadTaken) else Lost()
    if isinstance(exc, Asking):
        return scope_of(ctx).question or exc.question
    if isinstance(exc, HandBack):
        return Yielded(str(exc) or "the agent hands it back")
    if not isinstance(exc, BaseExceptionGroup):
        return None
    group = cast("BaseExceptionGroup[BaseException]", exc)
    return next((found for each in group.exceptions if (found := _outcome_raised(each, ctx))), None)


async def _stream(chunks: AsyncGenerator[Any, Any], ctx: Context) -> list[Any]:
    """Stream the chunks of an async generator; the result is the list of them."""
    streamed: list[Any] = []
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            await ctx.stream(chunk)
            streamed.append(chunk)
    return streamed


def _call(spec: AgentSpec, ctx: SyncContext, payload: Any) -> Any:
    """Call a sync agent, in its thread."""
    scope_of(ctx).require_open()  # the run may be over before a thread is free for it
    try:
        produced: Any = spec.call(*spec.arguments(ctx, payload))
        return _stream_sync(produced, ctx) if inspect.isgenerator(produced) else produced
    except (StopIteration, GeneratorExit) as exc:
        # A future can't hold these: the first would hang the run until its deadline (on Python 3.11), the
        # second would close the coroutines that wait for the future.
        raise RuntimeError(f"the agent raised {type(exc).__name__}") from exc


def _stream_sync(chunks: Generator[Any, Any, Any], ctx: SyncContext) -> Any:
    """Stream the chunks of a generator; the result is its return value, or else the list of them."""
    streamed: list[Any] = []
    with contextlib.closing(chunks):
        while True:
            try:
                chunk = next(chunks)
            except StopIteration as end:
                return streamed if end.value is None else end.value
            ctx.stream(chunk)
            streamed.append(chunk)
