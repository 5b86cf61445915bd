"""What every test may ask for: a real Valkey, a clean client, and servers and networks that fail on demand."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import structlog

from holdfast.config import LogSettings, RedisSettings
from holdfast.redis import embedded
from holdfast.redis.client import Redis, connect
from holdfast.redis.embedded import EmbeddedServer
from holdfast.telemetry.logs import configure
from tests.support.logs import restored_logs
from tests.support.outages import forget_outages
from tests.support.processes import forked
from tests.support.redis.fault_proxy import FaultProxy
from tests.support.redis.valkey_process import ValkeyProcess
from tests.support.store.postgres import postgres_server, postgres_url, start_postgres  # noqa: F401 - fixtures

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

pytest_plugins = ["tests.support.ordering", "tests.support.not_tested"]

with contextlib.suppress(ModuleNotFoundError):  # Rustic AI's environment has no Hypothesis
    import hypothesis

    # By default an example that takes 0.2 s fails, which any does that has to wait for a CPU.
    hypothesis.settings.register_profile("tests", hypothesis.settings(), deadline=None)
    hypothesis.settings.load_profile("tests")


def pytest_configure(config: pytest.Config) -> None:
    # A background job of a script ignores SIGINT, and so would all that tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):  # once for the whole session, not in each process of pytest-xdist
        session = contextlib.ExitStack()
        session.enter_context(forked.templates(config.args))
        config.add_cleanup(session.close)


def pytest_collection_finish() -> None:
    """What was collected stays until the end: the garbage collector need not look at it again and again."""
    forked.calm_collector()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    from tests.support.processes import xdist_process  # Rustic AI's environment has no pytest-xdist

    xdist_process.fork_processes()


# What a test forks beside gRPC's threads would hang in gRPC's own handlers of that.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# Each pytest process starts a server, all at the same moment.
embedded.START_SECONDS = 120.0

collect_ignore = ["rustic"]
"""It has an environment of its own: see integration/hosts/test_rustic.py."""


@pytest.fixture(autouse=True)
def signal_handlers() -> Iterator[None]:
    """Fails a test that leaves a handler of SIGINT or SIGTERM behind: later ones could not be interrupted."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    after = {number: signal.getsignal(number) for number in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


@pytest.fixture(autouse=True)
def logging_of_the_process() -> Iterator[None]:
    """Fails a test that leaves the logs of its process configured: later ones would write where it did."""
    yield
    was_left = structlog.is_configured()
    if was_left:
        with restored_logs():
            pass
    assert not was_left, "configure() was called: use the fixture log_lines, or undo it"


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A directory whose path leaves room for the name of a socket, unlike tmp_path's."""
    with tempfile.TemporaryDirectory(prefix="hf") as path:
        yield Path(path)


@pytest.fixture
def log_lines() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """What this process has logged since, as JSON has it; whatever other tests did to the loggers."""
    stream = io.StringIO()
    with restored_logs():
        configure(LogSettings(format="json"), stream)
        forget_outages()
        yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans of this process that end during a test; the provider is installed for the test only."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    yield exporter
    provider.shutdown()


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[EmbeddedServer]:
    """One server for all tests of this process; it keeps nothing and ends with it, however that ends."""
    with tempfile.TemporaryDirectory(prefix="hf") as path:
        server = EmbeddedServer(path, append_only=False, port=0)
        server.start_sync()
        yield server
        server.stop_sync()


@pytest.fixture
def redis_url(valkey_server: EmbeddedServer) -> str:
    """Where the shared server is; it is empty, whatever tests ran before."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(valkey_server.socket_path))
        connection.sendall(b"FLUSHALL SYNC\r\n")
        assert connection.recv(64) == b"+OK\r\n"
    return valkey_server.url


@pytest.fixture
def redis_settings(redis_url: str) -> RedisSettings:
    return RedisSettings(url=redis_url)


@pytest.fixture
async def redis(redis_settings: RedisSettings) -> AsyncIterator[Redis]:
    """A client of an empty server."""
    client = connect(redis_settings)
    yield client
    await client.aclose()


@pytest.fixture
def fault_proxy(valkey_server: EmbeddedServer) -> Iterator[FaultProxy]:
    """A proxy in front of the shared server; see FaultProxy for what it can do."""
    with FaultProxy(str(valkey_server.socket_path)) as proxy:
        yield proxy


@pytest.fixture
def proxied_settings(redis_settings: RedisSettings, fault_proxy: FaultProxy) -> RedisSettings:
    """Settings that lead through the proxy, with timeouts short enough to wait for."""
    return msgspec.structs.replace(
        redis_settings, url=fault_proxy.url, socket_timeout_seconds=1.0, connect_timeout_seconds=1.0
    )


@pytest.fixture
def patient_settings(proxied_settings: RedisSettings) -> RedisSettings:
    """Settings that lead through the proxy, for faults that nobody waits for: a busy machine reaches no timeout."""
    return msgspec.structs.replace(
        proxied_settings, socket_timeout_seconds=30.0, connect_timeout_seconds=30.0
    )


StartValkey = Callable[..., ValkeyProcess]


@contextlib.contextmanager
def valkey_processes() -> Iterator[StartValkey]:
    """Start servers by ``start(*options, append_only=True, sentinel=False)``; all are killed at the end."""
    with tempfile.TemporaryDirectory(prefix="hf", ignore_cleanup_errors=True) as root:
        started: list[ValkeyProcess] = []

        def start(*options: str, append_only: bool = True, sentinel: bool = False) -> ValkeyProcess:
            directory = Path(root) / str(len(started))
            directory.mkdir()
            server = ValkeyProcess(directory, *options, append_only=append_only, sentinel=sentinel)
            started.append(server)
            return server.start()

        try:
            yield start
        finally:
            for server in started:
                server.kill()


@pytest.fixture
def start_valkey() -> Iterator[StartValkey]:
    """Start servers of the test's own: ``start_valkey(*options, append_only=True, sentinel=False)``."""
    with valkey_processes() as start:
        yield start


@pytest.fixture(scope="class")
def start_valkey_for_class() -> Iterator[StartValkey]:
    """The same for all tests of a class, where starting is the slow part."""
    with valkey_processes() as start:
        yield start


@pytest.fixture
def restartable_valkey(start_valkey: StartValkey) -> ValkeyProcess:
    """A durable server that the test may kill, freeze and restart on the same socket and port."""
    return start_valkey()
