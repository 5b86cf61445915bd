"""Opens clients to Redis: a single server, a sentinel-managed one or a cluster, with or without TLS.

Invariant: a client never repeats a command by itself. Replies are bytes, in the shape of RESP2.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from holdfast.errors import ConfigError
from holdfast.packages import version
from holdfast.redis import library
from holdfast.redis.connections import (
    Cluster,
    MasterConnection,
    MasterPool,
    Pool,
    Sentinels,
    ServerClient,
    TcpConnection,
    UnixConnection,
)
from holdfast.redis.library import (
    ClusterError,
    ClusterNode,
    DriverInfo,
    NoBackoff,
    OutOfMemoryError,
    ReadOnlyError,
    RedisCluster,
    RedisConnectionError,
    RedisTimeoutError,
    ResponseError,
    Retry,
    SlotNotCoveredError,
    TryAgainError,
)

if TYPE_CHECKING:
    from holdfast.config import RedisSettings

Redis: TypeAlias = library.Redis | RedisCluster

_DRIVER = DriverInfo().add_upstream_driver("holdfast", version())
"""The library name in CLIENT LIST. Made once: redis-py would read its own version for every connection."""

DISCONNECTS: tuple[type[Exception], ...] = (
    RedisConnectionError,  # not the builtin; also loading, busy, no free connection
    RedisTimeoutError,
    ReadOnlyError,  # a master that was demoted
    ClusterError,  # also cluster down, master down
    SlotNotCoveredError,
    TryAgainError,
    OutOfMemoryError,
    OSError,
)
"""Errors while Redis is unavailable or refuses work: the same command may succeed later."""


REFUSALS: tuple[type[Exception], ...] = (ResponseError,)
"""Errors by which Redis rejects a command, such as one for a key of another type."""


def takes_no_writes(exc: BaseException) -> bool:
    """Whether Redis answers, but takes no writes from any client now: the same command may succeed later."""
    if isinstance(exc, ReadOnlyError | OutOfMemoryError):
        return True
    return isinstance(exc, ResponseError) and str(exc).startswith(("NOREPLICAS ", "MISCONF "))


TROUBLE = (*DISCONNECTS, *REFUSALS)
"""All errors of Redis, for loops that try again soon and must not end their process."""


def unavailable(exc: BaseException) -> bool:
    """Return whether ``exc`` means that Redis is unavailable, rather than that the command is wrong."""
    return isinstance(exc, DISCONNECTS)


def connect(settings: RedisSettings) -> Redis:
    """Open a client for short commands; it connects when first used and waits for a free connection."""
    return _open(settings, settings.socket_timeout_seconds, settings.max_connections)


def connect_blocking(settings: RedisSettings, block_seconds: float) -> Redis:
    """Open a client with one connection for commands that block up to ``block_seconds``."""
    # If a read timed out before the server's own BLOCK ends, entries may have been delivered to it already.
    return _open(settings, block_seconds + settings.socket_timeout_seconds, 1)


def connect_for_keeper(settings: RedisSettings, reply_seconds: float) -> Redis:
    """Open the client of a keeper, used and closed on its thread; its timeout leaves time for another try."""
    reply = min(settings.socket_timeout_seconds, reply_seconds)
    connecting = min(settings.connect_timeout_seconds, reply)
    return connect(
        msgspec.structs.replace(
            settings, socket_timeout_seconds=reply, connect_timeout_seconds=connecting, max_connections=2
        )
    )


class ServerAddress(msgspec.Struct, frozen=True):
    """The address of Redis in ``redis.url``."""

    kind: str
    tls: bool = False
    nodes: tuple[tuple[str, int], ...] = ()
    path: str = ""
    service: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = None


_SCHEMES = {
    "redis": ("server", False),
    "rediss": ("server", True),
    "unix": ("unix", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
_OPTIONS = {"db", "username", "password", "sentinel_username", "sentinel_password"}
_SETTING_OF = {
    "socket_timeout": "redis.socket_timeout_seconds",
    "socket_connect_timeout": "redis.connect_timeout_seconds",
    "max_connections": "redis.max_connections",
    "ssl_ca_certs": "redis.tls_ca_file",
    "ssl_certfile": "redis.tls_cert_file",
    "ssl_keyfile": "redis.tls_key_file",
    "ssl_cert_reqs": "redis.tls_verify",
    "ssl_check_hostname": "redis.tls_verify",
}
_NODE = re.compile(r"(?P<host>\[[^\]]+\]|[^:\[\]]+)(:(?P<port>\d{1,5}))?")


def parse(url: str) -> ServerAddress:
    """Parse ``redis.url``; the text of its ConfigError never has the password."""
    if not url:
        raise ConfigError(
            "no Redis is configured: set redis.url (REDIS_URL), for example to the url that `holdfast dev` "
            "prints for its embedded server"
        )
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise ConfigError(f"redis.url has the scheme {parts.scheme!r}; known are {', '.join(_SCHEMES)}.")
    kind, tls = _SCHEMES[parts.scheme]
    login, _, hosts = parts.netloc.rpartition("@")
    username, _, password = login.partition(":")
    options = _options(parts.query)
    address = ServerAddress(
        kind=kind,
        tls=tls,
        username=unquote(username) or options.get("username"),
        password=unquote(password) or options.get("password"),
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
    )
    return msgspec.structs.replace(address, **_place(kind, hosts, unquote(parts.path), options.get("db", "")))


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options.keys() - _OPTIONS:
        instead = f"; use the setting {_SETTING_OF[name]}" if name in _SETTING_OF else ""
        raise ConfigError(f"redis.url has the option {name!r}, which is not supported{instead}.")
    return options


def _place(kind: str, hosts: str, path: str, db: str) -> dict[str, Any]:
    if kind == "unix":
        if not path:
            raise ConfigError("redis.url is unix:// without the path of a socket.")
        return {"path": path, "db": _number(db)}
    nodes = tuple(_node(host, 26379 if kind == "sentinel" else 6379) for host in hosts.split(","))
    first, _, rest = path.strip("/").partition("/")
    if kind == "sentinel":
        if not first:
            raise ConfigError("redis.url names no service: redis+sentinel://host:port,host:port/service/db.")
        return {"nodes": nodes, "service": first, "db": _number(db or rest)}
    if kind == "server" and len(nodes) > 1:
        raise ConfigError("redis.url names several servers: write redis+cluster:// or redis+sentinel://.")
    number = _number(db or path.strip("/"))
    if kind == "cluster" and number:
        raise ConfigError(f"redis.url names the database {number}, but a cluster has only 0.")
    return {"nodes": nodes, "db": number}


def _node(text: str, default_port: int) -> tuple[str, int]:
    found = _NODE.fullmatch(text)
    port = int(found["port"] or default_port) if found else 0
    if found is None or not 0 < port < 65536:
        raise ConfigError(f"redis.url has {text!r} where host:port belongs.")
    return unquote(found["host"]).strip("[]"), port


def _number(db: str) -> int:
    if not db:
        return 0
    if not db.isdecimal():
        raise ConfigError(f"redis.url has {db!r} where the number of a database belongs.")
    return int(db)


def _open(settings: RedisSettings, socket_timeout: float, connections: int) -> Redis:
    address = parse(settings.url)
    options: dict[str, Any] = {
        "username": address.username,
        "password": address.password or settings.password or None,
        "socket_timeout": socket_timeout,
        "socket_connect_timeout": settings.connect_timeout_seconds,
        # A command whose reply was lost has been executed: redis-py's default of ten retries
        # would execute it again.
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "driver_info": _DRIVER,
    }
    tls = {"ssl_context": _tls(settings)} if address.tls else {}
    wait = {"max_connections": connections, "timeout": settings.socket_timeout_seconds}
    match address.kind:
        case "unix":
            pool = Pool(connection_class=UnixConnection, path=address.path, db=address.db, **wait, **options)
        case "server":
            pool = _server_pool(address.nodes[0], {"db": address.db, **wait, **options, **tls})
        case "sentinel":
            pool = _master_pool(address, {**wait, **options, **tls})
        case _:
            return _cluster(address, settings, connections, {**options}, tls)
    return ServerClient.from_pool(pool)


def _server_pool(node: tuple[str, int], options: dict[str, Any]) -> Pool:
    return Pool(connection_class=TcpConnection, host=node[0], port=node[1], **options)


def _master_pool(address: ServerAddress, options: dict[str, Any]) -> MasterPool:
    login = {"username": address.sentinel_username, "password": address.sentinel_password}
    sentinel = Sentinels([])
    sentinel.sentinels = [
        ServerClient.from_pool(_server_pool(node, {**options, **login})) for node in address.nodes
    ]
    return MasterPool(address.service, sentinel, connection_class=MasterConnection, db=address.db, **options)


def _cluster(
    address: ServerAddress,
    settings: RedisSettings,
    connections: int,
    options: dict[str, Any],
    tls: dict[str, Any],
) -> Cluster:
    return Cluster(
        limit=connections,
        wait_seconds=settings.socket_timeout_seconds,
        connection_options=tls,
        startup_nodes=[ClusterNode(host, port) for host, port in address.nodes],
        require_full_coverage=False,  # the server decides whether uncovered slots matter
        **options,
    )


def _tls(settings: RedisSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca_file or None)
        if settings.tls_cert_file:
            context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file or None)
    except OSError as exc:
        raise ConfigError(
            "redis.tls_ca_file, redis.tls_cert_file or redis.tls_key_file can't be used "
            f"({settings.tls_ca_file}, {settings.tls_cert_file}, {settings.tls_key_file}): {exc}"
        ) from exc
    if not settings.tls_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
