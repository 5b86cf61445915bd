"""The processes of this host, for any thread and for event loops: start, stop, inspect, subscribe."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast.errors import InputError, PayloadTooLarge, ProcessError
from holdfast.processes import procfs, wire
from holdfast.processes.agent import DesiredProcess, promise
from holdfast.processes.info import Usage
from holdfast.processes.limits import Limits
from holdfast.processes.loop import Loop
from holdfast.processes.supervisor import Supervisor
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future
    from typing import Self

    from holdfast.processes.agent import AgentLife
    from holdfast.processes.info import AgentProcessInfo, ProcessEvent
    from holdfast.processes.options import ProcessOptions

LARGEST_PAYLOAD_BYTES: Final = wire.MAX_PAYLOAD_BYTES // 2
"""The largest payload of an agent, as JSON with non-ASCII characters escaped."""
_MAX_ID: Final = 512
# On top of an agent's stop timeout: the time to kill it, reap it and report its exit.
_MARGIN_SECONDS: Final = 30.0

_log = get_logger(__name__)

T = TypeVar("T")


class Processes:
    """Agents in processes of their own. Everything here may be called from any thread.

    Slow methods return a ``concurrent.futures.Future``; ``create`` and ``end`` are for event loops.
    """

    def __init__(self, options: ProcessOptions) -> None:
        self.options = options
        self._subscribers: tuple[Callable[[ProcessEvent], None], ...] = ()
        self._loop = Loop("holdfast-processes")
        self._shutting_down = threading.Lock()
        self._down = False
        self._supervisor = Supervisor(self._loop, options, self._publish)
        if options.keep_seconds:
            self._loop.post(self._keep)  # guard: zygote-lease-renewal

    def warm_up(self) -> Future[None]:
        """Start the zygote before the first agent needs it; the future fails if preloading failed."""
        self._loop.post(self._supervisor.ensure_zygote)
        return self._supervisor.begun

    def spawn(
        self,
        agent_id: str,
        entry: str,
        payload: Any = None,
        *,
        fence: int = 0,
        limits: Limits | None = None,
        labels: Mapping[str, str] | None = None,
        until: Callable[[], float] | None = None,
    ) -> Future[AgentProcessInfo]:
        """Start an agent; the future is done when it is ready. Repeating it under a fence changes nothing.

        ``until`` returns when its lease ends. It is read every ``keep_seconds`` of the options and by
        ``keep``. The agent is killed then, even if this process is frozen, and started again when its
        lease is held again.
        """
        if not agent_id or len(agent_id) > _MAX_ID:
            raise InputError(f"an agent's id has 1 to {_MAX_ID} characters, not {len(agent_id)}")
        payload = _as_json(payload)
        wanted = DesiredProcess(
            agent_id, entry, payload, fence, limits or Limits(), dict(labels or {}), until
        )
        created = promise()

        def want() -> None:
            agent = self._supervisor.want(wanted)
            if agent.created.done() and not agent.created.exception():
                created.set_result(agent.describe())
            else:
                _follow(agent.created, created)

        self._post(want, created)
        return created

    def stop(self, agent_id: str, timeout: float | None = None) -> Future[bool]:
        """Stop an agent, kill it after ``timeout``; the future is False if the agent is unknown."""
        seconds = self.options.stop_timeout_seconds if timeout is None else timeout
        return self._end(agent_id, lambda agent: self._supervisor.stop(agent, seconds))

    def kill(self, agent_id: str) -> Future[bool]:
        """Kill an agent and all processes that it has started."""
        return self._end(agent_id, self._supervisor.kill)

    def tell(self, agent_id: str, **data: Any) -> None:
        """Send a message to an agent's process, received by ``control.hear``, unless it has ended."""
        line = wire.encode({"op": "tell", "data": data})

        def send() -> None:
            if (agent := self._supervisor.agents.get(agent_id)) is not None:
                agent.tell(line)

        self._loop.post(send)

    def crash(self, agent_id: str) -> Future[bool]:
        """Kill an agent as if it had died by itself, so that it is started again; False if none runs."""
        done = promise()
        self._post(lambda: done.set_result(self._supervisor.crash(agent_id)), done)
        return done

    def keep(self) -> None:
        """Pass renewed leases on to the zygote now, and start the agents that waited for theirs."""
        self._loop.post(self._supervisor.keep)

    def forget(self, agent_id: str) -> Future[bool]:
        """Drop the state of an ended agent; the future is False if it is unknown or has not ended."""
        dropped = promise()
        self._post(lambda: dropped.set_result(self._supervisor.forget(agent_id)), dropped)
        return dropped

    async def create(
        self, agent_id: str, entry: str, payload: Any = None, **options: Any
    ) -> AgentProcessInfo:
        """Start an agent and wait until it is ready."""
        return await asyncio.wrap_future(self.spawn(agent_id, entry, payload, **options))

    async def end(self, agent_id: str, timeout: float | None = None) -> bool:
        """Stop an agent and wait until it has ended."""
        return await asyncio.wrap_future(self.stop(agent_id, timeout))

    def get(self, agent_id: str) -> AgentProcessInfo | None:
        """Return the state of an agent."""
        agent = self._supervisor.agents.get(agent_id)
        return agent.describe() if agent else None

    def all(self) -> dict[str, AgentProcessInfo]:
        """Return the state of every agent."""
        return {name: agent.describe() for name, agent in self._supervisor.agents.copy().items()}

    def usage(self) -> dict[str, Usage]:
        """Return the memory and CPU time of each agent's process."""
        found: dict[str, Usage] = {}
        for name, info in self.all().items():
            if info.pid:
                memory, seconds = procfs.resident_bytes(info.pid), procfs.cpu_seconds(info.pid)
                if memory is not None and seconds is not None:
                    found[name] = Usage(memory, seconds)
                    self._supervisor.spending.saw(info.pid, seconds)
        return found

    def spent_seconds(self) -> float:
        """Return the CPU time since the last call, including agents that have ended."""
        return self._supervisor.spending.take()

    def subscribe(self, listener: Callable[[ProcessEvent], None]) -> Callable[[], None]:
        """Call ``listener`` with every event, on the supervisor's thread; it must not block.

        Returns a function that unsubscribes. For an event loop: ``partial(loop.call_soon_threadsafe, call)``.
        """
        self._subscribers = (*self._subscribers, listener)

        def unsubscribe() -> None:
            self._subscribers = tuple(other for other in self._subscribers if other is not listener)

        return unsubscribe

    @property
    def zygote_pid(self) -> int:
        """The process id of the zygote; 0 while there is none."""
        return self._supervisor.zygote_pid

    def wait(self, future: Future[T], timeout: float | None = None) -> T:
        """Wait for one of these futures; a subscriber that waited would block the thread that sets them."""
        if self._loop.inside and not future.done():
            raise ProcessError("a subscriber can't wait for a process: wait on another thread")
        return future.result(timeout)

    def shutdown(self, timeout: float | None = None) -> None:
        """Stop all agents together, then the zygote and the thread; nothing can be started after it."""
        if self._loop.inside:
            raise ProcessError(
                "a subscriber can't shut down its own processes: call shutdown on another thread"
            )
        with self._shutting_down:
            if not self._down:
                self._shut_down(timeout)
            self._down = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _shut_down(self, timeout: float | None) -> None:
        # An agent that was spawned before this is in the list below; a later spawn is refused.
        refused = promise()
        self._post(lambda: refused.set_result(self._supervisor.refuse()), refused)
        refused.result()
        seconds = self.options.stop_timeout_seconds if timeout is None else timeout
        for ended in [self.stop(agent_id, seconds) for agent_id in self.all()]:
            try:
                ended.result(seconds + _MARGIN_SECONDS)
            except TimeoutError:
                _log.error("agent process stop timed out, ends with its zygote")
        self._loop.post(self._supervisor.close)
        self._loop.stop()

    def _end(self, agent_id: str, how: Callable[[AgentLife], None]) -> Future[bool]:
        ended = promise()

        def end() -> None:
            agent = self._supervisor.agents.get(agent_id)
            if agent is None:
                ended.set_result(False)
                return
            how(agent)
            _follow(agent.ended, ended)

        self._post(end, ended)
        return ended

    def _keep(self) -> None:
        self._loop.later(self.options.keep_seconds, self._keep)
        self._supervisor.keep()

    def _post(self, call: Callable[[], None], future: Future[Any]) -> None:
        """Run a call on the loop's thread; an exception is set on the future."""

        def guarded() -> None:
            try:
                call()
            except Exception as error:
                future.set_exception(error)

        if not self._loop.post(guarded):
            future.set_exception(ProcessError("the processes of this host are shut down"))

    def _publish(self, event: ProcessEvent) -> None:
        for listener in self._subscribers:
            try:
                listener(event)
            except Exception:
                _log.exception("process event subscriber failed", agent_id=event.process.agent_id)


def _as_json(payload: Any) -> bytes:
    try:
        data = wire.encode(payload)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"an agent's payload must be JSON: {error}") from error
    if len(data) > LARGEST_PAYLOAD_BYTES:
        raise PayloadTooLarge(f"an agent's payload has {len(data)} bytes: {LARGEST_PAYLOAD_BYTES} at most")
    return data


def _follow(source: Future[Any], target: Future[Any]) -> None:
    """Copy the result or error of one future to another."""

    def done(_: Future[Any]) -> None:
        error = source.exception()
        if error is not None:
            target.set_exception(error)
        else:
            target.set_result(source.result())

    source.add_done_callback(done)
