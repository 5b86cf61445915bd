"""Keeps every agent running as requested; each step runs on the loop's thread, so no two steps overlap.

An exit without a request to stop is a crash, whatever its code. The loss of a zygote is no crash of its
agents. Neither is the end of a lease: such an agent waits until its lease is held again.
"""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import AgentRefused, Conflict, NotAllowed, ProcessError, ProcessesFull, ProcessFailed
from holdfast.processes import wire
from holdfast.processes.agent import AgentLife, how_it_ended, promise, settle
from holdfast.processes.cpu_accounting import Spending
from holdfast.processes.handle import Handle, Hearing
from holdfast.processes.info import EventKind, ProcessEvent, ProcessStatus
from holdfast.processes.zygote_client import ZygoteClient
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.processes.agent import DesiredProcess
    from holdfast.processes.loop import Loop
    from holdfast.processes.options import ProcessOptions
    from holdfast.processes.wire import Message

_POLL_SECONDS: Final = 0.01
_LOST_CREATIONS: Final = 2
_LEASES_PER_PACKET: Final = 1000
"""How many leases one packet to the zygote has."""

_LEASE_CAUSES: Final = "Redis did not answer for most of hosts.ttl_seconds, or this host was paused"

_log = get_logger(__name__)


class Supervisor:
    """The agents, and the zygote that they come from."""

    def __init__(self, loop: Loop, options: ProcessOptions, publish: Callable[[ProcessEvent], None]) -> None:
        self.agents: dict[str, AgentLife] = {}
        self.closing = False
        self.begun = promise()  # fails if the first zygote could not preload
        self._loop = loop
        self._options = options
        self._publish = publish
        self._zygote: ZygoteClient | None = None
        self._by_pid: dict[int, AgentLife] = {}
        self.spending = Spending()
        self._zygote_ends: tuple[float, ...] = ()
        self._false_starts = 0
        self._zygote_due = False

    @property
    def zygote_pid(self) -> int:
        """The process id of the zygote; 0 while there is none."""
        return self._zygote.pid if self._zygote else 0

    # Requests.

    def want(self, wanted: DesiredProcess) -> AgentLife:
        """Start an agent; a second call under the same fence returns the same agent."""
        if self.closing:
            raise ProcessError("the processes of this host are shut down: nothing is started any more")
        known = self.agents.get(wanted.id)
        if known is not None and wanted.fence < known.wanted.fence:
            raise Conflict(
                f"agent {wanted.id!r} is known here under fence {known.wanted.fence}: {wanted.fence} is stale"
            )
        if known is not None and not known.status.ended:
            return self._want_again(known, wanted)
        live = sum(not agent.status.ended for agent in self.agents.values())
        if live >= self._options.max_processes:
            raise ProcessesFull(
                f"{live} agents run here, and max_processes allows {self._options.max_processes}: "
                "stop one, raise it, or use another host"
            )
        return self._begin(AgentLife(wanted))

    def stop(self, agent: AgentLife, timeout: float) -> None:
        """Ask an agent to stop, and kill it after the timeout."""
        if agent.successor is not None:
            agent.successor.created.set_exception(agent.stopped_early())
            agent.successor = None
        if agent.status.ended or agent.status is ProcessStatus.STOPPING:
            return
        agent.rest()
        agent.status = ProcessStatus.STOPPING
        if agent.handle is None:
            self._settle(agent, ProcessStatus.STOPPED)
            return
        agent.timer = self._loop.later(timeout, lambda: self.kill(agent))
        # Both: an agent that has replaced our SIGTERM handler only gets the message.
        agent.handle.send(wire.encode({"op": "stop"}))  # guard: agent-stop-message
        self._signal(agent, signal.SIGTERM)

    def kill(self, agent: AgentLife) -> None:
        """Kill an agent and all processes that it has started."""
        if agent.status.ended:
            return
        agent.rest()
        agent.status = ProcessStatus.STOPPING
        if agent.handle is None:
            self._settle(agent, ProcessStatus.STOPPED)
        else:
            self._signal(agent, signal.SIGKILL)

    def crash(self, agent_id: str) -> bool:
        """Kill a running agent as if it had crashed."""
        agent = self.agents.get(agent_id)
        if agent is None or agent.status is not ProcessStatus.RUNNING:
            return False
        self._signal(agent, signal.SIGKILL)
        return True

    def forget(self, agent_id: str) -> bool:
        """Drop the state of an agent that has ended."""
        agent = self.agents.get(agent_id)
        if agent is None or not agent.status.ended:
            return False
        del self.agents[agent_id]
        return True

    def keep(self) -> None:
        """Pass renewed leases on to the zygote, and start the agents that waited for theirs."""
        kept = [(pid, agent.wanted.until()) for pid, agent in self._by_pid.items() if agent.wanted.until]
        for start in range(0, len(kept), _LEASES_PER_PACKET):
            if self._zygote is not None:
                batch = kept[start : start + _LEASES_PER_PACKET]
                self._zygote.request({"op": "keep", "until": batch}, (), lambda _: None)
        for agent in list(self.agents.values()):
            if agent.status is ProcessStatus.WAITING:
                self._resume(agent)

    def ensure_zygote(self) -> None:
        """Start a zygote unless there is one, or its restart is scheduled."""
        if self._zygote is None and not self._zygote_due and not self.closing:
            self._start_zygote()

    def refuse(self) -> None:
        """Refuse to start agents from now on."""
        self.closing = True

    def close(self) -> None:
        """End the zygote; its remaining agents end with it."""
        self.closing = True
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
        for agent in self.agents.values():
            if agent.handle is not None:
                agent.handle.end_group()
                self._release(agent)
            if not agent.status.ended:
                self._settle(agent, ProcessStatus.STOPPED)

    # The lifecycle of an agent.

    def _want_again(self, known: AgentLife, wanted: DesiredProcess) -> AgentLife:
        if wanted.fence == known.wanted.fence:
            if known.status is ProcessStatus.STOPPING:
                raise Conflict(f"agent {wanted.id!r} is being stopped: start it again when it has ended")
            return known
        # A higher fence: the agent that runs here is an outdated copy. The new one begins when it has ended.
        successor = AgentLife(wanted)
        self.stop(known, self._options.stop_timeout_seconds)
        if known.status.ended:
            return self._begin(successor)
        known.successor = successor
        return successor

    def _begin(self, agent: AgentLife) -> AgentLife:
        self.agents[agent.wanted.id] = agent
        self._launch(agent)
        return agent

    def _launch(self, agent: AgentLife) -> None:
        """Request a process from the zygote, or wait for a zygote."""
        agent.rest()
        if not agent.has_lease:  # guard: launch-under-lease
            self._lease_ended(agent, "its lease ended before its process was started")
            return
        agent.status = ProcessStatus.STARTING
        if self._zygote is None or not self._zygote.ready:
            self.ensure_zygote()
            return
        wanted = agent.wanted
        listener = Hearing(
            lambda info: self._on_ready(agent, info), lambda kind, data: self._on_report(agent, kind, data)
        )
        try:
            handle = agent.handle = Handle(wanted.id, wanted.labels, self._loop, self._options, listener)
        except OSError as error:
            self._ended(agent, f"the host can't open a connection to its process: {error}")
            return
        agent.timer = self._loop.later(
            self._options.ready_timeout_seconds, lambda: self._on_ready_timeout(agent)
        )
        labels, fence = wire.encode(dict(wanted.labels)), b"%d" % wanted.fence
        handle.send(b'{"op":"begin","fence":%b,"labels":%b,"payload":%b}' % (fence, labels, wanted.payload))
        agent.tell()
        until = wanted.until() if wanted.until else None
        request = {"op": "spawn", "id": wanted.id, "entry": wanted.entry, "until": until}
        self._zygote.request(
            {**request, "limits": handle.limited(wanted.limits)},
            handle.give_away(),
            lambda reply: self._on_spawn_reply(agent, handle, reply),
        )

    def _on_spawn_reply(self, agent: AgentLife, handle: Handle, reply: Message) -> None:
        if reply["kind"] == "refused":
            self._release(agent)
            refusal = NotAllowed if reply["type"] == "NotAllowed" else ProcessFailed
            self._ended(agent, reply["error"], refusal)
            return
        handle.began(reply["pid"])
        self._by_pid[handle.pid] = agent
        self.spending.began(handle.pid)
        if agent.status is ProcessStatus.STOPPING:
            # The agent was stopped before its pid was known.
            self._signal(agent, signal.SIGTERM if agent.timer else signal.SIGKILL)
        elif handle.given_up:  # guard: late-process-killed
            # The agent was not ready in time, before the zygote had reported its pid. Without this kill
            # its process stays, and the caller of spawn waits for ever.
            self._signal(agent, signal.SIGKILL)

    def _signal(self, agent: AgentLife, signum: int) -> None:
        handle = agent.handle
        if handle is None or not handle.pid or self._zygote is None:
            return  # it gets the signal when its pid is known, or ends with its zygote
        group = signum == signal.SIGKILL
        request = {"op": "signal", "pid": handle.pid, "signal": int(signum), "group": group}
        self._zygote.request(request, (), lambda _: None)

    def _on_ready(self, agent: AgentLife, info: dict[str, Any]) -> None:
        if agent.status is not ProcessStatus.STARTING or agent.handle is None or agent.handle.given_up:
            return
        agent.rest()
        agent.status = ProcessStatus.RUNNING
        agent.info, agent.lost = info, 0
        if agent.is_new:
            agent.created.set_result(agent.describe())
        self._notify(EventKind.READY, agent)

    def _on_report(self, agent: AgentLife, kind: str, data: dict[str, Any]) -> None:
        self._notify(EventKind.REPORT, agent, kind, data)

    def _on_ready_timeout(self, agent: AgentLife) -> None:
        assert agent.handle is not None
        agent.handle.given_up = f"not ready within {self._options.ready_timeout_seconds:g} s, "
        self._signal(agent, signal.SIGKILL)

    def _on_exit(self, message: Message) -> None:
        agent = self._by_pid[message["pid"]]
        self.spending.saw(message["pid"], message["cpu_seconds"])  # guard: ended-agent-cpu
        handle = agent.handle
        assert handle is not None
        self._release(agent)
        agent.exit_code, agent.max_rss_bytes = message["code"], message["max_rss_bytes"]
        output = handle.error or (handle.output.tail() if agent.is_new or self._options.once else "")
        # guard: lease-end-no-crash
        if message["lease_ended"] and agent.status is not ProcessStatus.STOPPING and not self._options.once:
            agent.restarts += not agent.is_new
            self._lease_ended(agent, "its lease was not renewed in time")
            return
        refusal = AgentRefused if handle.refused else ProcessFailed
        self._ended(agent, handle.given_up + how_it_ended(message["code"]), refusal, output=output)

    def _release(self, agent: AgentLife) -> None:
        """Let go of a process that has ended."""
        if agent.handle is not None:
            self._by_pid.pop(agent.handle.pid, None)
            self.spending.ended(agent.handle.pid)
            agent.handle.close()
            agent.handle = None

    def _ended(
        self, agent: AgentLife, how: str, refusal: type[ProcessError] = ProcessFailed, *, output: str = ""
    ) -> None:
        agent.rest()
        agent.error = f"{how}\n{output}" if output else how
        if agent.status is ProcessStatus.STOPPING:
            self._settle(agent, ProcessStatus.STOPPED)
        elif agent.is_new:
            self._give_up_creation(agent, refusal, how, output)
        elif self._options.once:
            self._settle(agent, ProcessStatus.STOPPED if agent.exit_code == 0 else ProcessStatus.CRASHED)
        else:
            self._crashed(agent)  # guard: exit-zero-crash

    def _give_up_creation(self, agent: AgentLife, refusal: type[ProcessError], how: str, output: str) -> None:
        message = f"agent {agent.wanted.id!r} was not created: {how}" + (f"\n{output}" if output else "")
        failed = issubclass(refusal, ProcessFailed)
        agent.created.set_exception(refusal(message, traceback=output) if failed else refusal(message))
        self._settle(agent, ProcessStatus.CRASHED)
        if self.agents.get(agent.wanted.id) is agent:
            del self.agents[agent.wanted.id]

    def _crashed(self, agent: AgentLife) -> None:
        now = time.monotonic()
        agent.restarted_at = self._options.restarts.recent(agent.restarted_at, now)
        delay = self._options.restarts.delay(agent.restarted_at, now)
        _log.warning(
            "agent process exited unexpectedly",
            agent_id=agent.wanted.id,
            exit_code=agent.exit_code,
            error=agent.error,
            restart_in_seconds=delay,
        )
        if delay is None or self.closing:
            self._settle(agent, ProcessStatus.CRASHED)
            return
        agent.status = ProcessStatus.BACKING_OFF
        agent.timer = self._loop.later(delay, lambda: self._restart(agent))
        self._notify(EventKind.EXITED, agent)

    def _lease_ended(self, agent: AgentLife, why: str) -> None:
        """Keep an agent without a process until its lease is held again; a new agent is not created."""
        agent.rest()
        if agent.is_new:
            self._give_up_creation(agent, ProcessError, f"{why} ({_LEASE_CAUSES}): create it again", "")
            return
        agent.error = f"{why} ({_LEASE_CAUSES}): it is started again when the lease is renewed"
        agent.status = ProcessStatus.WAITING
        _log.warning("agent waiting for lease", agent_id=agent.wanted.id, why=why)
        self._notify(EventKind.EXITED, agent)
        self._resume(agent)

    def _resume(self, agent: AgentLife) -> None:
        """Start a waiting agent if its lease is held again: without it another host may run the agent."""
        if agent.has_lease:
            _log.info("agent restarting, lease held again", agent_id=agent.wanted.id)
            self._launch(agent)

    def _restart(self, agent: AgentLife) -> None:
        agent.restarted_at = (*agent.restarted_at, time.monotonic())
        agent.restarts += 1
        self._launch(agent)

    def _settle(self, agent: AgentLife, status: ProcessStatus) -> None:
        """Set the final status of an agent and begin its successor."""
        agent.status = status
        if agent.is_new:
            agent.created.set_exception(agent.stopped_early())
        successor, agent.successor = agent.successor, None
        self._notify(EventKind.EXITED, agent)
        agent.ended.set_result(True)
        if successor is not None:
            self._begin(successor)

    def _notify(
        self, kind: EventKind, agent: AgentLife, report: str = "", data: dict[str, Any] | None = None
    ) -> None:
        self._publish(ProcessEvent(kind, agent.describe(), report, data or {}))

    # The lifecycle of the zygote.

    def _start_zygote(self) -> None:
        self._zygote_due = False
        if self.closing or self._zygote is not None:
            return
        try:
            self._zygote = ZygoteClient(
                self._loop, self._options, self._on_hello, self._on_exit, self._on_zygote_gone
            )
        except OSError as error:
            self._on_zygote_gone(f"the zygote could not be started: {error}", lived=False)

    def _on_hello(self) -> None:
        self._false_starts = 0
        settle(self.begun)
        for agent in list(self.agents.values()):
            if agent.status is ProcessStatus.STARTING and agent.handle is None:
                self._launch(agent)

    def _on_zygote_gone(self, error: str, *, lived: bool) -> None:
        """The zygote's children end with it; agents that should run are restarted from a new zygote."""
        self._zygote = None
        _log.error("zygote exited", error=error)
        for agent in list(self.agents.values()):
            if agent.handle is not None:
                agent.rest()
                agent.handle.end_group()  # guard: lost-agent-group
                self._await_end(agent, agent.handle)
        if lived:
            self._start_zygote_later(self._zygote_delay())
        else:
            self._on_failed_start(error)

    def _zygote_delay(self) -> float:
        policy, now = self._options.zygote_restarts, time.monotonic()
        before = policy.recent(self._zygote_ends, now)
        self._zygote_ends = (*before, now)
        return policy.backoff(len(before) - 1) if before else 0.0

    def _start_zygote_later(self, delay: float) -> None:
        self._zygote_due = True
        self._loop.later(delay, self._start_zygote)

    def _on_failed_start(self, error: str) -> None:
        self._false_starts += 1
        settle(self.begun, ProcessError(error))
        give_up = self._false_starts > self._options.zygote_restarts.max_restarts
        waiting = [agent for agent in self.agents.values() if agent.handle is None]
        waiting = [agent for agent in waiting if agent.status is ProcessStatus.STARTING]
        for agent in waiting:
            if agent.is_new:
                self._give_up_creation(agent, ProcessError, error, "")
            elif give_up:
                agent.error = error
                self._settle(agent, ProcessStatus.CRASHED)
        if give_up:
            self._false_starts = 0  # the next spawn tries to start a zygote again
        elif any(not agent.is_new for agent in waiting):
            self._start_zygote_later(self._options.zygote_restarts.backoff(self._false_starts - 1))

    def _await_end(self, agent: AgentLife, handle: Handle) -> None:
        """Poll until a lost process has exited: two copies of an agent must never run."""
        if agent.handle is not handle:  # guard: lost-agent-once
            return  # another zygote has ended meanwhile, and this was done for it
        if not handle.is_gone():
            self._loop.later(_POLL_SECONDS, lambda: self._await_end(agent, handle))
            return
        self._release(agent)
        agent.lost += 1
        if agent.status is ProcessStatus.STOPPING:
            self._settle(agent, ProcessStatus.STOPPED)
        elif self._options.once:  # guard: attempt-begins-once
            # The attempt may have begun, even if its pid was never reported: it must not begin again.
            self._ended(agent, "its zygote ended")
        elif agent.is_new and agent.lost >= _LOST_CREATIONS:
            self._give_up_creation(agent, ProcessFailed, "its zygote ended repeatedly", "")
        elif not self.closing:
            agent.error = "its zygote ended"
            agent.restarts += not agent.is_new
            agent.status = ProcessStatus.STARTING
            self._notify(EventKind.EXITED, agent)
            self._launch(agent)
