"""Typed functions for plain commands: the signatures of redis-py leave replies partly unknown."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.redis.library import RedisCluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.redis.client import Redis


async def command(redis: Redis, *parts: Any) -> Any:
    """Send one command and return its reply."""
    return await redis.execute_command(*parts)


async def commands(redis: Redis, many: Sequence[Sequence[Any]]) -> list[Any]:
    """Send independent commands in as few round trips as possible, and return their replies."""
    if isinstance(redis, RedisCluster):
        # A pipeline would neither detect that a master is gone, nor wait for a free connection.
        return await asyncio.gather(*(redis.execute_command(*parts) for parts in many))
    async with redis.pipeline(transaction=False) as pipeline:
        for parts in many:
            pipeline.execute_command(*parts)
        return await pipeline.execute()
