"""TLS of hosts: who shows what to whom, what is refused, and what is said when a file is wrong."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import grpc
import msgspec
import pytest
from grpc import aio

from holdfast.config import HostSettings
from holdfast.errors import ConfigError, NoHost
from holdfast.hosts.agent import AgentStatus
from holdfast.hosts.engine import HostEngine
from holdfast.hosts.factory import open_engine
from holdfast.hosts.proto import agent_host_pb2 as wire
from holdfast.hosts.proto.agent_host_pb2_grpc import AgentHostServiceStub
from holdfast.hosts.remote import RemoteCalls
from holdfast.hosts.security import server_credentials
from tests.support.hosts.host_processes import agent, cluster_of

HERE = Path(__file__).parents[2] / "certificates"
CA, CERTIFICATE, KEY = (str(HERE / name) for name in ("ca.pem", "server.pem", "server.key"))
OTHER_CA, OTHER, OTHER_KEY = (str(HERE / name) for name in ("other-ca.pem", "other.pem", "other.key"))
MUTUAL = {"tls_certificate": CERTIFICATE, "tls_key": KEY, "tls_ca": CA}
ONE_WAY = {**MUTUAL, "tls_verify_callers": False}


def environ(**settings) -> dict[str, str]:
    """The settings as a host child reads them."""
    return {
        f"HOLDFAST_HOSTS_{name.upper()}": str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
    }


@pytest.fixture(autouse=True)
def _empty(redis):
    """Every test has an empty Redis."""


def engine_with(cluster, **settings) -> HostEngine:
    """Another engine of the cluster, with other files."""
    hosts = msgspec.structs.replace(cluster.settings.hosts, **settings)
    return open_engine(msgspec.structs.replace(cluster.settings, hosts=hosts), cluster.redis)


async def refused(cluster, **settings) -> str:
    """Have an engine with these files try to run an agent; returns what it is told."""
    engine = engine_with(cluster, **settings)
    try:
        with pytest.raises(NoHost) as caught:
            await engine.run(agent("nobody"))
        return str(caught.value)
    finally:
        await engine.close()


async def test_both_sides_show_a_certificate(redis_settings):
    async with cluster_of(redis_settings, ttl_seconds=3.0, **MUTUAL) as cluster:
        await cluster.start("a", "b", **environ(**MUTUAL))
        placed = await cluster.engine.run(agent())
        assert placed.status is AgentStatus.RUNNING
        # Hosts call each other the same way.
        cluster.children[placed.host].kill()
        assert (await cluster.where("x", not_on=placed.host)).status is AgentStatus.RUNNING


async def test_a_caller_without_a_certificate_is_refused_where_hosts_ask_for_one(redis_settings):
    async with cluster_of(redis_settings, **MUTUAL) as cluster:
        await cluster.start("a", **environ(**MUTUAL))
        told = await refused(cluster, tls_certificate="", tls_key="")
        assert "UNAVAILABLE" in told
        told = await refused(cluster, tls_certificate=OTHER, tls_key=OTHER_KEY)
        assert "UNAVAILABLE" in told, "one of another authority is none"
        assert await cluster.engine.registry.get("nobody") is not None
        assert (await cluster.engine.run(agent())).status is AgentStatus.RUNNING


async def test_a_caller_checks_whom_it_calls(redis_settings):
    async with cluster_of(redis_settings, tls_ca=CA) as cluster:
        await cluster.start("a", "b", **environ(**ONE_WAY))
        assert "UNAVAILABLE" in await refused(cluster, tls_ca=OTHER_CA)
        assert "UNAVAILABLE" in await refused(cluster, tls_ca="")
        placed = await cluster.engine.run(agent())
        assert placed.status is AgentStatus.RUNNING
        cluster.children[placed.host].terminate()
        assert await cluster.children[placed.host].exited(60) == 0
        moved = await cluster.where("x", not_on=placed.host)
        assert moved.host != placed.host


async def test_new_certificates_are_shown_without_a_restart(redis_settings, tmp_path):
    certificate, key, ca = (tmp_path / name for name in ("tls.crt", "tls.key", "ca.crt"))
    for source, target in ((CERTIFICATE, certificate), (KEY, key), (CA, ca)):
        shutil.copy(source, target)
    files = {"tls_certificate": certificate, "tls_key": key, "tls_ca": ca}
    as_text = {name: str(path) for name, path in files.items()}
    async with cluster_of(redis_settings, **as_text) as cluster:
        (host,) = await cluster.start("a", **environ(**as_text))
        before = await cluster.engine.run(agent())
        key.write_text("half of a k")
        assert (await health(host.address, CA, CERTIFICATE, KEY)).hostname == "a", "the old one stays"
        for source, target in ((OTHER, certificate), (OTHER_KEY, key), (OTHER_CA, ca)):
            shutil.copy(source, target)
        assert (await health(host.address, OTHER_CA, OTHER, OTHER_KEY)).hostname == "a"
        with pytest.raises(aio.AioRpcError):
            await health(host.address, CA, CERTIFICATE, KEY)
        assert (await cluster.engine.run(agent("y"))).host == "a", "an engine reads its files again"
        assert (await cluster.where("x")).pid == before.pid
        assert "the new certificate can't be used" in host.logged()


async def test_a_caller_calls_with_its_new_files(tmp_path):
    """Fails if a channel is kept that shows what was there when it was opened."""
    ca = tmp_path / "ca.crt"
    shutil.copy(CA, ca)
    calls = RemoteCalls(HostSettings(tls_ca=str(ca)))
    first = calls._stub("127.0.0.1:1")
    assert calls._stub("127.0.0.1:1") is first
    channel, _ = calls._channels["127.0.0.1:1"]
    shutil.copy(OTHER_CA, ca)
    assert calls._stub("127.0.0.1:1") is not first
    await calls.close()
    await channel.close()


async def health(address: str, ca: str, certificate: str, key: str) -> wire.HealthResponse:
    """Ask over a connection of its own."""
    parts = [Path(path).read_bytes() for path in (ca, key, certificate)]
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with aio.secure_channel(address, grpc.ssl_channel_credentials(*parts), options=options) as channel:
        return await AgentHostServiceStub(channel).Health(wire.HealthRequest(), timeout=20)


@pytest.mark.parametrize("listen", ["0.0.0.0", "::", "192.0.2.7", "example.org"])
def test_beyond_this_machine_a_host_needs_tls_or_a_word(listen):
    with pytest.raises(ConfigError, match=r"reaches beyond this machine: set hosts.tls_certificate"):
        server_credentials(HostSettings(listen=listen))
    assert server_credentials(HostSettings(listen=listen, insecure=True)) is None
    assert server_credentials(HostSettings(listen=listen, **MUTUAL)) is not None


@pytest.mark.parametrize("listen", ["127.0.0.1", "127.0.0.53", "::1", "localhost"])
def test_on_this_machine_it_needs_none(listen):
    assert server_credentials(HostSettings(listen=listen)) is None


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            {"tls_certificate": "/nowhere/tls.crt", "tls_key": KEY},
            "tls_certificate = '/nowhere/tls.crt' can't be read",
        ),
        (
            {"tls_certificate": CERTIFICATE, "tls_key": "/nowhere/tls.key"},
            "tls_key = '/nowhere/tls.key' can't be read",
        ),
        ({"tls_certificate": CERTIFICATE}, "hosts.tls_key is not: TLS needs both"),
        ({**MUTUAL, "tls_ca": "/nowhere/ca.crt"}, "tls_ca = '/nowhere/ca.crt' can't be read"),
        ({"tls_certificate": CERTIFICATE, "tls_key": OTHER_KEY}, "are no certificate and its key"),
        ({"tls_certificate": __file__, "tls_key": KEY}, "are no certificate and its key"),
        ({**MUTUAL, "tls_ca": __file__}, "holds no certificate"),
        ({"tls_certificate": str(HERE), "tls_key": KEY}, "can't be read: Is a directory"),
    ],
)
def test_a_wrong_file_is_named_at_the_start(files, words):
    with pytest.raises(ConfigError) as caught:
        server_credentials(HostSettings(**files))
    assert words in str(caught.value)


async def test_a_host_with_a_wrong_file_does_not_start(redis_settings):
    async with cluster_of(redis_settings) as cluster:
        with pytest.raises(AssertionError, match="tls_key = '/nowhere' can't be read"):
            await asyncio.wait_for(
                cluster.start("a", **environ(tls_certificate=CERTIFICATE, tls_key="/nowhere")), 60
            )
