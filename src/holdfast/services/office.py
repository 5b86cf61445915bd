"""An office: what only one janitor may do at a time, and for how long it may."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

from holdfast.clock import boot_time
from holdfast.leases.leader import Leadership
from holdfast.redis.client import DISCONNECTS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.leases.keeper import Keeper
    from holdfast.leases.lease import Lease
    from holdfast.redis.client import Redis

_GOODBYE_SECONDS = 2.0
T = TypeVar("T")


class Office:
    """The right to do certain duties: one janitor has it at a time, while its lease is kept."""

    def __init__(self, redis: Redis, key: str, *, owner: str, ttl_seconds: float) -> None:
        self._leadership = Leadership(key, owner=owner, ttl_ms=int(ttl_seconds * 1000))
        self._redis = redis
        self._longest_seconds = ttl_seconds
        # Two duties of our own wait for each other; only another's pass is a reason to skip one.
        self._turn = asyncio.Lock()

    async def perform(
        self, keeper: Keeper, duty: Callable[[], Awaitable[T]], *, endless: bool = False
    ) -> T | None:
        """Do ``duty``, or return None because another janitor holds the office.

        One that is ``endless`` must see to it by itself that it never hangs.
        """
        async with self._turn:
            asked = boot_time()
            lease = await self._campaign()
            if lease is None:
                return None
            hold = keeper.hold(self._leadership, lease, granted_at=asked)
            try:
                # The keeper would keep a hung pass in office for ever: it has a time of its own.
                async with hold, asyncio.timeout(None if endless else self._longest_seconds):
                    return await duty()
            finally:
                hold.drop()
                await self._resign(lease)

    async def _campaign(self) -> Lease | None:
        """Ask for the office; told to stop before the answer, wait for it: nobody else could resign."""
        asking = asyncio.create_task(self._leadership.campaign(self._redis))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            done, _ = await asyncio.wait([asking], timeout=_GOODBYE_SECONDS)
            if done and asking.exception() is None and (lease := asking.result()) is not None:
                await self._resign(lease)
            asking.cancel()
            raise

    async def _resign(self, lease: Lease) -> None:
        with contextlib.suppress(*DISCONNECTS, TimeoutError):  # else the lease ends by itself
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await self._leadership.release(self._redis, [lease])
