"""Where Redis is for whoever only uses one: the configured server, or this directory's embedded one.

Nothing is started here: a server that nobody asked for would look like an empty system.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import RedisUnavailable
from holdfast.redis.embedded import EmbeddedServer

if TYPE_CHECKING:
    from holdfast.config import RedisSettings

DIRECTORY: Final = Path(".holdfast/redis")


def embedded_server(settings: RedisSettings) -> EmbeddedServer:
    """Return the embedded server of these settings, not started."""
    return EmbeddedServer(settings.embedded_dir or DIRECTORY)


def nearby(settings: RedisSettings) -> RedisSettings:
    """Return settings with the url of a Redis to use, or raise RedisUnavailable with how to get one."""
    if settings.url:
        return settings
    server = embedded_server(settings)
    if not _listens(server.socket_path):
        raise RedisUnavailable(
            f"no Redis is configured and no embedded server runs in {server.directory}: "
            "start `holdfast dev APP` there, or set redis.url (REDIS_URL)"
        )
    return msgspec.structs.replace(settings, url=server.url)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        return probe.connect_ex(str(path)) == 0
