"""redis-py's connections with fixes for its gaps; ``client`` combines them.

Invariant: whatever the network does, a command returns its reply, or raises redis-py's ConnectionError
or TimeoutError; it is never sent twice.
"""

# redis-py types its internals loosely, and the fixes have to use them.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportMissingParameterType=false

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
import ssl
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import hiredis

from holdfast.errors import ConfigError
from holdfast.redis.library import (
    REDIS_CLUSTER_HASH_SLOTS,
    AbstractConnection,
    AsyncCommandsParser,
    AsyncHiredisParser,
    AuthenticationError,
    BlockingConnectionPool,
    BusyLoadingError,
    ClusterNode,
    Connection,
    MasterNotFoundError,
    NoPermissionError,
    Redis,
    RedisCluster,
    RedisClusterException,
    RedisConnectionError,
    RedisTimeoutError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SlotNotCoveredError,
    UnixDomainSocketConnection,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class _Parser(AsyncHiredisParser):
    """Maps temporary errors to BusyLoadingError; redis-py leaves them plain ResponseErrors."""

    EXCEPTION_CLASSES = {  # noqa: RUF012 - redis-py's own attribute
        **AsyncHiredisParser.EXCEPTION_CLASSES,
        "BUSY": BusyLoadingError,  # a script runs too long
        "MISCONF": BusyLoadingError,  # the disk is full or broken, so writes are refused
        "NOREPLICAS": BusyLoadingError,
        "UNBLOCKED": BusyLoadingError,  # a blocked reader's server was demoted, or its stream deleted
    }


class PasswordRefused(ConfigError, RedisConnectionError):  # guard: password-refused-type
    """At the start a configuration error; later an outage, as the password was changed on the server."""


class _Hardened(AbstractConnection):
    """The changes to redis-py that all connections share."""

    def __init__(self, **options: Any) -> None:
        super().__init__(parser_class=_Parser, **options)

    async def send_packed_command(
        self, command: bytes | str | Iterable[bytes], check_health: bool = True
    ) -> None:
        """Send a command, on a new connection if the peer has reset this one."""
        del check_health  # health checks are off: the pool checks a connection before it returns it
        # guard: reset-connection-on-send
        if self._writer is not None and self._writer.transport.is_closing():
            await self.disconnect(nowait=True)
        if not self.is_connected:
            await self.connect_check_health(check_health=False)
        try:
            async with asyncio.timeout(self.socket_timeout):
                await self._write(command)
        except TimeoutError:
            await self.disconnect(nowait=True)
            raise RedisTimeoutError(f"Timeout writing to {self._host_error()}") from None
        except OSError as exc:
            await self.disconnect(nowait=True)
            raise RedisConnectionError(f"Error writing to {self._host_error()}: {exc}") from exc
        except BaseException:
            await self.disconnect(nowait=True)
            raise

    async def _write(self, command: bytes | str | Iterable[bytes]) -> None:
        writer = self._writer
        # After a reset, Python 3.12 and 3.13.0 raise AttributeError from the write and uvloop
        # RuntimeError: callers handle neither as a lost connection.
        if writer is None or writer.transport.is_closing():  # guard: reset-connection-on-check
            raise ConnectionResetError(errno.ECONNRESET, "connection lost")
        if isinstance(command, str):
            command = command.encode()
        if isinstance(command, bytes):
            writer.write(command)
        else:
            writer.writelines(command)
        await writer.drain()

    async def disconnect(
        self,
        nowait: bool = False,
        error: Exception | None = None,
        failure_count: int | None = None,
        health_check_failed: bool = False,
    ) -> None:
        """Disconnect; unsent data are dropped after a failure (``nowait``), or if closing takes long."""
        writer = self._writer
        # A graceful close would still send its buffer: a command that was given up would be executed later.
        if nowait and writer is not None:
            writer.transport.abort()
        try:
            await super().disconnect(nowait, error, failure_count, health_check_failed)
        except RedisTimeoutError:  # guard: slow-closing
            # The server does not read, or this process had no CPU: closing must not fail for that.
            if writer is not None:
                writer.transport.abort()

    def pack_command(self, *args: Any) -> list[bytes]:
        """Pack a command in C; redis-py's asyncio connections do it in Python, argument by argument."""
        head = args[0]
        words = head.split() if isinstance(head, str | bytes) else (head,)
        try:
            return [_pack((*words, *args[1:]))]
        except TypeError:
            return super().pack_command(*args)  # a memoryview, or the right DataError

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        """Do the handshake with the server; a refused password is a configuration error."""
        try:
            await super().on_connect_check_health(check_health=check_health)
        except AuthenticationError as exc:
            await self.disconnect(nowait=True)
            raise PasswordRefused(
                f"Redis at {self._host_error()} refuses our password ({exc}): "
                "check redis.password (REDIS_PASSWORD) and the user and password in redis.url."
            ) from exc

    def _error_message(self, exception: BaseException) -> str:
        message = super()._error_message(exception)
        if isinstance(exception, ssl.SSLError):
            message += " Check redis.tls_ca_file, tls_cert_file, tls_key_file and tls_verify."
        return message


class _Tls(Connection):
    """A TCP connection under a context that all connections share; redis-py loads the CAs anew for each."""

    def __init__(self, *, ssl_context: ssl.SSLContext | None = None, **options: Any) -> None:
        self._ssl_context = ssl_context
        super().__init__(**options)

    def _connection_arguments(self) -> Mapping[str, Any]:
        arguments = dict(super()._connection_arguments())
        if self._ssl_context is not None:
            arguments["ssl"] = self._ssl_context
        return arguments


class TcpConnection(_Hardened, _Tls):
    """A connection to a server by its address."""


class MasterConnection(_Hardened, SentinelManagedConnection, _Tls):
    """A connection to the master that the sentinels report."""


class UnixConnection(_Hardened, UnixDomainSocketConnection):
    """A connection to a server on this machine."""

    async def _connect(self) -> None:
        # redis-py does the handshake here and again in its caller, which also hides a refused password.
        async with asyncio.timeout(self.socket_connect_timeout):
            self._reader, self._writer = await asyncio.open_unix_connection(path=self.path)


class ServerClient(Redis):
    """A client of one server, which sends a command once: redis-py wraps every call into its retries."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command and return its reply; a connection that fails is closed by its own methods."""
        pool = self.connection_pool
        connection: Any = await pool.get_connection()
        try:
            await connection.send_packed_command(connection.pack_command(*args))
            return await self.parse_response(connection, args[0], **options)
        finally:
            await pool.release(connection)


class Pool(BlockingConnectionPool):
    """Waits for a free connection at its limit, at half the cost per call of redis-py's own such pool."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._limit = asyncio.Semaphore(self.max_connections)

    async def get_connection(self, command_name: Any = None, *keys: Any, **options: Any) -> Any:
        """Return a connection that is connected and has no unread reply."""
        del command_name, keys, options  # redis-py's signature
        await _take_turn(self._limit, self.timeout)
        connection = self.get_available_connection()
        try:
            await self.ensure_connection(connection)
        except BaseException:
            await self.release(connection)
            raise
        return connection

    async def ensure_connection(self, connection: AbstractConnection) -> None:
        """Connect a connection, unless it is connected and has no unread reply."""
        if not connection.is_connected or await connection.can_read():
            await super().ensure_connection(connection)

    async def release(self, connection: AbstractConnection) -> None:
        """Take a connection back."""
        self._in_use_connections.remove(connection)
        self._available_connections.append(connection)
        self._limit.release()


class Sentinels(Sentinel):
    """The sentinels, all of which stay in the list."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:  # guard: sentinel-list-kept
        """Return the master's address, from the first sentinel that answers; it is tried first next time."""
        failed: list[str] = []
        # redis-py swaps two sentinels of its list after an await: concurrent calls would swap the wrong ones.
        for sentinel in list(self.sentinels):
            try:
                masters: Any = await sentinel.sentinel_masters()
            except PasswordRefused:
                raise
            except (RedisConnectionError, RedisTimeoutError) as exc:
                failed.append(str(exc))
                continue
            state = masters.get(service_name)
            if state and self.check_master_state(state, service_name):
                self.sentinels.sort(key=lambda each: each is not sentinel)
                return state["ip"], state["port"]
        raise MasterNotFoundError(f"No master found for {service_name!r} {'; '.join(failed)}".rstrip())


class MasterPool(SentinelConnectionPool, Pool):
    """Waits for a free connection, as redis-py's own sentinel pool does not, and closes its sentinels."""

    async def aclose(self) -> None:
        """Close the connections to the master and to the sentinels."""
        await super().aclose()
        await self.sentinel_manager.aclose()


class _Commands(AsyncCommandsParser):
    """The descriptions of commands by which redis-py finds their keys: read once, when first needed."""

    def __init__(self, nodes: Callable[[], Sequence[ClusterNode]]) -> None:
        super().__init__()
        self._nodes = nodes
        self._turn = asyncio.Lock()

    async def initialize(self, node: Any = None) -> None:
        """Read the descriptions from the servers; redis-py reads them with each layout, needed or not."""
        if node is not None:
            self.node = node  # guard: commands-when-needed
            return
        known = self.commands
        async with self._turn:
            if self.commands is known:
                (commands,) = (await _request(self._nodes(), "COMMAND")).values()
                self.commands = {name.lower(): command for name, command in commands.items()}


class _NodeWithLayout(ClusterNode):
    """A server of which redis-py requests the layout, with the reply that was already read."""

    def __init__(self, node: ClusterNode, layout: list[Any]) -> None:
        super().__init__(node.host, node.port)
        self._layout = layout

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Return the layout for any command."""
        del args, options
        return self._layout


class Cluster(RedisCluster):
    """A cluster client that waits for a free connection, and whose errors are those of a single server.

    A server that hangs or dies affects only the callers of that server: the layout is read from a server that
    answers, and each server has its own connections to wait for.
    """

    def __init__(
        self, *, limit: int, wait_seconds: float, connection_options: Mapping[str, Any], **options: Any
    ) -> None:
        # Beyond this redis-py raises instead of waiting. A command that a server redirects to another one
        # keeps its turn at the first, so as many again may come to a server that takes over slots.
        most = 2 * limit + _SPARE
        # _read_layout selects the servers of which the layout is requested.
        super().__init__(max_connections=most, dynamic_startup_nodes=False, **options)
        self._limits: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(limit))
        self._wait_seconds = wait_seconds
        self._failed: str | None = None
        self._layout_lock = asyncio.Lock()
        self.commands_parser = _Commands(self._in_random_order)
        # RedisCluster takes no connection class; all later nodes are built from these same options.
        for kept in (self.connection_kwargs, *(node.connection_kwargs for node in self.startup_nodes)):
            kept.update(connection_options)
        self.connection_kwargs["connection_class"] = TcpConnection
        for node in self.startup_nodes:
            node.connection_class = TcpConnection

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Execute a command on the node that owns its keys."""
        working = _executing.set(True)
        try:
            if self._initialize:
                await self.initialize()  # else redis-py sends the first command to any node
            return await super().execute_command(*args, **options)
        except (RedisConnectionError, RedisTimeoutError) as exc:
            self._failed = getattr(exc, "last_failed_node_name", None) or self._failed
            raise
        finally:
            _executing.reset(working)

    async def _execute_command(self, target_node: ClusterNode, *args: Any, **options: Any) -> Any:
        # One limit for all servers would be used up by callers of the server that hangs.
        limit = self._limits[target_node.name]  # guard: connections-by-server
        await _take_turn(limit, self._wait_seconds)
        try:
            return await super()._execute_command(target_node, *args, **options)
        finally:
            limit.release()

    async def _determine_slot(self, command: str, *args: Any) -> int:
        if command not in {"XREAD", "XREADGROUP"}:  # guard: cluster-read-slot
            return await super()._determine_slot(command, *args)
        # redis-py would request the positions of the keys from some node at every call, and wait for it.
        word = next(at for at, each in enumerate(args) if each in ("STREAMS", b"STREAMS"))
        streams = args[word + 1 :]
        slots = {self.keyslot(key) for key in streams[: len(streams) // 2]}
        if len(slots) != 1:
            raise RedisClusterException(f"{command} - all keys must map to the same key slot")
        return slots.pop()

    async def initialize(self, *args: Any, **options: Any) -> Cluster:
        """Read which node owns which slot, unless that is known."""
        del args, options  # redis-py's signature
        if self._initialize:
            async with self._layout_lock:
                if self._initialize:
                    await self._read_layout()
        return self

    async def _read_layout(self) -> None:
        # redis-py requests it from one server after the other, each with the full timeout.
        answers = await _request(self._in_random_order(), "CLUSTER SLOTS", _has_every_slot)
        answered: dict[str, ClusterNode] = {
            node.name: _NodeWithLayout(node, layout) for node, layout in answers.items() if layout
        }
        if not answered:
            raise RedisConnectionError("No server of the Redis cluster returned a layout with slots.")
        manager = self.nodes_manager
        configured, manager.startup_nodes = manager.startup_nodes, answered
        try:
            await super().initialize()
        except SlotNotCoveredError:
            raise
        except RedisClusterException as exc:
            raise RedisConnectionError(str(exc)) from exc
        finally:
            manager.startup_nodes = configured

    def _in_random_order(self) -> list[ClusterNode]:
        """Return every known server, in random order to spread the load; the one that failed last is last."""
        manager = self.nodes_manager
        nodes = list({**manager.startup_nodes, **manager.nodes_cache}.values())
        random.shuffle(nodes)
        return sorted(nodes, key=lambda node: node.name == self._failed)

    async def aclose(self) -> None:
        """Close all connections, also those that redis-py forgets once a node has failed."""
        if _executing.get():
            # redis-py closes all connections to read the layout again, also those that wait for a reply.
            self._initialize = True
            return
        await super().aclose()
        await self.nodes_manager.aclose()
        await self.nodes_manager.aclose("startup_nodes")


async def _request(
    nodes: Sequence[ClusterNode], command: str, is_sufficient: Callable[[Any], bool] = lambda _: True
) -> dict[ClusterNode, Any]:
    """Send a command to one server after the other until a reply is sufficient; skip a server that hangs.

    Returns that reply alone, or all replies if none is sufficient. If every server has failed, raises an
    error about settings or permissions, if there is one, as it is permanent; else ``RedisConnectionError``.
    """
    left = list(nodes)
    pending: dict[asyncio.Task[Any], ClusterNode] = {}
    answers: dict[ClusterNode, Any] = {}
    failed: BaseException | None = None
    try:
        while left or (pending and not answers):
            if left:
                node = left.pop(0)
                pending[asyncio.create_task(node.execute_command(command))] = node
            seconds = _NEXT_SECONDS if left or answers else None  # guard: hung-server-passed-over
            done, _ = await asyncio.wait(pending, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                node = pending.pop(task)
                if (exc := task.exception()) is not None:
                    failed = failed if isinstance(failed, _PERMANENT) else exc  # guard: lasting-refusal-kept
                elif is_sufficient(task.result()):
                    return {node: task.result()}
                else:
                    answers[node] = task.result()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
    if answers:
        return answers
    if isinstance(failed, _PERMANENT):
        raise failed
    raise RedisConnectionError(
        f"Redis Cluster cannot be connected, no server has returned a usable reply: {failed}"
    ) from failed


def _has_every_slot(layout: list[Any]) -> bool:
    # guard: whole-layout
    return sum(last - first + 1 for first, last, *_ in layout) == REDIS_CLUSTER_HASH_SLOTS


async def _take_turn(limit: asyncio.Semaphore, seconds: float | None) -> None:
    if not limit.locked():
        await limit.acquire()
        return
    try:
        async with asyncio.timeout(seconds):
            await limit.acquire()
    except TimeoutError:
        raise RedisConnectionError(
            f"No connection was free for {seconds} s: raise redis.max_connections."
        ) from None


_executing = contextvars.ContextVar("_executing", default=False)
"""Whether this context executes a command of a cluster."""
_pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command  # its stub has only one argument
_SPARE = 8  # connections per node for pipelines and for reading the layout, which are not limited
_PERMANENT = (ConfigError, NoPermissionError)  # errors that last until the settings are changed
_NEXT_SECONDS = 0.1  # how long to wait for one server before the next one is tried too
