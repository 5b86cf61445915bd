"""A Valkey, two hosts, and guilds that use them."""

from __future__ import annotations

import atexit
import contextlib
import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from rustic_ai.core.guild.builders import GuildBuilder
from rustic_ai.core.guild.guild import Guild
from rustic_ai.core.guild.metastore import Metastore
from rustic_ai.core.messaging import MessagingConfig

from holdfast.compat.rustic import K8sExecutionEngine
from holdfast.redis.embedded import EmbeddedServer
from tests.support.hosts.rustic_system import ENGINE, ORGANIZATION, TTL_SECONDS, Hosts, answering
from tests.support.processes import forked


def pytest_configure(config: pytest.Config) -> None:
    # Rustic's thread for a client looks for its queue once more after the client has left.
    config.addinivalue_line("filterwarnings", "ignore::pytest.PytestUnhandledThreadExceptionWarning")
    session = contextlib.ExitStack()
    session.enter_context(forked.templates(config.args))
    config.add_cleanup(session.close)


@pytest.fixture(scope="session")
def valkey() -> EmbeddedServer:
    """It outlives pytest: Rustic's own tests leave threads behind that listen to it until the process ends.

    Without it they fail, and a failure after the last test is pytest's exit code 1, though all tests have passed.
    """
    folder = tempfile.TemporaryDirectory(prefix="hf")
    atexit.register(folder.cleanup)
    server = EmbeddedServer(folder.name, append_only=False, port=0)
    server.start_sync()
    atexit.register(server.stop_sync)
    return server


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where hosts find modules that a test writes."""
    return tmp_path_factory.mktemp("modules")


@pytest.fixture(scope="session")
def all_hosts(valkey: EmbeddedServer, folder: Path) -> Iterator[Hosts]:
    # Engines are made from a class path and two arguments: the rest is in the environment.
    os.environ["REDIS_URL"] = valkey.tcp_url
    os.environ["HOLDFAST_HOSTS_TTL_SECONDS"] = str(TTL_SECONDS)
    hosts = Hosts(valkey.tcp_url, folder)
    try:
        yield hosts
    finally:
        hosts.close()


@pytest.fixture
def hosts(all_hosts: Hosts) -> Hosts:
    all_hosts.ensure()
    return all_hosts


@pytest.fixture
def messaging(hosts: Hosts, valkey: EmbeddedServer) -> MessagingConfig:
    return MessagingConfig(
        backend_module="rustic_ai.redis.messaging.backend",
        backend_class="RedisMessagingBackend",
        backend_config={"redis_client": {"host": "127.0.0.1", "port": valkey.port}},
    )


@pytest.fixture
def org_id() -> str:
    return ORGANIZATION


@pytest.fixture
def guild_id() -> str:
    return f"guild-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def engine(hosts: Hosts, guild_id: str) -> Iterator[K8sExecutionEngine]:
    engine = K8sExecutionEngine(guild_id, ORGANIZATION)
    yield engine
    engine.shutdown()


@pytest.fixture
def guild(hosts: Hosts, guild_id: str, messaging: MessagingConfig) -> Iterator[Guild]:
    guild = Guild(
        id=guild_id,
        name="The guild",
        description="A guild for tests",
        organization_id=ORGANIZATION,
        execution_engine_clz=ENGINE,
        messaging_config=messaging,
    )
    yield guild
    guild.shutdown()


@pytest.fixture
def builder(hosts: Hosts, guild_id: str, messaging: MessagingConfig) -> GuildBuilder:
    """A guild of two agents that is yet to be bootstrapped."""
    builder = GuildBuilder(guild_id, "The guild", "A guild for tests")
    builder.set_execution_engine(ENGINE)
    builder.set_messaging(messaging.backend_module, messaging.backend_class, messaging.backend_config)
    for name in ("one", "two"):
        builder.add_agent_spec(answering(name))
    return builder


@pytest.fixture(scope="session")
def metastore(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('metastore') / 'guilds.db'}"
    Metastore.initialize_engine(url)
    return url
