"""Names that only one live process may have: whether another process has the record."""

from __future__ import annotations

import asyncio
import os
import platform
from typing import TYPE_CHECKING

from holdfast.clock import boot_time

if TYPE_CHECKING:
    from holdfast.redis.members import Member


def is_taken(member: Member) -> bool:
    """Return whether a record belongs to another process that may live; our own predecessor has ended."""
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
    """A name that is ours while our record exists: after the record's ttl it must be confirmed before use.

    While a process is paused or disconnected for longer than the ttl, another process may take the name.
    """

    def __init__(self, ttl_seconds: float) -> None:
        self.lost = False
        self._ttl = ttl_seconds
        self._until = 0.0
        self._kept = asyncio.Event()

    def keep(self, written_at: float) -> None:
        """Note that our record was written; ``written_at`` is the ``boot_time()`` before the call."""
        self._until = written_at + self._ttl
        self._kept.set()

    async def sure(self) -> None:
        """Wait until the name is certainly ours."""
        while boot_time() >= self._until:
            self._kept.clear()
            await self._kept.wait()
