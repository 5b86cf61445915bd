"""The client against a real server and a network that fails: the traps of redis-py, each closed."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from redis import asyncio as redis_py
from redis import exceptions

from holdfast.config import RedisSettings
from holdfast.errors import ConfigError, HoldfastError, RedisUnavailable
from holdfast.redis.client import DISCONNECTS, Redis, connect, connect_blocking, unavailable
from holdfast.redis.embedded import EmbeddedServer
from holdfast.redis.translate import translate_errors
from tests.support.redis.fault_proxy import FaultProxy
from tests.support.redis.valkey_process import ValkeyProcess
from tests.support.waiting import until


@pytest.fixture
async def proxied(patient_settings: RedisSettings):
    client = connect(patient_settings)
    yield client
    await client.aclose()


async def connected(client: Redis) -> None:
    """Connect, however often the short timeouts of a client are too short for a busy machine."""
    await until(lambda: client.execute_command("PING"), tolerate=DISCONNECTS)


async def test_a_write_whose_reply_is_lost_is_not_repeated(
    proxied: Redis, redis: Redis, fault_proxy: FaultProxy
):
    """The mistake: redis-py's default client retries ten times, so one lost reply adds the entry twice."""
    fault_proxy.drop_replies("XADD")
    with pytest.raises(exceptions.ConnectionError):
        await proxied.execute_command("XADD", "s", "*", "f", "v")
    assert fault_proxy.dropped == 1
    assert await redis.execute_command("XLEN", "s") == 1


async def test_an_http_server_is_told_to_be_no_redis():
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = connect(RedisSettings(url=url))
        told = rf"the server at {url}\S* is not Redis .*REDIS_URL"
        with pytest.raises(HoldfastError, match=told), translate_errors(url):
            await client.execute_command("PING")
        await client.aclose()


async def test_closing_is_no_failure_however_long_it_takes(redis: Redis, restartable_valkey: ValkeyProcess):
    """The mistake: redis-py raises TimeoutError, so a process that leaves on a busy machine leaves with an error."""
    url = f"redis://127.0.0.1:{restartable_valkey.port}"
    client = connect(RedisSettings(url=url, connect_timeout_seconds=0.2))
    pool = client.connection_pool
    connection = await until(pool.get_connection, tolerate=DISCONNECTS)  # in those 0.2 s, or the next
    restartable_valkey.freeze()
    connection._writer.write(
        b"x" * 50_000_000
    )  # more than the sockets take: it can't be closed before that is sent
    transport = connection._writer.transport
    await client.aclose()
    restartable_valkey.thaw()
    await until(lambda: transport.is_closing() and not transport.get_write_buffer_size())


async def test_redis_pys_own_client_does_repeat_it(redis: Redis, fault_proxy: FaultProxy):
    """Shows that the test above can fail: the same fault doubles the entry of a default client."""
    naive = redis_py.Redis(host="127.0.0.1", port=fault_proxy.port)
    fault_proxy.drop_replies("XADD")
    await naive.execute_command("XADD", "s", "*", "f", "v")
    await naive.aclose()
    assert await redis.execute_command("XLEN", "s") == 2


async def test_a_pipeline_whose_reply_is_lost_is_not_repeated(
    proxied: Redis, redis: Redis, fault_proxy: FaultProxy
):
    """The mistake: a pipeline has a retry loop of its own."""
    fault_proxy.drop_replies("XADD", after=1)
    with pytest.raises(exceptions.ConnectionError):
        async with proxied.pipeline(transaction=False) as pipe:
            pipe.xadd("s", {"f": "1"})
            pipe.xadd("s", {"f": "2"})
            await pipe.execute()
    assert await redis.execute_command("XLEN", "s") == 2


