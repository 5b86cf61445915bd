"""The host's end of one child: its control connection, output and end. Used on the loop's thread only."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from holdfast.processes import procfs, wire
from holdfast.processes.loop import Reader
from holdfast.processes.output import Output
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.processes.limits import Limits
    from holdfast.processes.loop import Loop
    from holdfast.processes.options import ProcessOptions

_FINAL_READ_BYTES: Final = 1024 * 1024
_RETRY_SECONDS: Final = 0.005

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Hearing:
    """The callbacks for the messages of a child."""

    on_ready: Callable[[dict[str, Any]], None]
    on_report: Callable[[str, dict[str, Any]], None]


class Handle:
    """One child, from before its fork to its end."""

    def __init__(
        self, agent_id: str, labels: Mapping[str, str], loop: Loop, options: ProcessOptions, listener: Hearing
    ) -> None:
        self.pid = 0
        self.error, self.refused = "", False
        self.given_up = ""
        self._loop = loop
        self._listener = listener
        self._agent_id = agent_id
        self._started: int | None = None
        self._ready: dict[str, Any] | None = None
        self._outgoing = bytearray()
        self._closed = False
        self._cgroups = options.cgroups
        self._cgroup: str | None = None
        self._control, self._theirs = socket.socketpair()
        try:
            self._pipe, self._their_pipe = os.pipe2(os.O_CLOEXEC)
        except OSError:
            self._control.close()
            self._theirs.close()
            raise
        self.output = Output(agent_id, labels, options)
        self._messages = wire.Lines(wire.MAX_REPORT_BYTES)
        self._control.settimeout(0)
        self._readers = (
            Reader(loop, self._control.fileno(), self._on_data, options.control_bytes_per_second),
            Reader(loop, self._pipe, self.output.feed, options.output_bytes_per_second),
        )

    def limited(self, limits: Limits) -> dict[str, int | str]:
        """Return the limits as JSON for the child, with a cgroup of its own where cgroups are available."""
        cgroup = self._cgroup = self._cgroups.make(limits) if self._cgroups else None
        return limits.as_json() if cgroup is None else replace(limits, cgroup=cgroup).as_json()

    def give_away(self) -> list[int]:
        """Return the child's descriptors, which the caller closes when they are sent."""
        return [self._theirs.detach(), self._their_pipe]

    def began(self, pid: int) -> None:
        """Note the process id of the child."""
        self.pid = pid
        self.output.began(pid)
        self._started = procfs.start_time(pid)
        if self._ready is not None:
            self._listener.on_ready(self._ready)

    def is_gone(self) -> bool:
        """Whether the process has ended, without a zygote that would report it."""
        if self.pid:
            return self._started is None or procfs.start_time(self.pid) != self._started
        # No pid was reported, so the fork may have happened: its end of the connection closes when it exits.
        with contextlib.suppress(BlockingIOError, ConnectionError):
            return not self._control.recv(1, socket.MSG_PEEK)
        return False

    def end_group(self) -> None:
        """Kill the process group of the child, without a zygote that would do it."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def send(self, message: bytes) -> None:
        """Send a line, now or as soon as the child's buffer has space."""
        waiting = bool(self._outgoing)
        self._outgoing += message + b"\n"
        if not waiting:
            self._flush()

    def close(self) -> None:
        """Read the last output and messages of the child, and close its descriptors."""
        if self._closed:
            return
        for reader in self._readers:
            reader.drain(_FINAL_READ_BYTES)
            reader.close()
        self._closed = True
        self.output.end()
        self._control.close()
        os.close(self._pipe)
        if self._cgroups and self._cgroup and self._cgroups.end(self._cgroup):
            self.given_up += "it exceeded its memory limit, "

    def _flush(self) -> None:
        if self._closed:
            return
        try:
            while self._outgoing:
                del self._outgoing[: self._control.send(self._outgoing[: 256 * 1024])]
        except BlockingIOError:
            self._loop.later(_RETRY_SECONDS, self._flush)
        except ConnectionError:
            self._outgoing.clear()  # the child has ended: the zygote reports its exit

    def _on_data(self, data: bytes) -> None:
        for line, cut in self._messages.feed(data)[0]:
            try:
                if cut:
                    raise ValueError(f"longer than {wire.MAX_REPORT_BYTES} bytes")  # noqa: TRY301
                self._dispatch(wire.decode(line))
            except (ValueError, KeyError) as error:
                _log.warning("unreadable message from agent", agent_id=self._agent_id, error=str(error))

    def _dispatch(self, message: wire.Message) -> None:
        match message["kind"]:
            case "ready":
                info = self._ready = dict(message["info"])
                # "ready" can arrive before the zygote's reply with the pid; a running agent needs a pid.
                if self.pid:  # guard: ready-after-pid
                    self._listener.on_ready(info)
            case "report":
                if message["report"] == "log":
                    self.output.tell(dict(message["data"]))
                self._listener.on_report(message["report"], message["data"])
            case "failed":
                # guard: refused-by-caller
                self.error, self.refused = message["traceback"], message.get("refused", False)
            case unknown:
                raise ValueError(f"unknown kind {unknown!r}")
