"""One typed door for plain commands: redis-py's own signatures leave replies half unknown."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.redis.client import Redis


async def command(redis: Redis, *parts: Any) -> Any:
    """Send one command and return its reply."""
    return await redis.execute_command(*parts)