async def test_a_blocking_read_may_outlast_the_socket_timeout(
    patient_settings: RedisSettings, fault_proxy: FaultProxy
):
    """The mistake: a read that blocks longer than socket_timeout is cut off and silently sent again."""
    # The socket's timeout is also how late a busy machine may bring the answer.
    settings = msgspec.structs.replace(patient_settings, socket_timeout_seconds=2.0)
    client = connect_blocking(settings, block_seconds=2.3)
    assert await client.execute_command("XREAD", "BLOCK", 2300, "STREAMS", "s", "$") in (None, {}, [])
    await client.aclose()
    assert fault_proxy.commands[b"XREAD"] == 1


async def test_a_blocking_read_on_the_common_client_fails_instead_of_retrying(
    proxied_settings: RedisSettings, fault_proxy: FaultProxy
):
    """The mistake: the retry takes entries for a reader that has stopped listening."""
    client = connect(msgspec.structs.replace(proxied_settings, max_connections=1, socket_timeout_seconds=0.2))
    await connected(client)
    with pytest.raises(exceptions.TimeoutError):
        await client.execute_command("XREAD", "BLOCK", 60_000, "STREAMS", "s", "$")
    await client.aclose()
    await until(lambda: fault_proxy.open_connections == 0)  # all that was sent has been counted
    assert fault_proxy.commands[b"XREAD"] == 1


async def test_a_hung_blocking_read_ends_soon_after_its_block(
    proxied_settings: RedisSettings, fault_proxy: FaultProxy
):
    client = connect_blocking(msgspec.structs.replace(proxied_settings, socket_timeout_seconds=0.3), 0.3)
    await connected(client)
    fault_proxy.stall("replies")
    began = time.monotonic()
    with pytest.raises(exceptions.TimeoutError):
        await client.execute_command("XREAD", "BLOCK", 300, "STREAMS", "s", "$")
    assert 0.5 < time.monotonic() - began < 10
    await client.aclose()


async def test_the_pool_waits_at_its_limit(redis_settings: RedisSettings):
    """The mistake: redis-py's default pool raises MaxConnectionsError for the 51st concurrent call."""
    client = connect(msgspec.structs.replace(redis_settings, max_connections=2))
    replies = await asyncio.gather(*(client.execute_command("ECHO", str(n)) for n in range(50)))
    assert replies == [str(n).encode() for n in range(50)]
    assert sum(count for count, _ in client.connection_pool.get_connection_count()) == 2
    await client.aclose()


async def test_waiting_for_a_connection_ends_too(proxied_settings: RedisSettings, fault_proxy: FaultProxy):
    settings = msgspec.structs.replace(proxied_settings, max_connections=1, socket_timeout_seconds=0.2)
    client = connect(settings)
    await connected(client)
    fault_proxy.stall()
    results = await asyncio.gather(
        *(client.execute_command("PING") for _ in range(4)), return_exceptions=True
    )
    assert all(isinstance(result, DISCONNECTS) for result in results)
    await client.aclose()


def test_the_builtin_connection_error_does_not_catch_redis_pys():
    """The mistake: ``except ConnectionError`` with the builtin, which lets every lost connection through."""
    lost = exceptions.ConnectionError("lost")
    assert not isinstance(lost, ConnectionError | OSError)
    assert unavailable(lost)


