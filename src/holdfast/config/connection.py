"""``redis.connection``: what the document of the schedules says of connections, as our settings.

Its times are milliseconds. What has no counterpart is read and has no effect: a connection is opened when it
is needed and kept, and waiting for a free one ends with ``redis.socket_timeout_seconds``.
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
"""Our setting for each of them; empty where there is none."""


def as_ours(path: str, given: Given) -> Given:
    """Return what was given for a setting of the document, with its unit."""
    return msgspec.structs.replace(given, unit="ms") if CONNECTION[path].endswith("_seconds") else given
