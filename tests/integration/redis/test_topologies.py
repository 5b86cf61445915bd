"""Every kind of redis.url against the real thing: TLS, passwords, sentinels, a cluster."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from redis import exceptions

from holdfast.config import RedisSettings
from holdfast.errors import ConfigError
from holdfast.redis.client import DISCONNECTS, Redis, connect, connect_blocking
from holdfast.redis.embedded import EmbeddedServer
from holdfast.redis.scripts import Script
from tests.support.redis.fault_proxy import FaultProxy
from tests.support.redis.valkey_process import ValkeyProcess, free_port

CERTIFICATES = Path(__file__).parents[2] / "certificates"
CA, CERT, KEY = (str(CERTIFICATES / name) for name in ("ca.pem", "server.pem", "server.key"))
Start = Callable[..., ValkeyProcess]
COUNT = Script("count", "return redis.call('INCR', KEYS[1])")


async def ping(settings: RedisSettings) -> object:
    client = connect(settings)
    try:
        return await client.execute_command("PING")
    finally:
        await client.aclose()


class TestTls:
    @pytest.fixture
    def proxy(self, valkey_server: EmbeddedServer) -> Iterator[FaultProxy]:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(CERT, KEY)
        with FaultProxy(str(valkey_server.socket_path), tls=context) as proxy:
            yield proxy

    async def test_a_server_signed_by_our_authority_is_trusted(self, proxy: FaultProxy):
        assert await ping(RedisSettings(url=proxy.url, tls_ca_file=CA)) is True

    async def test_an_unknown_authority_is_refused_with_the_setting_to_check(self, proxy: FaultProxy):
        with pytest.raises(
            exceptions.ConnectionError, match=r"CERTIFICATE_VERIFY_FAILED.*redis\.tls_ca_file"
        ):
            await ping(RedisSettings(url=proxy.url))

    async def test_verification_can_be_turned_off(self, proxy: FaultProxy):
        assert await ping(RedisSettings(url=proxy.url, tls_verify=False)) is True

    async def test_a_certificate_of_our_own_is_shown_on_request(self, valkey_server: EmbeddedServer):
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=CA)
        context.load_cert_chain(CERT, KEY)
        context.verify_mode = ssl.CERT_REQUIRED
        with FaultProxy(str(valkey_server.socket_path), tls=context) as proxy:
            settings = RedisSettings(url=proxy.url, tls_ca_file=CA)
            with pytest.raises(DISCONNECTS):
                await ping(settings)
            assert await ping(msgspec.structs.replace(settings, tls_cert_file=CERT, tls_key_file=KEY)) is True

    @pytest.mark.parametrize("setting", ["tls_ca_file", "tls_cert_file"])
    def test_a_missing_file_is_named(self, setting: str):
        with pytest.raises(ConfigError, match=f"{setting}.*/no/such/file"):
            connect(RedisSettings(url="rediss://localhost", **{setting: "/no/such/file"}))

    async def test_a_plain_server_is_no_tls_server(self, fault_proxy: FaultProxy):
        url = fault_proxy.url.replace("redis://", "rediss://")
        with pytest.raises(exceptions.ConnectionError):
            await ping(RedisSettings(url=url, tls_ca_file=CA, connect_timeout_seconds=30))

    async def test_a_reset_is_a_connection_error_here_too(self, proxy: FaultProxy):
        client = connect(RedisSettings(url=proxy.url, tls_ca_file=CA))
        for _ in range(5):
            await client.execute_command("PING")
            proxy.reset()
            try:
                assert await client.execute_command("PING") is True
            except DISCONNECTS:
                assert await client.execute_command("PING") is True
        await client.aclose()


class TestPasswords:
    @pytest.fixture
    def server(self, start_valkey: Start) -> ValkeyProcess:
        server = start_valkey(append_only=False)
        server.ask("ACL SETUSER worker on >s/e:cret@1 ~* &* +@all")
        server.ask("CONFIG SET requirepass hunter2")
        return server

    @pytest.mark.parametrize(
        "login",
        ["worker:s%2Fe%3Acret%401@", ":hunter2@", "default:hunter2@"],
        ids=["user", "password", "default"],
    )
    async def test_the_password_may_be_in_the_url(self, server: ValkeyProcess, login: str):
        assert await ping(RedisSettings(url=f"redis://{login}127.0.0.1:{server.port}/0")) is True
        assert await ping(RedisSettings(url=f"unix://{login}{server.socket_path}?db=1")) is True

    async def test_the_password_may_be_a_setting(self, server: ValkeyProcess):
        assert await ping(RedisSettings(url=server.tcp_url, password="hunter2")) is True
        with_user = server.tcp_url.replace("127", "worker@127", 1)
        assert await ping(RedisSettings(url=with_user, password="s/e:cret@1")) is True

    @pytest.mark.parametrize("password", ["", "wrong"])
    async def test_a_refused_password_is_a_setting_that_is_wrong(self, server: ValkeyProcess, password: str):
        """The mistake: redis-py calls it a ConnectionError, so a worker would wait for Redis for ever."""
        for url in (server.tcp_url, server.url):
            with pytest.raises(ConfigError, match=r"refuses our password.*REDIS_PASSWORD") as refused:
                await ping(RedisSettings(url=url, password=password))
            assert "wrong" not in str(refused.value).replace("WRONGPASS", "")

    async def test_a_password_nobody_asked_for_is_refused_too(self, redis_url: str):
        with pytest.raises(ConfigError, match="refuses our password"):
            await ping(RedisSettings(url=redis_url, password="surplus"))


class TestSentinel:
    @pytest.fixture
    def url(self, start_valkey: Start, restartable_valkey: ValkeyProcess) -> str:
        sentinel = start_valkey(sentinel=True)
        assert sentinel.ask(f"SENTINEL MONITOR main 127.0.0.1 {restartable_valkey.port} 1").startswith("+OK")
        self.sentinel = sentinel
        return f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/main/2"

    async def test_the_master_is_found_past_a_sentinel_that_is_down(
        self, url: str, restartable_valkey: ValkeyProcess
    ):
        client = connect(RedisSettings(url=url, max_connections=3))
        assert sorted(await asyncio.gather(*(COUNT(client, ["n"]) for _ in range(20)))) == list(range(1, 21))
        assert sum(count for count, _ in client.connection_pool.get_connection_count()) <= 3
        await client.aclose()
        direct = connect(RedisSettings(url=f"{restartable_valkey.url}?db=2"))
        assert await direct.execute_command("GET", "n") == b"20"
        await direct.aclose()

    async def test_a_lost_reply_is_not_a_second_call(self, url: str, restartable_valkey: ValkeyProcess):
        """The mistake: the sentinel's client has a retry of its own."""
        with FaultProxy(("127.0.0.1", restartable_valkey.port)) as proxy:
            self.sentinel.ask("SENTINEL REMOVE main")
            self.sentinel.ask(f"SENTINEL MONITOR main 127.0.0.1 {proxy.port} 1")
            client = connect(RedisSettings(url=url))
            proxy.drop_replies("INCR")
            with pytest.raises(exceptions.ConnectionError):
                await client.execute_command("INCR", "n")
            assert await client.execute_command("GET", "n") == b"1"
            await client.aclose()

    async def test_after_a_failover_the_new_master_is_used(self, url: str, start_valkey: Start):
        client = connect(RedisSettings(url=url))
        await client.execute_command("SET", "k", "old")
        successor = start_valkey(append_only=False)
        self.sentinel.ask("SENTINEL REMOVE main")
        self.sentinel.ask(f"SENTINEL MONITOR main 127.0.0.1 {successor.port} 1")
        await client.connection_pool.disconnect()
        assert await client.execute_command("GET", "k") is None
        await client.aclose()

    async def test_a_demoted_master_counts_as_away(self, url: str, restartable_valkey: ValkeyProcess):
        client = connect(RedisSettings(url=url))
        await client.execute_command("PING")
        restartable_valkey.ask("REPLICAOF 127.0.0.1 1")
        with pytest.raises(DISCONNECTS):
            await client.execute_command("SET", "k", "v")
        restartable_valkey.ask("REPLICAOF NO ONE")
        await client.aclose()

    async def test_an_unknown_service_is_named(self, url: str):
        with pytest.raises(exceptions.ConnectionError, match="other"):
            await ping(RedisSettings(url=url.replace("/main/", "/other/")))

    async def test_a_password_of_the_sentinels_is_separate(self, url: str):
        self.sentinel.ask("ACL SETUSER default resetpass >hunter2")
        assert await ping(RedisSettings(url=f"{url}?sentinel_password=hunter2")) is True
        with pytest.raises(ConfigError, match="refuses our password"):
            await ping(RedisSettings(url=url.replace("127.0.0.1:1,", "")))


