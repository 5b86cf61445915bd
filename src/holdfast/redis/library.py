"""redis-py for the modules of this package, loaded without the SDK of OpenTelemetry.

redis-py imports that SDK, where it is installed, for a type hint: 60 modules in every process.
Metrics of redis-py work without it.
"""

# pyright: reportPrivateUsage=false, reportUnknownVariableType=false

from __future__ import annotations

from holdfast.packages import hidden

with hidden("opentelemetry.sdk.metrics"):
    from redis._parsers import AsyncCommandsParser
    from redis._parsers import _AsyncHiredisParser as AsyncHiredisParser
    from redis.asyncio import (
        BlockingConnectionPool,
        Connection,
        Redis,
        SentinelConnectionPool,
        UnixDomainSocketConnection,
    )
    from redis.asyncio.cluster import ClusterNode, RedisCluster
    from redis.asyncio.connection import AbstractConnection
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelManagedConnection
    from redis.backoff import NoBackoff
    from redis.crc import REDIS_CLUSTER_HASH_SLOTS
    from redis.driver_info import DriverInfo
    from redis.exceptions import (
        AuthenticationError,
        BusyLoadingError,
        ClusterError,
        InvalidResponse,
        NoPermissionError,
        NoScriptError,
        OutOfMemoryError,
        ReadOnlyError,
        RedisClusterException,
        RedisError,
        ResponseError,
        SlotNotCoveredError,
        TryAgainError,
    )
    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.exceptions import TimeoutError as RedisTimeoutError

__all__ = [
    "REDIS_CLUSTER_HASH_SLOTS",
    "AbstractConnection",
    "AsyncCommandsParser",
    "AsyncHiredisParser",
    "AuthenticationError",
    "BlockingConnectionPool",
    "BusyLoadingError",
    "ClusterError",
    "ClusterNode",
    "Connection",
    "DriverInfo",
    "InvalidResponse",
    "MasterNotFoundError",
    "NoBackoff",
    "NoPermissionError",
    "NoScriptError",
    "OutOfMemoryError",
    "ReadOnlyError",
    "Redis",
    "RedisCluster",
    "RedisClusterException",
    "RedisConnectionError",
    "RedisError",
    "RedisTimeoutError",
    "ResponseError",
    "Retry",
    "Sentinel",
    "SentinelConnectionPool",
    "SentinelManagedConnection",
    "SlotNotCoveredError",
    "TryAgainError",
    "UnixDomainSocketConnection",
]
