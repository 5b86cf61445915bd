"""Python programs for tests, forked from a process that has imported Holdfast already.

A fresh interpreter spends most of a second of CPU on imports, and the tests start a thousand of them. ``forked.Popen`` and
``forked.run`` are those of ``subprocess`` for commands that begin with ``sys.executable``: a real process with its own
pid, pipes, environment and working directory. One process per test session, the template, keeps the imports; it starts
with the first program that needs it and ends with pytest. A test whose subject is the interpreter itself (import time,
memory, a library that is missing) uses ``subprocess``.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import importlib
import inspect
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.config.schema import leaves
from tests.support.paths import ROOT

FOLDER = "TEMPLATES_OF_TEST_PROGRAMS"
"""The variable that leads every pytest process of a session to the same templates. No setting: tests remove those."""

TEMPLATES: dict[str, tuple[str, ...]] = {
    "holdfast": (
        "holdfast.cli.root",
        "holdfast.services.api",
        "holdfast.services.host",
        "holdfast.services.janitor",
        "holdfast.services.relay",
        "holdfast.services.scaler",
        "holdfast.services.scheduler",
        "holdfast.services.worker",
        "psycopg_pool",
        "uvicorn",
    ),
    "frameworks": (
        "agents.testing",
        "fastapi.testclient",
        "holdfast.services.worker",
        "langgraph.graph",
        "langgraph.func",
        "psycopg_pool",
        "pydantic_ai.models.function",
        "pytest",
    ),
    "tests": (),
}
"""What each template has imported. The last one is forked from the one before it and has imported the session's tests;
the processes of pytest-xdist are forked from it."""

_ARGUMENTS = "arguments"
"""The file that tells the template of the tests what the session's pytest was asked to run."""

_GC_THRESHOLDS = (20_000, 20, 100)

_started: list[subprocess.Popen[Any]] = []
"""Forked templates. Each of them ends when the process that holds its Popen does."""

_LARGEST_REQUEST = 1 << 20


class Popen(subprocess.Popen[Any]):
    """``subprocess.Popen`` of a Python program; ``template`` names what it has imported from the start."""

    def __init__(self, command: Sequence[str], *, template: str = "holdfast", **options: Any) -> None:
        assert command[0] == sys.executable, f"not a Python program: {command}"
        self._template = template
        super().__init__(command, **options)

    def _execute_child(self, args: Sequence[str], *others: Any) -> None:
        """Let the template fork the process, in place of fork and exec in this one."""
        names = list(inspect.signature(subprocess.Popen._execute_child).parameters)[2:]
        given = dict(zip(names, others, strict=True))
        unknown = [name for name in ("preexec_fn", "pass_fds", "shell") if given[name]]
        assert not unknown, f"a forked program has no {unknown}: start it by subprocess.Popen"
        request = {
            "arguments": list(args[1:]),
            "cwd": os.fspath(given["cwd"] or Path.cwd()),
            "environ": dict(os.environ if given["env"] is None else given["env"]),
            "new_session": bool(given["start_new_session"]),
        }
        theirs = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        self._status, status = socket.socketpair()
        with status, _connected(self._template) as template:
            streams = [fd if fd != -1 else number for number, fd in enumerate(theirs)]
            socket.send_fds(template, [json.dumps(request).encode()], [*streams, status.fileno()])
        self.pid = int(self._read())
        self._child_created = True
        ours = [given[name] for name in ("p2cwrite", "c2pread", "errread")]
        devnull = getattr(self, "_devnull", None)
        for fd in {fd for fd, other in zip(theirs, ours, strict=True) if other != -1} | {devnull} - {None}:
            os.close(fd)

    def _read(self) -> str:
        """Read one line from the template: the pid at once, the exit status when the process has ended."""
        line = b""
        while not line.endswith(b"\n"):
            byte = self._status.recv(1)
            assert byte, "the template of this process has ended"
            line += byte
        return line.decode()

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if wait_flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        status = int(self._read())
        self._status.close()
        return self.pid, status

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):
            try:
                if self.returncode is None:
                    pid, status = self._try_wait(os.WNOHANG)
                    if pid == self.pid:
                        self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode


