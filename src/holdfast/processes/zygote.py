"""The zygote: a process with one thread that has imported the agents' libraries and forks on request.

``python -m holdfast.processes.zygote FD HOST_PID``; FD is a SOCK_SEQPACKET socket to the host. Its first
packet is the configuration; every later packet is a request. The zygote and its children end with the host.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from holdfast.clock import boot_time
from holdfast.errors import HoldfastError, NotAllowed, ProcessError
from holdfast.processes import procfs, wire
from holdfast.processes.child import Birth, become
from holdfast.processes.control import LeaseEnd
from holdfast.processes.entries import entry_path, load_entry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.processes.wire import Message

_TRACE_CHARACTERS: Final = 4000


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration that the host sends to its zygote once, before any fork."""

    entries: Mapping[str, str]
    preload: Sequence[str]
    prepare: Sequence[Sequence[str]]
    prefixes: Sequence[str]
    path: Sequence[str]
    freeze_seconds: float | None = None

    def as_json(self) -> Message:
        """Return the first packet."""
        return {
            "entries": dict(self.entries),
            "preload": list(self.preload),
            "prepare": [list(each) for each in self.prepare],
            "prefixes": list(self.prefixes),
            "path": list(self.path),
            "freeze_seconds": self.freeze_seconds,
        }


class Zygote:
    """Forks on request, reaps and reports; it ends when the host ends, and kills its children."""

    def __init__(self, host: socket.socket, config: Config) -> None:
        self._host = host
        self._config = config
        self._agents: set[int] = set()
        self._lease_ends: dict[int, LeaseEnd] = {}
        self._overdue: set[int] = set()
        self._timer = None if config.freeze_seconds is None else procfs.KillTimer()
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._leaving = False
        self._host_pid = os.getppid()

    def serve(self) -> None:
        """Serve requests until the host has ended."""
        self._listen_to_signals()
        try:
            while not self._leaving:
                self._set_timer()
                readable, _, _ = select.select([self._host, self._woken], [], [], self._select_timeout())
                if self._woken in readable:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._woken, 4096)
                self._reap()
                if self._host in readable:
                    self._handle_request()
                self._end_overdue()  # guard: zygote-ends-overdue
        except ConnectionError:
            pass  # the host has ended: a reply can't be sent either
        finally:
            self._end_all()  # guard: zygote-exit-ends-all

    def _listen_to_signals(self) -> None:
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._on_sigchld)
        signal.signal(signal.SIGTERM, self._leave)
        # Sent when the *thread* that started us ends, which need not be the end of the host.
        signal.signal(signal.SIGHUP, self._leave_if_alone)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _on_sigchld(self, *_: object) -> None:
        """Do nothing: without a handler no signal is written to the wakeup descriptor."""

    def _leave(self, *_: object) -> None:
        self._leaving = True

    def _leave_if_alone(self, *_: object) -> None:
        self._leaving = self._leaving or os.getppid() != self._host_pid  # guard: zygote-host-gone

    def _handle_request(self) -> None:
        received = wire.receive_packet(self._host)
        if received is None:
            self._leaving = True
            return
        request, descriptors = received
        if request["op"] == "spawn":
            try:
                reply = self._spawn(request, descriptors)
            except (NotAllowed, ProcessError, OSError, ValueError) as error:
                reply = {"kind": "refused", "error": str(error), "type": type(error).__name__}
            finally:
                wire.close_all(descriptors)
        elif request["op"] == "keep":
            self._keep(request["until"])
            reply = {"kind": "kept"}
        else:
            reply = self._signal(request)
        wire.send_packet(self._host, {**reply, "request": request["request"]})

    def _spawn(self, request: Message, descriptors: list[int]) -> Message:
        path = entry_path(request["entry"], self._config.entries)
        check_threads("the zygote")  # guard: zygote-fork-single-thread
        if len(descriptors) != 2:
            raise ProcessError("the zygote has no descriptors left: raise the limit of open files")
        control, output = descriptors
        lease_end = None if request["until"] is None else LeaseEnd(request["until"])
        birth = Birth(
            id=request["id"],
            entry=path,
            prefixes=tuple(self._config.prefixes),
            limits=request["limits"],
            control=control,
            output=output,
            zygote=os.getpid(),
            lease_end=lease_end,
        )
        sys.stdout.flush()
        sys.stderr.flush()
        # Until the child has its own handlers no signal may reach it: it would write to our wakeup pipe.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if pid == 0:
                become(birth)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._agents.add(pid)
        if lease_end is not None:
            self._lease_ends[pid] = lease_end
        return {"kind": "spawned", "pid": pid}

    def _keep(self, until: Sequence[tuple[int, float]]) -> None:
        """Store renewed leases; a lease that has ended stays ended, because its child is being killed."""
        for pid, at in until:
            if pid in self._lease_ends:
                self._lease_ends[pid].at = at  # guard: child-reads-renewals

    def _next_end(self) -> float | None:
        return min((lease.at for lease in self._lease_ends.values()), default=None)

    def _select_timeout(self) -> float | None:
        end = self._next_end()
        return None if end is None else max(0.0, end - boot_time())

    def _set_timer(self) -> None:
        """Have the kernel kill this zygote if it is frozen past the end of a lease; its children end with it.

        A frozen zygote can't kill a child. After a thaw its children might run before it does.
        """
        if self._timer is not None:
            end = self._next_end()
            self._timer.set(None if end is None else end + (self._config.freeze_seconds or 0.0))

    def _end_overdue(self) -> None:
        """Kill the agents source lease was not renewed in time, as by a host that is frozen."""
        now = boot_time()
        for pid in [pid for pid, lease in self._lease_ends.items() if lease.at <= now]:
            self._lease_ends.pop(pid).close()
            self._overdue.add(pid)
            self._signal({"pid": pid, "signal": signal.SIGKILL, "group": True})

    def _signal(self, request: Message) -> Message:
        pid = request["pid"]
        # Only children that are not reaped: their pid can't belong to another process.
        if pid not in self._agents:
            return {"kind": "gone"}
        if request["group"]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, request["signal"])
                return {"kind": "signalled"}
            # The child has no group yet, because it has not called setsid; nor has it started a process.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, request["signal"])
        return {"kind": "signalled"}

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                self._reap_child(ended.si_pid)

    def _reap_child(self, pid: int) -> None:
        """Reap a child; if it was an agent, kill its group and orphans, then report its exit to the host."""
        if pid in self._agents:
            # Before the reaping: until then no other group can get this number.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # guard: child-group-killed
        _, status, used = os.wait4(pid, 0)
        agent, overdue = pid in self._agents, pid in self._overdue
        self._agents.discard(pid)
        self._overdue.discard(pid)
        if lease_end := self._lease_ends.pop(pid, None):
            lease_end.close()
        # A living agent adopts its orphans (child.py), so an unknown child of ours is a dead agent's orphan.
        for orphan in set(procfs.children()) - self._agents:  # guard: child-orphans-killed
            with contextlib.suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)
        if agent:
            code = os.waitstatus_to_exitcode(status)
            wire.send_packet(
                self._host,
                {
                    "kind": "exit",
                    "pid": pid,
                    "code": code,
                    "lease_ended": overdue,
                    "max_rss_bytes": used.ru_maxrss * 1024,
                    "cpu_seconds": used.ru_utime + used.ru_stime,
                },
            )

    def _end_all(self) -> None:
        """Kill every descendant that can still be found; the kernel kills the rest when this process ends."""
        signal.set_wakeup_fd(-1)
        while left := self._agents | set(procfs.children()):
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            pid, _ = os.wait()
            self._agents.discard(pid)


