"""``redis.connection``: the settings of connections in the schedulers' document, mapped to those of Redis.

Its times are milliseconds. A setting without a counterpart is read and has no effect: a connection is opened
when it is needed and kept, and waiting for a free one ends with ``redis.socket_timeout_seconds``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from holdfast.config.parse import Given

CONNECTION: Final[dict[str, str]] = {
    "redis.connection.timeout": "redis.socket_timeout_seconds",
    "redis.connection.connect-timeout": "redis.connect_timeout_seconds",
    "redis.connection.pool.max-total": "redis.max_connections",
    "redis.connection.pool.max-wait-millis": "",
    "redis.connection.pool.max-idle": "",
    "redis.connection.pool.min-idle": "",
}
"""The setting for each of them; empty without one."""


def as_ours(path: str, given: Given) -> Given:
    """Return the given value of a setting of the document, with its unit."""
    return msgspec.structs.replace(given, unit="ms") if CONNECTION[path].endswith("_seconds") else given
