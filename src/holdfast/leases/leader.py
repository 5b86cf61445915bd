"""Leadership: a lease on a single key, held for a term by whoever asked first and kept like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.leases.lease import STANDINGS, Lease, Standing
from holdfast.redis.scripts import load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.redis.client import Redis

_LEAD = load(__package__, "lead")
_RENEW = load(__package__, "lead_renew")
_RESIGN = load(__package__, "resign")


class Leadership:
    """One office; at most one owner holds it at a time, and a later term always has a higher fence."""

    kind = "leader"

    def __init__(self, key: str, *, owner: str, ttl_ms: int) -> None:
        self._key = key
        self._owner = owner
        self._ttl_ms = ttl_ms

    async def campaign(self, redis: Redis) -> Lease | None:
        """Start a term, or return None while somebody else leads."""
        fence = await _LEAD(redis, [self._key], [self._owner, self._ttl_ms])
        return Lease(self._key, self._owner, fence) if fence else None

    async def renew(self, redis: Redis, leases: Sequence[Lease]) -> Sequence[Standing]:
        """Prolong the term, if it is still ours."""
        terms = [[self._owner, lease.fence, self._ttl_ms] for lease in leases]
        return [STANDINGS[await _RENEW(redis, [self._key], term)] for term in terms]

    async def release(self, redis: Redis, leases: Sequence[Lease]) -> Sequence[bool]:
        """Resign, if the term is still ours."""
        terms = [[self._owner, lease.fence] for lease in leases]
        return [await _RESIGN(redis, [self._key], term) == b"released" for term in terms]
