"""A Valkey process of a test's own, which it may kill, freeze and restart on the same socket and port."""

from __future__ import annotations

import atexit
import ctypes
import signal
import socket
import subprocess
from collections import deque
from pathlib import Path

from holdfast.redis.embedded import find_server
from tests.support.waiting import PATIENCE_SECONDS, wait_until

_reserved: deque[socket.socket] = deque()
_MOST_RESERVED = 100


def free_port() -> int:
    """Return a port that stays free for the server of a test, also until that is started again.

    A socket of ours stays bound to it, so no connection on this machine gets it as its own end by chance. A server
    may listen there all the same, because both allow the reuse of the address; without one, connections are refused.
    """
    probe = socket.socket()
    probe.bind(("127.0.0.1", 0))
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _reserved.append(probe)
    if len(_reserved) > _MOST_RESERVED:
        _reserved.popleft().close()
    return int(probe.getsockname()[1])


@atexit.register
def _release_ports() -> None:
    for probe in _reserved:
        probe.close()


_libc = ctypes.CDLL(None)


def _die_with_parent() -> None:
    _libc.prctl(1, signal.SIGKILL)


class ValkeyProcess:
    """``start``, ``kill`` (-9), ``freeze`` (SIGSTOP), ``thaw`` (SIGCONT), ``restart``; ``url``, ``tcp_url``."""

    def __init__(
        self, directory: Path, *options: str, append_only: bool = True, sentinel: bool = False
    ) -> None:
        self.directory = directory
        self.socket_path = directory / "v.sock"
        self.port = free_port()
        self._options = ("--appendonly", "yes" if append_only else "no", *options)
        self._sentinel = sentinel
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.socket_path}"

    @property
    def tcp_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> ValkeyProcess:
        """Start it and return when it answers."""
        command = [str(find_server()), *self.arguments()]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - it makes one system call and nothing else
            )
        self.wait_until_up()
        return self

    def arguments(self) -> list[str]:
        if self._sentinel:
            file = self.directory / "sentinel.conf"  # a sentinel writes what it learns into its file
            file.write_text(f"port {self.port}\nbind 127.0.0.1\ndir {self.directory}\n")
            return [str(file), "--sentinel"]
        return [
            *("--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self.socket_path)),
            # A reply is sent after the write to the file, so a killed server loses nothing; no test waits for fsync.
            *("--dir", str(self.directory), "--save", "", "--appendfsync", "no"),
            *self._options,
        ]

    def ask(self, command: str, timeout: float = PATIENCE_SECONDS) -> str:
        """Send one inline command over TCP and return the start of its raw reply."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            connection.sendall(command.encode() + b"\r\n")
            return connection.recv(65536).decode()

    def wait_until_up(self) -> None:
        self.wait_for("PING", "+PONG")

    def wait_for(self, command: str, wanted: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Ask until the reply contains ``wanted``."""

        def reply() -> str:
            assert self._process is not None
            assert self._process.poll() is None, "the server has ended"
            return self.ask(command, timeout=5)

        what = f"{wanted!r} as reply to {command}"
        try:
            wait_until(reply, lambda reply: wanted in reply, what=what, seconds=seconds, tolerate=OSError)
        except AssertionError as exc:
            exc.add_note((self.directory / "log").read_text())
            raise

    def kill(self) -> None:
        """Kill it as ``kill -9`` does: no goodbye, no flush."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_SECONDS)
            self._process = None

    def freeze(self) -> None:
        """Stop it without closing anything: connections hang."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kill it and start it again on the same directory, socket and port."""
        self.kill()
        self.start()
