"""redis-py's connections with the holes closed that it leaves open; ``client`` puts them together.

Invariant: whatever the network does, a command has its reply, or raises redis-py's ConnectionError
or TimeoutError; it is never sent twice.
"""

# redis-py types its internals loosely, and closing its holes means reaching into them.
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
    """Gives the errors that mean "not now" the type of one; redis-py leaves them plain ResponseErrors."""

    EXCEPTION_CLASSES = {  # noqa: RUF012 - redis-py's own attribute
        **AsyncHiredisParser.EXCEPTION_CLASSES,
        "BUSY": BusyLoadingError,  # a script runs too long
        "MISCONF": BusyLoadingError,  # the disk is full or broken, so writes are refused
        "NOREPLICAS": BusyLoadingError,
        "UNBLOCKED": BusyLoadingError,  # a blocked reader's server was demoted, or its stream deleted
    }


class PasswordRefused(ConfigError, RedisConnectionError):  # guard: password-refused-type
    """Wrong settings when we begin; while we work somebody changes the password, which is an outage."""


class _Hardened(AbstractConnection):
    """What every connection of ours does differently from redis-py's."""

    def __init__(self, **options: Any) -> None:
        super().__init__(parser_class=_Parser, **options)

    async def send_packed_command(
        self, command: bytes | str | Iterable[bytes], check_health: bool = True
    ) -> None:
        """Send a command, on a new connection if the peer has reset this one."""
        del check_health  # health checks are off: the pool checks a connection when it hands it out
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
        # After a reset Python 3.12 and 3.13.0 raise AttributeError from the write and uvloop
        # RuntimeError: neither is an error that anybody expects from a lost connection.
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
        """Disconnect; what is unsent is dropped after a failure (``nowait``), or if closing takes long."""
        writer = self._writer
        # Closing politely would go on sending: a command that was given up would be executed later.
        if nowait and writer is not None:
            writer.transport.abort()
        try:
            await super().disconnect(nowait, error, failure_count, health_check_failed)
        except RedisTimeoutError:  # guard: slow-closing
            # The server does not read, or this process had no CPU: no reason for who only closes to fail.
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
        """Introduce ourselves to the server; a refused password is a setting that is wrong."""
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
    """To a server whose address is known."""


class MasterConnection(_Hardened, SentinelManagedConnection, _Tls):
    """To whichever server the sentinels call the master."""


class UnixConnection(_Hardened, UnixDomainSocketConnection):
    """To a server on this machine."""

    async def _connect(self) -> None:
        # redis-py introduces itself here and again in its caller, which also hides a refused password.
        async with asyncio.timeout(self.socket_connect_timeout):
            self._reader, self._writer = await asyncio.open_unix_connection(path=self.path)


class Client(Redis):
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
        self._room = asyncio.Semaphore(self.max_connections)

    async def get_connection(self, command_name: Any = None, *keys: Any, **options: Any) -> Any:
        """Hand out a connection that is connected and has no old reply in it."""
        del command_name, keys, options  # redis-py's signature
        await _take_turn(self._room, self.timeout)
        connection = self.get_available_connection()
        try:
            await self.ensure_connection(connection)
        except BaseException:
            await self.release(connection)
            raise
        return connection

    async def ensure_connection(self, connection: AbstractConnection) -> None:
        """Connect it, unless it is connected and clean already."""
        if not connection.is_connected or await connection.can_read():
            await super().ensure_connection(connection)

    async def release(self, connection: AbstractConnection) -> None:
        """Take a connection back."""
        self._in_use_connections.remove(connection)
        self._available_connections.append(connection)
        self._room.release()


class Sentinels(Sentinel):
    """Those who know the master; none of them is ever forgotten."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:  # guard: sentinel-list-kept
        """Ask them, who answered last time first, where the master is."""
        failed: list[str] = []
        # redis-py swaps two of its list after an await: of two that ask at once, one swaps away a third.
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
    """What redis-py must know of commands to find their keys: asked for once, when it is first needed."""

    def __init__(self, nodes: Callable[[], Sequence[ClusterNode]]) -> None:
        super().__init__()
        self._nodes = nodes
        self._turn = asyncio.Lock()

    async def initialize(self, node: Any = None) -> None:
        """Ask the servers; redis-py asks one of them, whenever it learns the layout, needed or not."""
        if node is not None:
            self.node = node  # guard: commands-when-needed
            return
        known = self.commands
        async with self._turn:
            if self.commands is known:
                (commands,) = (await _ask(self._nodes(), "COMMAND")).values()
                self.commands = {name.lower(): command for name, command in commands.items()}


class _NodeWithLayout(ClusterNode):
    """A server as redis-py asks it for the layout, with the answer that it has given already."""

    def __init__(self, node: ClusterNode, layout: list[Any]) -> None:
        super().__init__(node.host, node.port)
        self._layout = layout

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Return the layout, whatever is asked."""
        del args, options
        return self._layout


