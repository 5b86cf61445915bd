"""A lease: the right to act on one thing, for one owner, under one fence, until it is no longer renewed.

::

    free --grant (fence + 1)--> held --release--> free
                                 |  ^
                                 |  +-- renew (owner and fence must match)
                                 +-- ttl passes --reclaim (fence + 1)--> free
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.redis.client import Redis


class Lease(msgspec.Struct, frozen=True):
    """Key, owner and fence; a write under a lease is refused once the stored owner or fence differs."""

    key: str
    owner: str
    fence: int


class RenewalReply(enum.StrEnum):
    """The result of a renewal."""

    KEPT = "kept"
    STOP = "stop"
    """Kept, but the holder was requested to stop."""
    LOST = "lost"
    """Another owner may hold the lease."""
    FORGOTTEN = "forgotten"
    """The record is missing in Redis: not renewed, but the holder may register it again under its fence."""

    @property
    def is_kept(self) -> bool:
        """Whether the lease was renewed."""
        return self in {RenewalReply.KEPT, RenewalReply.STOP}


class LeaseStore(Protocol):
    """The interface by which the keeper renews many leases in one call; each store grants in its own way."""

    kind: str
    """The kind of leased object, for metrics: run, schedule, agent, leader."""

    async def renew(self, redis: Redis, leases: Sequence[Lease]) -> Sequence[RenewalReply]:
        """Renew the leases that are still held by their owner under their fence."""
        ...


def renewal_args(leases: Iterable[Lease]) -> list[Any]:
    """Flatten leases to the (key, fence) pairs that the scripts take."""
    return [part for lease in leases for part in (lease.key, lease.fence)]


STANDINGS = {b"kept": RenewalReply.KEPT, b"lost": RenewalReply.LOST, b"stop": RenewalReply.STOP}
