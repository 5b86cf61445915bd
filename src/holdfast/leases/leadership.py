"""Leadership: a lease on a single key, granted for a term to the first owner that requests it.

A :class:`LeaderTask` is work of the leader only. Its body ends before another process can begin a term.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from typing import TYPE_CHECKING, Final, TypeVar

from holdfast.clock import boot_time
from holdfast.leases.lease import STANDINGS, Lease, RenewalReply
from holdfast.redis.client import DISCONNECTS
from holdfast.redis.scripts import load

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.leases.keeper import Keeper
    from holdfast.redis.client import Redis

_LEAD = load(__package__, "lead")
_RENEW = load(__package__, "lead_renew")
_RESIGN = load(__package__, "resign")
_RESIGN_SECONDS: Final = 2.0

T = TypeVar("T")


class LeaderRecord(enum.StrEnum):
    """The format in which a term is stored; a string is ``owner fence``."""

    HASH = "hash"
    STRING = "string"


class Leadership:
    """One leader's key: at most one owner leads at a time, and a later term always has a higher fence."""

    kind = "leader"

    def __init__(
        self, key: str, *, owner: str, ttl_ms: int, record: LeaderRecord = LeaderRecord.HASH
    ) -> None:
        self.key = key
        self._owner = owner
        self._ttl_ms = ttl_ms
        self._record = record

    @property
    def ttl_seconds(self) -> float:
        """How long a term lasts without a renewal."""
        return self._ttl_ms / 1000

    @property
    def trust_seconds(self) -> float:
        """How long a renewal of the term is trusted, independent of the keeper's settings."""
        return self.ttl_seconds * 3 / 4

    async def campaign(self, redis: Redis) -> Lease | None:
        """Start a term, or return None while another owner leads."""
        fence = await _LEAD(redis, [self.key], [self._owner, self._ttl_ms, self._record])
        return Lease(self.key, self._owner, fence) if fence else None

    async def renew(self, redis: Redis, leases: Sequence[Lease]) -> Sequence[RenewalReply]:
        """Renew the term, if this owner still holds it."""
        terms = [[self._owner, lease.fence, self._ttl_ms, self._record] for lease in leases]
        return [STANDINGS[await _RENEW(redis, [self.key], term)] for term in terms]

    async def resign(self, redis: Redis, lease: Lease) -> bool:
        """End the term, if this owner still holds it."""
        return await _RESIGN(redis, [self.key], [self._owner, lease.fence, self._record]) == b"released"


class LeaderTask:
    """Performs work of the leader: campaign, hold the lease, perform, resign."""

    def __init__(self, redis: Redis, leadership: Leadership, *, longest_seconds: float | None = None) -> None:
        self._redis = redis
        self._leadership = leadership
        self._longest_seconds = longest_seconds or leadership.ttl_seconds
        # Two tasks of this process wait for each other: a task is skipped only if another process leads.
        self._lock = asyncio.Lock()

    async def perform(
        self, keeper: Keeper, task: Callable[[], Awaitable[T]], *, endless: bool = False
    ) -> T | None:
        """Perform ``task``, or return None because another process leads.

        An ``endless`` task needs its own timeouts. Any other task is cancelled (TimeoutError) when it takes
        too long: the keeper would renew the lease of a task that hangs for ever.
        """
        async with self._lock:
            requested_at = boot_time()
            lease = await self._campaign()
            if lease is None:
                return None
            hold = keeper.hold(
                self._leadership,
                lease,
                granted_at=requested_at,
                trust_seconds=self._leadership.trust_seconds,  # guard: leader-trust-of-its-ttl
            )
            try:
                async with hold, asyncio.timeout(None if endless else self._longest_seconds):
                    return await task()
            finally:
                hold.drop()
                await self._resign(lease)

    async def _campaign(self) -> Lease | None:
        """Request a term; if cancelled before the reply, wait for it: a granted term must be resigned."""
        request = asyncio.create_task(self._leadership.campaign(self._redis))
        try:
            return await asyncio.shield(request)
        except asyncio.CancelledError:
            done, _ = await asyncio.wait([request], timeout=_RESIGN_SECONDS)
            if done and request.exception() is None and (lease := request.result()) is not None:
                await self._resign(lease)
            request.cancel()
            raise

    async def _resign(self, lease: Lease) -> None:
        with contextlib.suppress(*DISCONNECTS, TimeoutError):  # else the lease ends by itself
            async with asyncio.timeout(_RESIGN_SECONDS):
                await self._leadership.resign(self._redis, lease)