def cluster_of_one(start: Start) -> ValkeyProcess:
    """A server that has all slots."""
    node = start("--cluster-enabled", "yes", "--cluster-port", str(free_port()), append_only=False)
    node.ask("CLUSTER ADDSLOTSRANGE 0 16383")
    node.wait_for("CLUSTER INFO", "cluster_state:ok")
    return node


@pytest.fixture(scope="class")
def nodes(start_valkey_for_class: Start) -> list[ValkeyProcess]:
    nodes: list[ValkeyProcess] = []
    for slots in ("0 5460", "5461 10922", "10923 16383"):
        bus = free_port()
        node = start_valkey_for_class(
            "--cluster-enabled", "yes", "--cluster-port", str(bus), append_only=False
        )
        nodes.append(node)
        assert node.ask(f"CLUSTER ADDSLOTSRANGE {slots}").startswith("+OK")
        assert nodes[0].ask(f"CLUSTER MEET 127.0.0.1 {node.port} {bus}").startswith("+OK")
    for node in nodes:
        node.wait_for("CLUSTER INFO", "cluster_state:ok")
        node.wait_for("CLUSTER INFO", "cluster_known_nodes:3")
    return nodes


class TestCluster:
    @pytest.fixture
    async def cluster(self, nodes: list[ValkeyProcess]) -> AsyncIterator[Redis]:
        client = connect(
            RedisSettings(url=f"redis+cluster://127.0.0.1:1,127.0.0.1:{nodes[1].port}", max_connections=4)
        )
        yield client
        await client.aclose()

    async def test_it_serves_every_slot(self, cluster: Redis, nodes: list[ValkeyProcess]):
        # Scripts go to the node that owns their keys, wherever that is, and are healed on all.
        for round_ in (1, 2):
            replies = await asyncio.gather(*(COUNT(cluster, [f"{{q{n}}}:n"]) for n in range(60)))
            assert replies == [round_] * 60
            for node in nodes:
                node.ask("SCRIPT FLUSH")
        # More calls at once than connections: they wait, where redis-py would raise MaxConnectionsError.
        assert sorted(await asyncio.gather(*(COUNT(cluster, ["{a}"]) for _ in range(200)))) == list(
            range(1, 201)
        )
        # A pipeline over slots, and commands with keys in odd places.
        async with cluster.pipeline(transaction=False) as pipe:
            for n in range(20):
                pipe.set(f"p{n}", n)
            assert await pipe.execute() == [True] * 20
        await cluster.execute_command("XGROUP", "CREATE", "q", "g", "0", "MKSTREAM")
        await cluster.execute_command("XADD", "q", "*", "f", "v")
        streams = ["{q}:high", "q"]
        await cluster.execute_command("XGROUP", "CREATE", streams[0], "g", "0", "MKSTREAM")
        read = await cluster.execute_command(
            "XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "STREAMS", *streams, ">", ">"
        )
        assert [name for name, _ in read] == [b"q"]
        # One script for keys of many slots: a round trip to each node.
        calls = [([f"{{m{n}}}:n"], ()) for n in range(20)]
        assert await COUNT.many(cluster, calls) == [1] * 20
        nodes[1].ask("SCRIPT FLUSH")
        assert await COUNT.many(cluster, calls) == [2] * 20
        # Keys of two slots in one call are the caller's mistake, not an outage.
        with pytest.raises(exceptions.RedisClusterException) as mistake:
            await COUNT(cluster, ["a", "b"])
        assert not isinstance(mistake.value, DISCONNECTS)

    async def test_a_blocking_read_outlasts_the_socket_timeout(self, nodes: list[ValkeyProcess]):
        settings = RedisSettings(url=f"redis+cluster://127.0.0.1:{nodes[0].port}", socket_timeout_seconds=2.0)
        client = connect_blocking(settings, 2.3)
        assert not await client.execute_command("XREAD", "BLOCK", "2300", "STREAMS", "q", "$")
        await client.aclose()

    async def test_a_lost_reply_is_not_a_second_call_and_a_reset_is_survived(
        self, cluster: Redis, nodes: list[ValkeyProcess]
    ):
        """The mistake: a cluster client retries three times by itself, on whichever node it finds."""
        with FaultProxy(("127.0.0.1", nodes[0].port)) as proxy:
            client = connect(RedisSettings(url=f"redis+cluster://127.0.0.1:{nodes[0].port}"))
            client.nodes_manager.address_remap = lambda at: (
                at[0],
                proxy.port if at[1] == nodes[0].port else at[1],
            )
            key = next(f"k{n}" for n in range(1000) if client.keyslot(f"k{n}") < 5461)
            await client.execute_command("SET", key, 0)
            proxy.drop_replies("INCR")
            with pytest.raises(exceptions.ConnectionError):
                await client.execute_command("INCR", key)
            assert await client.execute_command("GET", key) == b"1"
            for _ in range(3):
                proxy.reset()
                try:
                    assert await client.execute_command("GET", key) == b"1"
                except DISCONNECTS:
                    assert await client.execute_command("GET", key) == b"1"
            # Closed right after a failure, it leaves no connection open; redis-py's forgets them then.
            proxy.refuse()
            with pytest.raises(DISCONNECTS):
                await client.execute_command("GET", key)
            nodes_seen = client.get_nodes()
            await client.aclose()
            assert not any(c.is_connected for node in nodes_seen for c in node._connections)

    async def test_a_slot_without_an_owner_counts_as_away(self, start_valkey: Start):
        node = cluster_of_one(start_valkey)
        client = connect(RedisSettings(url=f"redis+cluster://127.0.0.1:{node.port}"))
        await COUNT(client, ["n"])
        node.ask("CLUSTER DELSLOTSRANGE 0 16383")
        with pytest.raises(DISCONNECTS):
            await client.execute_command("SET", "k", "v")
        await client.aclose()

    async def test_nobody_there_counts_as_away(self):
        with pytest.raises(exceptions.ConnectionError, match="cannot be connected"):
            await ping(RedisSettings(url="redis+cluster://127.0.0.1:1,127.0.0.1:2"))

    async def test_a_refused_password_is_a_setting_that_is_wrong(self, start_valkey: Start):
        node = cluster_of_one(start_valkey)
        node.ask("CONFIG SET requirepass hunter2")
        url = f"redis+cluster://127.0.0.1:{node.port}"
        assert await ping(RedisSettings(url=url, password="hunter2")) is True
        with pytest.raises(ConfigError, match="refuses our password"):
            await ping(RedisSettings(url=url, password="wrong"))
