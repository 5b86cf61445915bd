"""One server of a cluster hangs: whoever needs only the others is not held up by it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from redis.exceptions import NoPermissionError

from holdfast.config import RedisSettings
from holdfast.config.checks import key_slot
from holdfast.errors import ConfigError
from holdfast.redis.client import DISCONNECTS, connect, connect_blocking
from holdfast.redis.scripts import Script
from tests.support.redis.clusters import cluster_url, owner_of, start_cluster
from tests.support.waiting import until

SERVERS = range(3)
AT_ONCE = 30.0
"""Seconds: more than the answers take on a busy machine, and less than a server that hangs is waited for."""
WAIT = 90.0
COUNT = Script("count", "return redis.call('INCR', KEYS[1])")


@pytest.fixture(scope="class")
def nodes(start_valkey_for_class):
    return start_cluster(start_valkey_for_class, "--cluster-require-full-coverage", "no")


@contextlib.contextmanager
def hanging(node) -> Iterator[None]:
    node.freeze()
    try:
        yield
    finally:
        node.thaw()


def key_of(nodes, server: int, name: str = "k") -> str:
    return next(key for n in range(1000) if owner_of(nodes, key_slot(key := f"{{{name}{n}}}")) == server)


def settings_of(nodes, **changes) -> RedisSettings:
    return RedisSettings(url=cluster_url(nodes), socket_timeout_seconds=WAIT, **changes)


class TestOneServerHangs:
    @pytest.mark.parametrize("hung", SERVERS)
    async def test_a_new_client_learns_the_layout_from_the_others(self, nodes, hung):
        """The mistake: redis-py asks one server after the other for the slots, and the first for the commands."""
        async with contextlib.AsyncExitStack() as stack:
            clients = [connect(settings_of(nodes)) for _ in range(4)]
            readers = [connect_blocking(settings_of(nodes), 0.01) for _ in range(4)]
            for client in (*clients, *readers):
                stack.push_async_callback(client.aclose)
            stack.enter_context(hanging(nodes[hung]))
            async with asyncio.timeout(AT_ONCE):
                for other in set(SERVERS) - {hung}:
                    key = key_of(nodes, other)
                    for client in clients:
                        assert await client.execute_command("EXISTS", key) in (0, 1)
                        assert await COUNT(client, [key_of(nodes, other, "n")]) > 0
                    for reader in readers:
                        read = ("XREAD", "BLOCK", "10", "STREAMS", key_of(nodes, other, "s"), "$")
                        assert not await reader.execute_command(*read)

    @pytest.mark.parametrize("hung", SERVERS)
    async def test_the_layout_is_learned_again_from_the_others(self, nodes, hung):
        """A command that fails makes the client ask for the layout, and all others wait for that."""
        other = (hung + 1) % 3
        client = connect(settings_of(nodes))
        try:
            assert await client.execute_command("EXISTS", key_of(nodes, other)) == 0
            with hanging(nodes[hung]):
                for _ in range(6):
                    client._initialize = True  # as redis-py does after a connection error
                    async with asyncio.timeout(AT_ONCE):
                        assert await client.execute_command("EXISTS", key_of(nodes, other)) == 0
            assert await client.execute_command("EXISTS", key_of(nodes, hung)) == 0
        finally:
            await client.aclose()

    async def test_who_waits_for_it_takes_no_connection_from_who_asks_another(self, nodes):
        """The mistake: one limit for all servers, which those that wait for one of them use up."""
        client = connect(settings_of(nodes, max_connections=2))
        for server in SERVERS:
            await client.execute_command("EXISTS", key_of(nodes, server))
        waiting: list[asyncio.Task[object]] = []
        try:
            with hanging(nodes[0]):
                asked = client.execute_command, "EXISTS", key_of(nodes, 0)
                waiting = [asyncio.create_task(asked[0](*asked[1:])) for _ in range(5)]
                await asyncio.sleep(0)
                async with asyncio.timeout(AT_ONCE):
                    for server in (1, 2):
                        assert await client.execute_command("EXISTS", key_of(nodes, server)) == 0
                assert not any(task.done() for task in waiting)
            assert await asyncio.gather(*waiting) == [0] * 5
        finally:
            for task in waiting:
                task.cancel()
            await client.aclose()

    async def test_a_server_that_has_forgotten_a_script_is_given_it_without_the_others(self, nodes):
        """The mistake: redis-py loads a script into all servers, and waits for the one that hangs."""
        client = connect(settings_of(nodes))
        keys = [key_of(nodes, server, "n") for server in SERVERS]
        stuck: asyncio.Task[int] | None = None
        try:
            counted = [await COUNT(client, [key]) for key in keys]
            for node in nodes:
                node.ask("SCRIPT FLUSH")
            with hanging(nodes[0]):
                stuck = asyncio.create_task(COUNT(client, [keys[0]]))
                await asyncio.sleep(0)
                async with asyncio.timeout(AT_ONCE):
                    for server in (1, 2):
                        for _ in range(2):
                            counted[server] += 1
                            assert await COUNT(client, [keys[server]]) == counted[server]
            assert await stuck == counted[0] + 1
        finally:
            if stuck is not None:
                stuck.cancel()
            await client.aclose()

    async def test_one_that_answers_is_found_among_all(self, nodes):
        """Servers are asked in random order: of so many clients, some ask one first that hangs."""
        async with contextlib.AsyncExitStack() as stack:
            clients = [connect(settings_of(nodes)) for _ in range(12)]
            for client in clients:
                stack.push_async_callback(client.aclose)
            stack.enter_context(hanging(nodes[0]))
            stack.enter_context(hanging(nodes[1]))
            async with asyncio.timeout(AT_ONCE):
                for client in clients:
                    assert await COUNT(client, [key_of(nodes, 2, "n")]) > 0

    async def test_a_cluster_that_hangs_as_a_whole_is_away(self, nodes):
        settings = RedisSettings(url=cluster_url(nodes), socket_timeout_seconds=0.3)
        client = connect(settings)
        try:
            with contextlib.ExitStack() as stack:
                for node in nodes:
                    stack.enter_context(hanging(node))
                with pytest.raises(DISCONNECTS, match="cannot be connected") as away:
                    await client.execute_command("EXISTS", "k")
                assert not isinstance(away.value, ConfigError)
            await until(
                lambda: client.execute_command("EXISTS", "k"), lambda known: known == 0, tolerate=DISCONNECTS
            )
        finally:
            await client.aclose()

    @pytest.mark.parametrize("hung", [None, *SERVERS])
    async def test_a_right_that_is_missing_is_no_outage(self, nodes, hung):
        """The mistake: the server that hangs fails last, and its timeout is what is told, and tried again for ever."""
        for node in nodes:
            assert node.ask("ACL SETUSER guest on >pw ~* &* +@all -cluster|slots").startswith("+OK")
        url = cluster_url(nodes).replace("://", "://guest:pw@")
        client = connect(RedisSettings(url=url, socket_timeout_seconds=3.0))
        try:
            with contextlib.ExitStack() as stack:
                if hung is not None:
                    stack.enter_context(hanging(nodes[hung]))
                stack.enter_context(pytest.raises(NoPermissionError, match="cluster"))
                await client.execute_command("EXISTS", "k")
        finally:
            await client.aclose()


class TestPartOfACluster:
    async def test_a_server_that_belongs_to_no_cluster_yet_is_not_believed(
        self, nodes, start_valkey_for_class
    ):
        """One that was just started answers at once that nobody has any slot."""
        new = start_cluster(start_valkey_for_class, count=1)[0]
        new.ask("CLUSTER DELSLOTSRANGE 0 16383")
        url = f"redis+cluster://127.0.0.1:{new.port},127.0.0.1:{nodes[1].port}"
        for _ in range(6):
            client = connect(RedisSettings(url=url))
            try:
                for server in SERVERS:
                    assert await client.execute_command("EXISTS", key_of(nodes, server)) == 0
            finally:
                await client.aclose()
        alone = connect(RedisSettings(url=f"redis+cluster://127.0.0.1:{new.port}"))
        try:
            with pytest.raises(DISCONNECTS, match="with slots"):
                await alone.execute_command("EXISTS", "k")
        finally:
            await alone.aclose()
