"""The outbox's entries as leases: one relay at a time delivers an entry, and its keeper renews the lease."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from holdfast.leases.lease import Lease, RenewalReply

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from holdfast.events.relay.outbox import Outbox, OutboxEntry
    from holdfast.leases.keeper import Keeper
    from holdfast.redis.client import Redis


class EntryLeases:
    """The lease store of one partition's outbox, for one relay."""

    kind = "relay"

    def __init__(self, outbox: Outbox, owner: str, keeper: Keeper) -> None:
        self._outbox = outbox
        self._owner = owner
        self._keeper = keeper

    @contextlib.asynccontextmanager
    async def hold(self, entry: OutboxEntry, requested_at: float) -> AsyncGenerator[None]:
        """Renew a claimed entry's lease; ``requested_at`` is the ``boot_time()`` before the claim."""
        held = self._keeper.hold(self, Lease(entry.key, self._owner, entry.fence), granted_at=requested_at)
        try:
            async with held:
                yield
        finally:
            held.drop()

    async def renew(self, redis: Redis, leases: Sequence[Lease]) -> Sequence[RenewalReply]:
        """Renew the leases that no other relay has taken over."""
        kept = await self._outbox.renew(redis, [_entry_of(lease) for lease in leases])
        return [RenewalReply.KEPT if each else RenewalReply.LOST for each in kept]


def _entry_of(lease: Lease) -> tuple[str, str, int]:
    run_id, _, sink = lease.key.partition(" ")
    return run_id, sink, lease.fence