@pytest.mark.parametrize(
    ("exc", "away"),
    [
        (exceptions.TimeoutError(), True),
        (exceptions.BusyLoadingError(), True),
        (exceptions.ReadOnlyError(), True),
        (exceptions.ClusterDownError("down"), True),
        (exceptions.MasterDownError("down"), True),
        (exceptions.OutOfMemoryError(), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (exceptions.ResponseError("WRONGTYPE"), False),
        (exceptions.NoScriptError(), False),
        (exceptions.ClusterCrossSlotError(), False),
        (ConfigError("wrong password"), False),
        (asyncio.CancelledError(), False),
    ],
)
def test_what_means_that_redis_is_away(exc: BaseException, away: bool):
    assert unavailable(exc) is away


async def test_idle_connections_that_were_reset_are_replaced_unnoticed(
    proxied: Redis, fault_proxy: FaultProxy
):
    """The mistake: after a peer's RST the next command raises AttributeError (Python 3.12, 3.13.0)."""
    for _ in range(20):
        await asyncio.gather(*(proxied.execute_command("PING") for _ in range(5)))
        fault_proxy.reset()
        await until_closing(proxied)
        assert await proxied.execute_command("PING") is True


async def test_a_reset_during_a_call_is_a_connection_error(proxied: Redis, fault_proxy: FaultProxy):
    calls = [
        asyncio.ensure_future(proxied.execute_command("XREAD", "BLOCK", 0, "STREAMS", "s", "$"))
        for _ in range(5)
    ]
    await until(lambda: fault_proxy.commands[b"XREAD"] == 5)
    fault_proxy.reset()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [exceptions.ConnectionError] * 5


def test_under_uvloop_a_reset_is_no_runtime_error(patient_settings: RedisSettings, fault_proxy: FaultProxy):
    """The mistake: uvloop raises RuntimeError('... the handler is closed') from the write."""
    uvloop = pytest.importorskip("uvloop")

    async def calls() -> None:
        client = connect(patient_settings)
        try:
            for _ in range(20):
                await client.execute_command("PING")
                fault_proxy.reset()
                await until_closing(client)
                assert await client.execute_command("PING") is True
        finally:
            await client.aclose()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(calls())


async def test_a_reset_just_before_the_write_is_a_connection_error(proxied: Redis, fault_proxy: FaultProxy):
    connection = await proxied.connection_pool.get_connection()
    connection._writer.transport.abort()
    with pytest.raises(OSError):
        await connection._write(b"*1\r\n$4\r\nPING\r\n")
    await proxied.connection_pool.release(connection)


async def test_every_fault_is_one_that_unavailable_knows(
    proxied_settings: RedisSettings, fault_proxy: FaultProxy
):
    settings = msgspec.structs.replace(
        proxied_settings, socket_timeout_seconds=0.3, connect_timeout_seconds=0.3
    )
    client = connect(settings)
    for fail in (fault_proxy.refuse, fault_proxy.stall, fault_proxy.reset, fault_proxy.drop_replies):
        await connected(client)
        fail()
        for _ in range(3):
            try:
                await client.execute_command("PING")
            except Exception as exc:
                assert unavailable(exc), repr(exc)
        fault_proxy.heal()
        await client.connection_pool.disconnect()
    await connected(client)
    await client.aclose()


async def test_a_cancelled_call_leaves_no_reply_for_the_next_one(
    patient_settings: RedisSettings, fault_proxy: FaultProxy
):
    client = connect(msgspec.structs.replace(patient_settings, max_connections=1))
    await client.execute_command("PING")
    fault_proxy.stall("replies")
    call = asyncio.ensure_future(client.execute_command("ECHO", "first"))
    await until(lambda: fault_proxy.commands[b"ECHO"] == 1)
    call.cancel()
    fault_proxy.heal()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await client.execute_command("ECHO", "second") == b"second"
    await client.aclose()


async def test_a_call_given_up_while_writing_is_neither_executed_nor_answered_later(
    patient_settings: RedisSettings, fault_proxy: FaultProxy, redis: Redis
):
    """The mistake: closing politely sends the rest, so what its caller has given up happens minutes later."""
    client = connect(msgspec.structs.replace(patient_settings, max_connections=1))
    await client.execute_command("PING")
    connection = client.connection_pool._available_connections[0]
    fault_proxy.stall("requests")
    call = asyncio.ensure_future(client.execute_command("SET", "k", b"x" * 30_000_000))
    await until(lambda: connection._writer.transport.get_write_buffer_size() > 0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    fault_proxy.heal()
    assert await client.execute_command("ECHO", "second") == b"second"
    await client.aclose()
    await until(lambda: fault_proxy.open_connections == 0)
    assert await redis.execute_command("EXISTS", "k") == 0


async def test_an_idle_connection_that_the_server_closed_is_replaced_unnoticed(redis: Redis):
    """The mistake: a server's ``timeout`` setting, or a restart, fails the next command of an idle worker."""
    await asyncio.gather(*(redis.execute_command("PING") for _ in range(5)))
    idle = redis.connection_pool._available_connections
    await redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "no")
    await until(lambda: all(c._reader is None or c._reader.at_eof() for c in idle))
    assert await asyncio.gather(*(redis.execute_command("PING") for _ in range(5))) == [True] * 5


async def test_a_unix_connection_introduces_itself_once(
    valkey_server: EmbeddedServer, redis_settings: RedisSettings, redis: Redis
):
    """The mistake: redis-py sends its greeting twice on a unix socket, and hides a refused password there."""
    before = await calls_of(redis, "client|setinfo")
    client = connect(redis_settings)
    await client.execute_command("PING")
    await client.aclose()
    assert await calls_of(redis, "client|setinfo") - before == 2


async def test_a_connection_says_whose_it_is_and_looks_nothing_up_for_it(
    redis_settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
):
    """The mistake: redis-py reads its own version from the disk for every connection, on the event loop."""

    def looked_up(name: str) -> str:
        raise AssertionError(f"looked up the version of {name}")

    monkeypatch.setattr("redis.utils.metadata.version", looked_up)
    client = connect(redis_settings)
    told = await client.execute_command("CLIENT", "INFO")
    await client.aclose()
    assert b"lib-name=redis-py(holdfast_v" in told


async def test_replies_are_bytes_in_the_old_shape(redis: Redis):
    await redis.execute_command("XADD", "s", "1-1", "f", "v")
    assert await redis.execute_command("XRANGE", "s", "-", "+") == [(b"1-1", {b"f": b"v"})]
    assert await redis.execute_command("EVAL", "return redis.call('XRANGE', KEYS[1], '-', '+')", 1, "s") == [
        [b"1-1", [b"f", b"v"]]
    ]


@pytest.mark.parametrize("value", [b"\x00\xff", "é", 7, 0.1, 1e22, "x" * 100_000, memoryview(b"seen")])
async def test_arguments_arrive_as_they_were(redis: Redis, value: object):
    expected = (
        value.encode() if isinstance(value, str) else bytes(value) if isinstance(value, memoryview) else value
    )
    if isinstance(value, int | float):
        expected = repr(value).encode()
    assert await redis.execute_command("ECHO", value) == expected


@pytest.mark.parametrize("value", [None, True, {}, object()])
async def test_arguments_that_redis_cant_hold_are_refused(redis: Redis, value: object):
    with pytest.raises(exceptions.DataError):
        await redis.execute_command("ECHO", value)
    assert await redis.execute_command("PING") is True


async def test_errors_that_mean_not_now_have_the_type_of_one(redis: Redis):
    busy = "return redis.error_reply('MISCONF can not persist')"
    with pytest.raises(DISCONNECTS):
        await redis.execute_command("EVAL", busy, 0)


async def test_a_redis_that_answers_but_takes_no_writes_is_told_from_one_that_does_not_answer(redis: Redis):
    """Fails if an operator whose disk is full is told to check that Redis runs."""
    misconf = "return redis.error_reply('MISCONF Redis is configured to save RDB snapshots')"
    told = r"answers, but refuses.*stop-writes-on-bgsave-error"
    with pytest.raises(RedisUnavailable, match=told), translate_errors("redis://127.0.0.1"):
        await redis.execute_command("EVAL", misconf, 0)


async def calls_of(client: Redis, command: str) -> int:
    stats = await client.info("commandstats")
    return stats.get(f"cmdstat_{command}", {}).get("calls", 0)


async def until_closing(client: Redis) -> None:
    """Wait until the loop has noticed the reset on every idle connection."""
    idle = client.connection_pool._available_connections
    await until(lambda: all(c._writer is None or c._writer.transport.is_closing() for c in idle))
