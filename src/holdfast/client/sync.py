"""The client for code without an event loop: the same names, blocking. One Client on one thread does it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import weakref
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeVar, overload

from holdfast.client.client import Client
from holdfast.errors import ClientClosed, Conflict, HoldfastError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Sequence
    from types import TracebackType
    from typing import Unpack

    from holdfast.client.agents import Agents
    from holdfast.client.handle import RunHandle
    from holdfast.client.request import Duration, SubmitOptions, SubmitRequest
    from holdfast.client.residents import ClientResidents
    from holdfast.client.schedules import Schedules
    from holdfast.config import Settings
    from holdfast.events.event import Event
    from holdfast.runs.run import Run, Status
    from holdfast.views.agents import AgentView
    from holdfast.views.hosts import HostView
    from holdfast.views.residents import Needs, ResidentRow, ResidentView
    from holdfast.views.schedule_options import CreateKeywords
    from holdfast.views.schedules import ScheduleRow, ScheduleTurn, ScheduleView

T = TypeVar("T")

_CLOSED = (
    "the client was closed while a call waited: close it when no thread uses it; what was submitted goes on"
)

_EXIT_SECONDS = 2.0
"""How long the exit of the interpreter waits for connections to close."""


class LoopThread:
    """An event loop on a thread of its own; any number of threads may call it, and one closes it."""

    _running: ClassVar[set[LoopThread]] = set()

    def __init__(self) -> None:
        self._pid = os.getpid()
        # Reentrant: the garbage collector may close a generator of events, which is a call, inside of a call.
        self._lock = threading.RLock()
        self._calls: set[Future[Any]] = set()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="holdfast-client", daemon=True)
        self._last: Callable[[], Coroutine[Any, Any, Any]] | None = None
        self._thread.start()
        self._running.add(self)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do ``work`` on the loop and return its result; an interrupted caller stops it."""
        with self._lock:
            if self._closed:
                work.close()
                raise ClientClosed(_CLOSED)
            future = self._begin(work)
            self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        try:
            return future.result()
        except CancelledError:
            raise ClientClosed(_CLOSED) from None
        except BaseException:
            future.cancel()
            raise

    def close(self, last: Coroutine[Any, Any, Any] | None = None) -> None:
        """Wake all callers, do the last thing, and end the loop and its thread."""
        if not self._refuse_calls():  # the exit of the interpreter has closed it
            if last is not None:
                last.close()
            return
        try:
            if last is not None:
                self._begin(last).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def abandon(self, last: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Close without waiting: a finalizer may run on any thread, even on this loop's."""
        if os.getpid() != self._pid:  # in a forked child the connections are the parent's
            return
        if self._refuse_calls():
            self._loop.call_soon_threadsafe(self._finish, last)

    def at_exit(self, last: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Do this last if the interpreter exits before the loop was closed."""
        self._last = last

    def exit(self) -> None:
        """Close, but let a server that does not answer delay the exit of the interpreter only a little."""
        if self._last is not None:
            self.abandon(self._last)
        if os.getpid() == self._pid:
            self._thread.join(_EXIT_SECONDS)

    @classmethod
    def exit_all(cls) -> None:
        """Close every client that is open when the interpreter exits."""
        for each in list(cls._running):
            each.exit()

    def _refuse_calls(self) -> bool:
        """Wake those that wait and let nobody call again; False if that was done before."""
        with self._lock:
            if self._closed:
                return False
            self._closed = True
        # The loop would stop under those that still wait, and nobody would ever tell them.
        for future in list(self._calls):
            future.cancel()
        return True

    def _finish(self, last: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Do the last thing on the loop and stop it; nobody waits for an error of it."""

        def stop(task: asyncio.Task[Any]) -> None:
            if not task.cancelled():
                task.exception()
            self._loop.stop()

        task = self._loop.create_task(last())
        task.add_done_callback(stop)

    def _run(self) -> None:
        """Run the loop until it is stopped, and close it here: on the caller's thread another one may run."""
        try:
            self._loop.run_forever()
            # Cancelled calls may need a few more turns: a pending task is a warning when it is destroyed.
            if left := asyncio.all_tasks(self._loop):
                self._loop.run_until_complete(asyncio.wait(left, timeout=_EXIT_SECONDS))
            # One after the other: shutdown_asyncgens closes a generator and those inside of it at once.
            for events in list(_FOLLOWED.pop(self._loop, ())):
                with contextlib.suppress(Exception):
                    self._loop.run_until_complete(_close(events))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
            self._running.discard(self)

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if os.getpid() != self._pid:
            work.close()
            raise Conflict("this SyncClient was opened before a fork: open another one in the child process")
        return asyncio.run_coroutine_threadsafe(work, self._loop)


_FOLLOWED = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, "weakref.WeakSet[AsyncGenerator[Any]]"]()
"""The generators of events that were begun, by their loop."""

atexit.register(LoopThread.exit_all)


async def _next(events: AsyncGenerator[T]) -> T:
    """Return the next event of a generator that is closed with its loop."""
    _FOLLOWED.setdefault(asyncio.get_running_loop(), weakref.WeakSet()).add(events)
    return await anext(events)


async def _close(events: AsyncGenerator[Any]) -> None:
    """Close a generator; unlike what ``aclose()`` returns, this can be dropped while it still runs."""
    await events.aclose()


class SyncRunHandle:
    """``RunHandle`` with blocking methods."""

    __slots__ = ("_call", "_handle")

    def __init__(self, handle: RunHandle, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._handle = handle
        self._call = call

    def __repr__(self) -> str:
        return f"Sync{self._handle!r}"

    @property
    def run_id(self) -> str:
        """The run."""
        return self._handle.run_id

    @property
    def queue(self) -> str:
        """The queue that the run belongs to."""
        return self._handle.queue

    @property
    def fresh(self) -> bool:
        """False if the run was there before it was asked for."""
        return self._handle.fresh

    @property
    def message_id(self) -> str:
        """The id of the run's message when it was submitted."""
        return self._handle.message_id

    def run(self) -> Run:
        """Read all details of the run."""
        return self._call(self._handle.run())

    def status(self) -> Status:
        """Read where the run is."""
        return self._call(self._handle.status())

    def result(self, timeout: Duration | None = None) -> Any:
        """Wait until the run has ended and return its result, or raise as ``RunHandle.result`` does."""
        return self._call(self._handle.result(timeout))

    def events(self, after: str = "0") -> Generator[Event]:
        """Follow the run's events until it has ended."""
        events = self._handle.events(after)
        try:
            while True:
                try:
                    yield self._call(_next(events))
                except StopAsyncIteration:
                    return
        finally:
            with contextlib.suppress(ClientClosed):  # the end of the loop has closed them
                self._call(_close(events))

    def cancel(self, reason: str = "cancelled by request") -> str:
        """Cancel the run: ``cancelled`` if it waited, ``requested`` if its worker was asked to stop it."""
        return self._call(self._handle.cancel(reason))

    def resume(self, answer: Any = None) -> None:
        """Give the run the answer it waits for, if it is interrupted."""
        self._call(self._handle.resume(answer))

    def retry(self) -> None:
        """Queue the run again, if it failed, timed out or was cancelled."""
        self._call(self._handle.retry())


class SyncSchedules:
    """``Schedules`` with blocking methods."""

    __slots__ = ("_call", "_schedules")

    def __init__(self, schedules: Schedules, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._schedules = schedules
        self._call = call

    def create(
        self,
        name: str,
        agent: str,
        **options: Unpack[CreateKeywords],
    ) -> ScheduleView:
        """Make a schedule with the options of ``app.schedule``; one of every, cron and at says when."""
        return self._call(self._schedules.create(name, agent, **options))

    def remove(self, name: str, *, force: bool = False) -> None:
        """Remove a schedule for good. One that the code declares comes back with it: only by ``force``."""
        self._call(self._schedules.remove(name, force=force))

    def get(self, name: str) -> ScheduleView:
        """Read a schedule and what it last did."""
        return self._call(self._schedules.get(name))

    def trigger(self, name: str) -> str:
        """Run a schedule now; its turns stay."""
        return self._call(self._schedules.trigger(name))

    def pause(self, name: str, reason: str = "") -> ScheduleView:
        """Let a schedule take no turns until it is resumed."""
        return self._call(self._schedules.pause(name, reason))

    def resume(self, name: str) -> ScheduleView:
        """Let a paused schedule take its turns again."""
        return self._call(self._schedules.resume(name))

    def next(self, name: str, count: int = 5) -> list[float]:
        """Tell the next turns of a schedule."""
        return self._call(self._schedules.next(name, count))

    def turns(self, name: str, limit: int = 20) -> list[ScheduleTurn]:
        """Read how the last turns of a schedule ended, the newest first."""
        return self._call(self._schedules.turns(name, limit))

    def list(self, pattern: str = "*", *, state: str = "", limit: int = 100) -> list[ScheduleRow]:
        """Read up to ``limit`` schedules whose name fits a glob, sorted by name."""
        return self._call(self._schedules.list(pattern, state=state, limit=limit))


class SyncAgents:
    """``Agents`` with blocking methods."""

    __slots__ = ("_agents", "_call")

    def __init__(self, agents: Agents, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._agents = agents
        self._call = call

    def get(self, name: str) -> AgentView:
        """Read one agent; UnknownAgent if no live process has it."""
        return self._call(self._agents.get(name))

    def list(self) -> list[AgentView]:
        """Read every registered agent, by name."""
        return self._call(self._agents.list())

    if not TYPE_CHECKING:  # a type checker reports what is not there by itself

        def __getattr__(self, name: str) -> Any:
            from holdfast.client.agents import moved  # noqa: PLC0415 - most clients need none

            raise moved(name)


class SyncResidents:
    """``ClientResidents`` with blocking methods."""

    __slots__ = ("_call", "_residents")

    def __init__(self, residents: ClientResidents, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._residents = residents
        self._call = call

    def start(
        self,
        resident: str,
        resident_id: str,
        input: Any = None,  # noqa: A002 - as above
        *,
        needs: Needs | None = None,
    ) -> ResidentView:
        """Start a resident; returns when it can receive."""
        return self._call(self._residents.start(resident, resident_id, input, needs=needs))

    def stop(self, resident_id: str) -> ResidentView:
        """Stop a resident; return it as ``stopped``, with the host it ran on."""
        return self._call(self._residents.stop(resident_id))

    def move(self, resident_id: str, *, to: str = "") -> ResidentView:
        """Move a resident to another host."""
        return self._call(self._residents.move(resident_id, to=to))

    def get(self, resident_id: str) -> ResidentView:
        """Read where a resident is."""
        return self._call(self._residents.get(resident_id))

    def send(self, resident_id: str, message: Any, *, idempotency_key: str = "") -> SyncRunHandle:
        """Put a message into a resident's mailbox."""
        sent = self._residents.send(resident_id, message, idempotency_key=idempotency_key)
        return SyncRunHandle(self._call(sent), self._call)

    def ask(self, resident_id: str, message: Any, timeout: Duration | None = 30.0) -> Any:
        """Send a message and wait for what ``receive`` returns."""
        return self._call(self._residents.ask(resident_id, message, timeout))

    def hosts(self) -> list[HostView]:
        """Read every live host, by name."""
        return self._call(self._residents.hosts())

    def list(
        self, *, status: str = "", host: str = "", name: str = "", limit: int = 100
    ) -> list[ResidentRow]:
        """Read up to ``limit`` residents, oldest first."""
        return self._call(self._residents.list(status=status, host=host, name=name, limit=limit))


class SyncClient:
    """``Client`` for scripts, used as ``with SyncClient() as client``; notebooks do without ``with``.

    The first call opens it, if ``with`` did not, and ``close()`` or the exit of the interpreter closes it.
    Any number of threads may share it.
    """

    def __init__(
        self, redis_url: str = "", *, api_url: str = "", api_key: str = "", settings: Settings | None = None
    ) -> None:
        self._client = Client(redis_url, api_url=api_url, api_key=api_key, settings=settings)
        self._lock = threading.RLock()
        self._thread: LoopThread | None = None
        self._closed = False

    def __enter__(self) -> Self:
        with self._lock:
            self._closed = False
            self._opened()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:  # else it was never opened, or is closed already
            self._finalizer.detach()
            thread.close(self._client.__aexit__(kind, exc, trace))

    def close(self) -> None:
        """Close the connections; runs go on. Closing it again does nothing, other calls raise."""
        self.__exit__(None, None, None)

    def submit(
        self,
        agent: str,
        input: Any = None,  # noqa: A002 - the public name of what an agent is given
        **options: Unpack[SubmitOptions],
    ) -> SyncRunHandle:
        """Submit a run. The same run id or idempotency key again gives the same run."""
        return self._sync(self._call(self._client.submit(agent, input, **options)))

    @overload
    def submit_many(self, requests: Iterable[SubmitRequest]) -> list[SyncRunHandle]: ...
    @overload
    def submit_many(
        self, requests: Iterable[SubmitRequest], *, return_errors: Literal[True]
    ) -> list[SyncRunHandle | HoldfastError]: ...
    def submit_many(
        self, requests: Iterable[SubmitRequest], *, return_errors: bool = False
    ) -> Sequence[SyncRunHandle | HoldfastError]:
        """Ask for many runs at once; refusals are raised or returned as ``Client.submit_many`` does."""
        if not return_errors:
            return [self._sync(handle) for handle in self._call(self._client.submit_many(requests))]
        answers = self._call(self._client.submit_many(requests, return_errors=True))
        return [each if isinstance(each, HoldfastError) else self._sync(each) for each in answers]

    def handle(self, run_id: str, *, queue: str | None = None) -> SyncRunHandle:
        """Return a handle on a run that was submitted before, here or elsewhere; it is not looked up yet."""
        self._opened()
        return self._sync(self._client.handle(run_id, queue=queue))

    def cancel(self, run_id: str, *, queue: str | None = None, reason: str = "cancelled by request") -> str:
        """Cancel a run: ``cancelled`` if it waited, ``requested`` if its worker was asked to stop it."""
        return self._call(self._client.cancel(run_id, queue=queue, reason=reason))

    def resume(self, run_id: str, answer: Any = None, *, queue: str | None = None) -> SyncRunHandle:
        """Give an interrupted run the answer it waits for."""
        return self._sync(self._call(self._client.resume(run_id, answer, queue=queue)))

    def retry(self, run_id: str, *, queue: str | None = None) -> SyncRunHandle:
        """Queue a run that failed, timed out or was cancelled again, from its first attempt."""
        return self._sync(self._call(self._client.retry(run_id, queue=queue)))

    @property
    def schedules(self) -> SyncSchedules:
        """The schedules: create, list, get, trigger, pause, resume, next, turns, remove."""
        return SyncSchedules(self._client.schedules, self._call)

    @property
    def agents(self) -> SyncAgents:
        """The registered agents: list, get."""
        return SyncAgents(self._client.agents, self._call)

    @property
    def residents(self) -> SyncResidents:
        """The long-lived agents: start, stop, move, list, get, send, ask, hosts."""
        return SyncResidents(self._client.residents, self._call)

    def _sync(self, handle: RunHandle) -> SyncRunHandle:
        return SyncRunHandle(handle, self._call)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            thread = self._opened()
        except BaseException:
            work.close()
            raise
        return thread.call(work)

    def _opened(self) -> LoopThread:
        """Return the thread that does the calls; the first call starts it."""
        thread = self._thread
        if thread is not None:
            return thread
        with self._lock:
            if self._closed:
                raise ClientClosed("the client is closed: make another SyncClient(...)")
            if self._thread is None:
                self._thread = self._open()
            return self._thread

    def _open(self) -> LoopThread:
        client, thread = self._client, LoopThread()
        try:
            thread.call(client.__aenter__())
        except BaseException:
            thread.close()
            raise
        last = partial(client.__aexit__, None, None, None)
        thread.at_exit(last)
        self._finalizer = weakref.finalize(self, thread.abandon, last)
        self._finalizer.atexit = False
        return thread