class Cluster(RedisCluster):
    """A cluster client that waits for a free connection, and whose errors are those of a single server.

    One of its servers that hangs or dies costs those who ask it, and nobody else: the layout is learned from
    a server that answers, and each server has connections of its own to wait for.
    """

    def __init__(
        self, *, room: int, wait_seconds: float, connection_options: Mapping[str, Any], **options: Any
    ) -> None:
        # Beyond this redis-py raises instead of waiting. A command that a server redirects to another one
        # keeps its turn at the first, so as many again may come to a server that takes over slots.
        most = 2 * room + _SPARE
        # Which servers are asked for the layout is decided in _learn.
        super().__init__(max_connections=most, dynamic_startup_nodes=False, **options)
        self._rooms: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(room))
        self._wait_seconds = wait_seconds
        self._failed: str | None = None
        self._learning = asyncio.Lock()
        self.commands_parser = _Commands(self._in_random_order)
        # RedisCluster takes no connection class; all later nodes are built from these same options.
        for kept in (self.connection_kwargs, *(node.connection_kwargs for node in self.startup_nodes)):
            kept.update(connection_options)
        self.connection_kwargs["connection_class"] = TcpConnection
        for node in self.startup_nodes:
            node.connection_class = TcpConnection

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Execute a command on the node that owns its keys."""
        working = _executes.set(True)
        try:
            if self._initialize:
                await self.initialize()  # else redis-py sends the first command to any node
            return await super().execute_command(*args, **options)
        except (RedisConnectionError, RedisTimeoutError) as exc:
            self._failed = getattr(exc, "last_failed_node_name", None) or self._failed
            raise
        finally:
            _executes.reset(working)

    async def _execute_command(self, target_node: ClusterNode, *args: Any, **options: Any) -> Any:
        # One room for all servers would be full of those who wait for the one that hangs.
        room = self._rooms[target_node.name]  # guard: connections-by-server
        await _take_turn(room, self._wait_seconds)
        try:
            return await super()._execute_command(target_node, *args, **options)
        finally:
            room.release()

    async def _determine_slot(self, command: str, *args: Any) -> int:
        if command not in {"XREAD", "XREADGROUP"}:  # guard: cluster-read-slot
            return await super()._determine_slot(command, *args)
        # redis-py would ask some node at every call where the keys are, and wait for that node.
        word = next(at for at, each in enumerate(args) if each in ("STREAMS", b"STREAMS"))
        streams = args[word + 1 :]
        slots = {self.keyslot(key) for key in streams[: len(streams) // 2]}
        if len(slots) != 1:
            raise RedisClusterException(f"{command} - all keys must map to the same key slot")
        return slots.pop()

    async def initialize(self, *args: Any, **options: Any) -> Cluster:
        """Learn which node owns which slot, unless that is known."""
        del args, options  # redis-py's signature
        if self._initialize:
            async with self._learning:
                if self._initialize:
                    await self._learn()
        return self

    async def _learn(self) -> None:
        # redis-py asks one server after the other, and waits for each as long as for any reply.
        answers = await _ask(self._in_random_order(), "CLUSTER SLOTS", _has_every_slot)
        answered: dict[str, ClusterNode] = {
            node.name: _NodeWithLayout(node, layout) for node, layout in answers.items() if layout
        }
        if not answered:
            raise RedisConnectionError("No server of the Redis cluster has slots, or knows who has them.")
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
        """Every server that is known, so that not all clients ask the same one; who failed last is last."""
        manager = self.nodes_manager
        nodes = list({**manager.startup_nodes, **manager.nodes_cache}.values())
        random.shuffle(nodes)
        return sorted(nodes, key=lambda node: node.name == self._failed)

    async def aclose(self) -> None:
        """Close all connections, also those that redis-py forgets once a node has failed."""
        if _executes.get():
            # redis-py closes everything to learn the layout anew, whoever else waits for a reply.
            self._initialize = True
            return
        await super().aclose()
        await self.nodes_manager.aclose()
        await self.nodes_manager.aclose("startup_nodes")


async def _ask(
    nodes: Sequence[ClusterNode], question: str, enough: Callable[[Any], bool] = lambda _: True
) -> dict[ClusterNode, Any]:
    """Ask one server after the other until an answer is enough; one that hangs is not waited for.

    Returns that answer alone, or all there are if none is enough. If every server has failed, raises what one
    said against our settings or our rights, which no other try would help; else a ``RedisConnectionError``.
    """
    left = list(nodes)
    asked: dict[asyncio.Task[Any], ClusterNode] = {}
    answers: dict[ClusterNode, Any] = {}
    failed: BaseException | None = None
    try:
        while left or (asked and not answers):
            if left:
                node = left.pop(0)
                asked[asyncio.create_task(node.execute_command(question))] = node
            seconds = _NEXT_SECONDS if left or answers else None  # guard: hung-server-passed-over
            done, _ = await asyncio.wait(asked, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                node = asked.pop(task)
                if (exc := task.exception()) is not None:
                    failed = failed if isinstance(failed, _LASTING) else exc  # guard: lasting-refusal-kept
                elif enough(task.result()):
                    return {node: task.result()}
                else:
                    answers[node] = task.result()
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    if answers:
        return answers
    if isinstance(failed, _LASTING):
        raise failed
    raise RedisConnectionError(
        f"Redis Cluster cannot be connected, no server has given a usable answer: {failed}"
    ) from failed


def _has_every_slot(layout: list[Any]) -> bool:
    # guard: whole-layout
    return sum(last - first + 1 for first, last, *_ in layout) == REDIS_CLUSTER_HASH_SLOTS


async def _take_turn(room: asyncio.Semaphore, seconds: float | None) -> None:
    if not room.locked():
        await room.acquire()
        return
    try:
        async with asyncio.timeout(seconds):
            await room.acquire()
    except TimeoutError:
        raise RedisConnectionError(
            f"No connection was free for {seconds} s: raise redis.max_connections."
        ) from None


_executes = contextvars.ContextVar("_executes", default=False)
"""Whether we are inside a cluster's command."""
_pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command  # its stub knows only one argument
_SPARE = 8  # connections per node for pipelines and for learning the layout, which take no turn
_LASTING = (ConfigError, NoPermissionError)  # what stays as it is until somebody changes the settings
_NEXT_SECONDS = 0.1  # how long one server is waited for before another is asked too