def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[Any]:
    """``subprocess.run`` of a Python program."""
    given, timeout, check = options.pop("input", None), options.pop("timeout", None), options.pop("check")
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if given is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(command, **options) as process:
        try:
            out, err = process.communicate(given, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def calm_collector() -> None:
    """Look for garbage less often, and never among what is there already: that took a twelfth of the suite's CPU."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _folder() -> Path:
    """The folder of this session's template sockets; ``templates()`` has made it."""
    return Path(os.environ[FOLDER])


@contextlib.contextmanager
def templates(arguments: Sequence[str]) -> Iterator[None]:
    """For a whole pytest session with these arguments: where its templates listen. They end when this process does."""
    with tempfile.TemporaryDirectory(prefix="hf", ignore_cleanup_errors=True) as folder:
        (Path(folder) / "pid").write_text(str(os.getpid()))
        (Path(folder) / _ARGUMENTS).write_text(json.dumps(list(arguments)))
        before = os.environ.get(FOLDER)
        os.environ[FOLDER] = folder
        try:
            yield
        finally:
            while _started:
                template = _started.pop()
                template.kill()
                template.wait()
            os.environ.pop(FOLDER)
            if before is not None:
                os.environ[FOLDER] = before


def _connected(name: str) -> socket.socket:
    """Connect to a template; the first that needs it starts it."""
    address = str(_folder() / name)
    # Any other error is not of a template that is missing, and starting another one would hide it.
    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
        return _connect(address)
    with (_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            return _connect(address)
        _start(name)
    return _connect(address)


def _connect(address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(address)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LARGEST_REQUEST)
    except OSError:
        connection.close()
        raise
    return connection


def _start(name: str) -> None:
    """Start a template and return when it listens; what it prints is in its log."""
    is_forked = name == "tests"
    start = functools.partial(Popen, template="frameworks") if is_forked else subprocess.Popen
    with (_folder() / f"{name}.log").open("wb") as log:
        process = start(
            [sys.executable, "-m", "tests.support.processes.forked", str(_folder()), name],
            cwd=ROOT,
            # gRPC's own handlers of a fork would wait for threads that a template does not have.
            env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    with process.stdout as ready:
        if ready.readline() != b"ready\n":
            raise AssertionError((_folder() / f"{name}.log").read_text())
    if is_forked:
        _started.append(process)
    else:
        # It ends with the session's first pytest process, which may not be this one.
        process.returncode = 0


class _Template:
    """Fork a program per request; send the caller its pid, then how it ended."""

    def __init__(self, folder: Path, name: str) -> None:
        self._session = os.pidfd_open(int((folder / "pid").read_text()))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Named once it listens, in the place of one whose template has ended: a connection is never refused meanwhile.
        unnamed = folder / f"{name}.{os.getpid()}"
        self._listener.bind(str(unnamed))
        self._listener.listen(64)
        unnamed.rename(folder / name)
        self._woken, wakes = socket.socketpair()
        self._woken.setblocking(False)
        wakes.setblocking(False)
        self._wakes = wakes
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
        self._children: dict[int, socket.socket] = {}

    def serve(self) -> dict[str, Any]:
        """Return in each forked child, with what it is to run; the template itself never returns."""
        print("ready", flush=True)
        while True:
            watched = [self._session, self._listener, self._woken, *self._children.values()]
            readable, _, _ = select.select(watched, [], [])
            if self._session in readable:
                self._end()
            if self._woken in readable:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
                self._reap()
            for pid in [pid for pid, status in self._children.items() if status in readable]:
                # The test process that started it is gone.
                os.kill(pid, signal.SIGKILL)
                self._children[pid].close()
                self._children[pid] = self._forgotten()
            if self._listener in readable and (request := self._accept()):
                return request

    def _accept(self) -> dict[str, Any] | None:
        connection, _ = self._listener.accept()
        with connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LARGEST_REQUEST)
            data, fds, _, _ = socket.recv_fds(connection, _LARGEST_REQUEST, 4)
        if not data:
            return None
        streams, status = fds[:3], socket.socket(fileno=fds[3])
        pid = os.fork()
        if pid == 0:
            self._become_child(streams, status)
            return json.loads(data)
        for fd in streams:
            os.close(fd)
        self._children[pid] = status
        with contextlib.suppress(OSError):
            status.sendall(f"{pid}\n".encode())
        return None

    def _become_child(self, streams: list[int], status: socket.socket) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for own in (self._listener, self._woken, self._wakes, status, *self._children.values()):
            own.close()
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
        os.closerange(3, 1024)

    def _reap(self) -> None:
        """Report how a process ended before its pid is gone: a test must not see one without the other."""
        while self._children:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return
            code = ended.si_status << 8 if ended.si_code == os.CLD_EXITED else ended.si_status
            with self._children.pop(ended.si_pid) as status, contextlib.suppress(OSError):
                status.sendall(f"{code}\n".encode())
            os.waitpid(ended.si_pid, 0)

    @staticmethod
    def _forgotten() -> socket.socket:
        """Stand in for a connection that is gone, until its process has been reaped."""
        return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def _end(self) -> None:
        for pid in self._children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os._exit(0)


def _prepare(request: Mapping[str, Any]) -> None:
    """Make a forked child look as an interpreter does that has just been started."""
    if request["new_session"]:
        os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    time.tzset()
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - it ends with the process
    raw = io.FileIO(1, "w", closefd=False)
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdout = io.TextIOWrapper(
        raw if unbuffered else io.BufferedWriter(raw),
        encoding="utf-8",
        line_buffering=os.isatty(1),
        write_through=unbuffered,
    )
    sys.stderr = io.TextIOWrapper(
        io.FileIO(2, "w", closefd=False), encoding="utf-8", errors="backslashreplace", write_through=True
    )
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    extra = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    # Without the working directory of the template, which `-m` has put first.
    sys.path[:] = [*extra, *(folder for folder in sys.path[1:] if folder not in extra)]


def _run(arguments: list[str]) -> None:
    """Run what ``python ARGUMENTS`` would."""
    import runpy

    kind, what, *rest = arguments
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    if kind == "-c":
        sys.argv = ["-c", *rest]
        sys.path.insert(0, "")
        exec(compile(what, "<string>", "exec"), main.__dict__)
    elif kind == "-m":
        sys.argv = ["-m", *rest]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        raise SystemExit(f"a forked program is started by -c or -m, not by {kind}")


def _import_tests(arguments: list[str]) -> None:
    """Import what a pytest with these arguments collects, as it would: with its ``assert`` that explains itself."""
    import pytest

    before = set(sys.modules)
    with contextlib.redirect_stdout(sys.stderr):
        code = pytest.main(["--collect-only", "-qq", "-n0", *arguments])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        # Pytest leaves a module that it could not import in sys.modules. The forked processes would take it for one
        # without tests; when they import it again, they report its error.
        for name in sys.modules.keys() - before:
            if name.partition(".")[0] == "tests":
                del sys.modules[name]


def _main(folder: str, name: str) -> None:
    for module in TEMPLATES[name]:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as exc:
            # Rustic AI's environment has hosts, but not all that the other processes need.
            if (exc.name or "").partition(".")[0] in {"holdfast", "tests"}:
                raise
    leaves()  # the table of settings, which each program would make by itself
    if name == "tests":
        _import_tests(json.loads((Path(folder) / _ARGUMENTS).read_text()))
        threads = sorted(
            path.joinpath("comm").read_text().strip() for path in Path("/proc/self/task").iterdir()
        )
        assert len(threads) == 1, (
            f"a test module starts a thread when it is imported, so no process can be forked: {threads}"
        )
    calm_collector()
    request = _Template(Path(folder), name).serve()
    _prepare(request)
    _run(request["arguments"])


if __name__ == "__main__":
    _main(*sys.argv[1:])
