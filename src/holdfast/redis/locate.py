"""Locates Redis for a process that does not start one: the configured or this directory's embedded server.

No server is started here: a new one would look like an empty system.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.config import load_settings
from holdfast.errors import RedisUnavailable
from holdfast.redis.embedded import EmbeddedServer

if TYPE_CHECKING:
    from holdfast.config import RedisSettings, Settings

DIRECTORY: Final = Path(".holdfast/redis")


def embedded_server(settings: RedisSettings) -> EmbeddedServer:
    """Return the embedded server of these settings, not started."""
    return EmbeddedServer(settings.embedded_dir or DIRECTORY)


def located(settings: Settings) -> Settings:
    """Return settings with the url of a Redis to use, or raise RedisUnavailable with advice.

    With the embedded server the whole system is on this machine, so receivers of webhooks may have private
    addresses. This is set here for all processes, as the relay must call what a client or an API accepts.
    """
    if settings.redis.url:
        return settings
    server = embedded_server(settings.redis)
    if not _listens(server.socket_path):
        raise RedisUnavailable(
            f"no Redis is configured and no embedded server runs in {server.directory}: "
            "start `holdfast dev APP` there, or set redis.url (REDIS_URL)"
        )
    redis = msgspec.structs.replace(settings.redis, url=server.url)
    relay = msgspec.structs.replace(settings.relay, private_webhooks=True)
    return msgspec.structs.replace(settings, redis=redis, relay=relay)


def locate_redis(settings: Settings | None = None) -> str:
    """Return the URL of the Redis to use, or raise RedisUnavailable with how to get one."""
    return located(load_settings() if settings is None else settings).redis.url


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2.0)
        return probe.connect_ex(str(path)) == 0
