"""The client for code without an event loop: the same names, blocking. One Client on one thread does it."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from holdfast.client.client import Client
from holdfast.errors import Conflict, HoldfastError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Sequence
    from datetime import datetime, timedelta
    from types import TracebackType
    from typing import Unpack

    from holdfast.agents.catalogue import AgentInfo
    from holdfast.client.agents import Agents
    from holdfast.client.handle import RunHandle
    from holdfast.client.request import Duration, SubmitOptions, SubmitRequest
    from holdfast.client.residents import ClientResidents, HostInfo, ResidentInfo
    from holdfast.client.schedules import ScheduleInfo, Schedules
    from holdfast.config import Settings
    from holdfast.events.event import Event
    from holdfast.hosts.agent import Needs
    from holdfast.runs.run import Run, Status
    from holdfast.schedules.history import PastTurn

T = TypeVar("T")

_CLOSED = (
    "the client was closed while a call waited: close it when no thread uses it; what was submitted goes on"
)


class LoopThread:
    """An event loop on a thread of its own; any number of threads may call it, and one closes it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._calls: set[Future[Any]] = set()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="holdfast-client", daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do ``work`` on the loop and return its result; an interrupted caller stops it."""
        with self._lock:
            if self._closed:
                work.close()
                raise HoldfastError(_CLOSED)
            future = self._begin(work)
            self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        try:
            return future.result()
        except CancelledError:
            raise HoldfastError(_CLOSED) from None
        except BaseException:
            future.cancel()
            raise

    def close(self, last: Coroutine[Any, Any, Any] | None = None) -> None:
        """Wake all callers, do the last thing, and end the loop and its thread."""
        with self._lock:
            self._closed = True
        # The loop would stop under those that still wait, and nobody would ever tell them.
        for future in list(self._calls):
            future.cancel()
        try:
            if last is not None:
                self._begin(last).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        """Run the loop until it is stopped, and close it here: on the caller's thread another one may run."""
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if os.getpid() != self._pid:
            work.close()
            raise Conflict("this SyncClient was opened before a fork: open another one in the child process")
        return asyncio.run_coroutine_threadsafe(work, self._loop)


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

    def run(self) -> Run:
        """Read everything that is known of the run."""
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
                    yield self._call(anext(events))  # pyright: ignore[reportArgumentType] - a generator's step is a coroutine
                except StopAsyncIteration:
                    return
        finally:
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
        *,
        every: str | float | timedelta | None = None,
        cron: str | None = None,
        at: float | datetime | None = None,
        paused: bool = False,
        reason: str = "",
        **options: Any,
    ) -> ScheduleInfo:
        """Make a schedule with the options of ``app.schedule``; one of every, cron and at says when."""
        when: dict[str, Any] = {"every": every, "cron": cron, "at": at, "paused": paused, "reason": reason}
        return self._call(self._schedules.create(name, agent, **when, **options))

    def remove(self, name: str, *, force: bool = False) -> None:
        """Remove a schedule for good. One that the code declares comes back with it: only by ``force``."""
        self._call(self._schedules.remove(name, force=force))

    def get(self, name: str) -> ScheduleInfo:
        """Read a schedule and what it last did."""
        return self._call(self._schedules.get(name))

    def trigger(self, name: str) -> str:
        """Run a schedule now; its turns stay."""
        return self._call(self._schedules.trigger(name))

    def pause(self, name: str, reason: str = "") -> ScheduleInfo:
        """Let a schedule take no turns until it is resumed."""
        return self._call(self._schedules.pause(name, reason))

    def resume(self, name: str) -> ScheduleInfo:
        """Let a paused schedule take its turns again."""
        return self._call(self._schedules.resume(name))

    def next(self, name: str, count: int = 5) -> list[float]:
        """Tell the next turns of a schedule."""
        return self._call(self._schedules.next(name, count))

    def turns(self, name: str, limit: int = 20) -> list[PastTurn]:
        """Read how the last turns of a schedule ended, the newest first."""
        return self._call(self._schedules.turns(name, limit))

    def list(self, pattern: str = "*", *, state: str = "", limit: int = 100) -> list[ScheduleInfo]:
        """Read up to ``limit`` schedules whose name fits a glob, sorted by name."""
        return self._call(self._schedules.list(pattern, state=state, limit=limit))


class SyncAgents:
    """``Agents`` with blocking methods."""

    __slots__ = ("_agents", "_call")

    def __init__(self, agents: Agents, call: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._agents = agents
        self._call = call

    def get(self, name: str) -> AgentInfo:
        """Read one agent; UnknownAgent if no live process has it."""
        return self._call(self._agents.get(name))

    def list(self) -> list[AgentInfo]:
        """Read every registered agent, by name."""
        return self._call(self._agents.list())


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
    ) -> ResidentInfo:
        """Have a resident live; returns when it can receive."""
        return self._call(self._residents.start(resident, resident_id, input, needs=needs))

    def stop(self, resident_id: str) -> ResidentInfo:
        """Stop a resident and return its last state."""
        return self._call(self._residents.stop(resident_id))

    def move(self, resident_id: str, *, to: str = "") -> ResidentInfo:
        """Have a resident live on another host."""
        return self._call(self._residents.move(resident_id, to=to))

    def get(self, resident_id: str) -> ResidentInfo:
        """Read where a resident is."""
        return self._call(self._residents.get(resident_id))

    def send(self, resident_id: str, message: Any, *, idempotency_key: str = "") -> SyncRunHandle:
        """Put a message into a resident's mailbox."""
        sent = self._residents.send(resident_id, message, idempotency_key=idempotency_key)
        return SyncRunHandle(self._call(sent), self._call)

    def ask(self, resident_id: str, message: Any, timeout: Duration | None = 30.0) -> Any:
        """Send a message and wait for what ``receive`` returns."""
        return self._call(self._residents.ask(resident_id, message, timeout))

    def hosts(self) -> list[HostInfo]:
        """Read every live host, by name."""
        return self._call(self._residents.hosts())

    def list(
        self, *, status: str = "", host: str = "", name: str = "", limit: int = 100
    ) -> list[ResidentInfo]:
        """Read up to ``limit`` residents, oldest first."""
        return self._call(self._residents.list(status=status, host=host, name=name, limit=limit))


class SyncClient:
    """``Client`` for scripts, used as ``with SyncClient() as client``."""

    def __init__(
        self, redis_url: str = "", *, api_url: str = "", api_key: str = "", settings: Settings | None = None
    ) -> None:
        self._client = Client(redis_url, api_url=api_url, api_key=api_key, settings=settings)
        self._thread: LoopThread | None = None

    def __enter__(self) -> Self:
        self._thread = LoopThread()
        try:
            self._call(self._client.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(self._client.__aexit__(kind, exc, trace))

    def submit(
        self,
        agent: str,
        input: Any = None,  # noqa: A002 - the public name of what an agent is given
        **options: Unpack[SubmitOptions],
    ) -> SyncRunHandle:
        """Ask for a run. The same run id or idempotency key again gives the same run."""
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
        if self._thread is None:
            work.close()
            raise HoldfastError("the client is not open: use it inside `with SyncClient(...) as client:`")
        return self._thread.call(work)

    def _end(self, last: Coroutine[Any, Any, Any] | None = None) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close(last)
        elif last is not None:  # another thread has closed it
            last.close()
