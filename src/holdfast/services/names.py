"""Names that only one live process may have: whether the record of another one is in the way."""

from __future__ import annotations

import asyncio
import os
import platform
from typing import TYPE_CHECKING

from holdfast.clock import boot_time

if TYPE_CHECKING:
    from holdfast.redis.members import Member


def is_taken(member: Member) -> bool:
    """Whether a record is that of another process which may live; our own predecessor's is not."""
    host, pid = member.fields.get("host"), member.fields.get("pid", "")
    if host != platform.node() or not pid.isdigit():
        return True
    if int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


class OwnName:
    """A name that is ours while our record stands: one that was away for longer must look before it acts.

    A process that was paused, or cut off, for as long as its record stays may find its name with another.
    """

    def __init__(self, ttl_seconds: float) -> None:
        self.lost = False
        self._ttl = ttl_seconds
        self._until = 0.0
        self._kept = asyncio.Event()

    def keep(self, asked_at: float) -> None:
        """Our record was written again, as was asked at that ``boot_time()``."""
        self._until = asked_at + self._ttl
        self._kept.set()

    async def sure(self) -> None:
        """Wait until it is certain that the name is ours."""
        while boot_time() >= self._until:
            self._kept.clear()
            await self._kept.wait()