def check_threads(source: str) -> None:
    """Raise if a fork would leave threads, and the locks that they hold, behind."""
    count = procfs.thread_count()
    if count != 1:
        raise ProcessError(
            f"{source} started a thread ({count} now): a process with threads can't be forked safely. "
            "Take the module off the preload list, or keep it from starting threads when it is imported "
            "(numpy: OPENBLAS_NUM_THREADS=1)"
        )


def preload(modules: Sequence[str], prepare: Sequence[Sequence[str]] = ()) -> None:
    """Import and prepare, then freeze all objects, so that garbage collection unshares no pages."""
    for module in modules:
        importlib.import_module(module)
        check_threads(f"preloading {module}")  # guard: zygote-preload-single-thread
    for path, argument in prepare:
        load_entry(path)(argument)
        check_threads(f"preparing {path}")  # never the argument: it may be settings, with their passwords
    _warm_up_pydantic()
    gc.collect()
    gc.freeze()


def _warm_up_pydantic() -> None:
    """Make a first model: it loads half of pydantic, and searches every installed package for plugins."""
    if pydantic := sys.modules.get("pydantic"):
        pydantic.create_model("First", number=(int, ...))


def main(arguments: Sequence[str]) -> int:
    """Run a zygote."""
    descriptor, host_pid = int(arguments[0]), int(arguments[1])
    procfs.die_with_parent(signal.SIGHUP)  # guard: zygote-dies-with-host
    if os.getppid() != host_pid:
        return 0  # the host ended before die_with_parent was in effect
    # The host may have been started with signals blocked, and a mask survives the exec.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    procfs.adopt_orphans()  # guard: zygote-adopts-orphans
    procfs.name_process("hf-zygote")
    # The host may end at any time, also before our first message.
    with socket.socket(fileno=descriptor) as host, contextlib.suppress(ConnectionError):
        received = wire.receive_packet(host)
        if received is None:
            return 0
        config = Config(**received[0])
        sys.path[:] = config.path
        try:
            preload(config.preload, config.prepare)
        except BaseException as error:
            wire.send_packet(host, {"kind": "broken", "error": _error_text(error)})
            return 1
        zygote = Zygote(host, config)
        wire.send_packet(host, {"kind": "hello", "pid": os.getpid()})
        zygote.serve()
    return 0


def _error_text(error: Any) -> str:
    if isinstance(error, HoldfastError):
        return str(error)
    return "".join(traceback.format_exception(error))[-_TRACE_CHARACTERS:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
