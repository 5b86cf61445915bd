"""Consumer groups: created from the first entry on, so that no early entry is missed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import ResponseError

if TYPE_CHECKING:
    from holdfast.redis.client import Redis


async def ensure_group(redis: Redis, stream: str, group: str) -> None:
    """Create the stream and its group where they are missing."""
    try:
        await redis.xgroup_create(stream, group, id="0", mkstream=True)
    except ResponseError as exc:
        if not str(exc).startswith("BUSYGROUP"):
            raise


async def ensure_consumer(redis: Redis, stream: str, group: str, consumer: str) -> None:
    """Create the consumer: on Redis 7.0 a read that finds nothing does not."""
    await redis.xgroup_createconsumer(stream, group, consumer)


def group_is_missing(exc: BaseException) -> bool:
    """Whether somebody deleted the stream or its group under us (a flush, a failover to an empty replica)."""
    return isinstance(exc, ResponseError) and str(exc).startswith("NOGROUP")
