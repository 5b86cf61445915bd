"""The keeper renews every lease of its process, on its own thread and connection.

Its invariant is the trust window: a guarded body ends before its lease can be granted to another owner. Its
timeout ends 3/4 of the ttl after the *request* of the last grant or renewal.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Protocol

from holdfast.clock import boot_time
from holdfast.errors import LeaseLost
from holdfast.leases.lease import Lease, LeaseStore, RenewalReply
from holdfast.leases.timers import SharedTimer
from holdfast.redis.client import TROUBLE
from holdfast.redis.outages import redis_outages
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from types import TracebackType
    from typing import Self

    from holdfast.outages import OutageReporter
    from holdfast.redis.client import Redis
    from holdfast.telemetry.metrics import Metrics

_BATCH = 2000  # guard: renewal-batch-size
"""Leases per renewal call: Lua's unpack fails near 8,000 items, and a long script stalls Redis."""

_log = get_logger(__name__)


class LeaseTimes(Protocol):
    """When leases are renewed and how long a renewal is trusted: the settings of leases or of hosts."""

    @property
    def renew_every_seconds(self) -> float:
        """How often a holder renews, and how long it waits for the reply to a renewal."""
        ...

    @property
    def trust_seconds(self) -> float:
        """How long a holder trusts its last renewal."""
        ...


@dataclasses.dataclass(slots=True, eq=False)
class Hold:
    """One lease that the keeper renews: ``async with hold`` guards a body, ``drop`` ends the renewals."""

    keeper: Keeper
    store: LeaseStore
    lease: Lease
    until: float
    trust_seconds: float
    on_stop: Callable[[], None] | None
    on_standing: Callable[[RenewalReply], None] | None = None
    lost: bool = False
    stopped: bool = False
    _guard: asyncio.Timeout | None = None

    def drop(self) -> None:
        """Stop renewing: the lease was settled, released or lost."""
        # The callbacks refer to their holder, and the holder to this: a cycle for the garbage collector.
        self.on_stop = self.on_standing = None
        self.keeper.forget(self)

    async def __aenter__(self) -> Self:
        self._guard = await asyncio.timeout(None).__aenter__()
        self.keeper.guarded.add(self)
        self.watch()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        guard, self._guard = self._guard, None
        assert guard is not None
        self.keeper.guarded.discard(self)
        try:
            await guard.__aexit__(kind, exc, trace)
        except TimeoutError as timeout:
            if not guard.expired():
                raise
            self.lost = True
            raise LeaseLost(f"{self.lease} was not renewed in time") from timeout

    def trusted_until(self) -> float:
        """Return until when the lease is trusted; a lost lease is never trusted again."""
        return 0.0 if self.lost else self.until

    def renewed(self, requested_at: float) -> None:
        """Trust the lease from ``requested_at``, the ``boot_time()`` before a renewal or a repeated grant."""
        if not self.lost:
            self.until = max(self.until, requested_at + self.trust_seconds)  # guard: trust-window

    def watch(self) -> None:
        """End the body if the lease is not trusted any more, else check again when it ends."""
        # ``until`` is set by the keeper's thread: uvloop runs due timers before callbacks from other threads.
        if self._guard is None or self._guard.expired():
            return
        left = self.until - boot_time()
        if left > 0:
            self.keeper.timer.after(left)  # guard: lease-end-timer
        else:
            # After a freeze, a renewal may still succeed before the guard has ended the body.
            self.lost = True  # guard: expired-lease-stays-lost
            self._guard.reschedule(0.0)  # guard: expired-lease-stops-body

    def lose(self) -> None:
        """End the body now, because another owner may hold the lease."""
        self.lost, self.until = True, 0.0
        self.watch()
        self.drop()

    def stop(self) -> None:
        """Notify the holder, once, that it was requested to stop."""
        if not self.stopped and self.on_stop is not None:
            self.stopped = True
            self.on_stop()


class Keeper:
    """Renews leases on its own thread: code that blocks the event loop does not lose its leases."""

    def __init__(
        self,
        settings: LeaseTimes,
        connect: Callable[[], Redis],
        metrics: Metrics,
        *,
        at_least_every: float = float("inf"),
    ) -> None:
        self.trust_seconds = settings.trust_seconds
        self.after_call: Callable[[bool], None] | None = None
        """Called on the keeper's thread after each renewal call, with whether Redis answered it."""
        self._reply_seconds = settings.renew_every_seconds
        self._every = min(settings.renew_every_seconds, at_least_every)
        self._connect = connect
        self._metrics = metrics
        self._holds: dict[int, Hold] = {}
        self._by_store: dict[LeaseStore, list[Hold]] = defaultdict(list)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run_thread, name="holdfast-keeper", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.guarded: set[Hold] = set()
        self.timer = SharedTimer(self._watch_all)
        self._died: asyncio.Future[None] | None = None
        # By store: one server of a cluster may hang while the others answer.
        self._outages: defaultdict[LeaseStore, OutageReporter] = defaultdict(
            partial(
                redis_outages,
                "lease renewals",
                "agents continue until their leases can't be trusted any more, then they are stopped",
            )
        )

    def hold(
        self,
        store: LeaseStore,
        lease: Lease,
        *,
        granted_at: float,
        trust_seconds: float = float("inf"),
        on_stop: Callable[[], None] | None = None,
        on_standing: Callable[[RenewalReply], None] | None = None,
    ) -> Hold:
        """Start to renew ``lease``; ``granted_at`` is the ``boot_time()`` before the request for it.

        ``trust_seconds`` is for a store whose ttl may be shorter than that of the keeper's settings. A holder
        without a guarded body gets every standing (``on_standing``, on its event loop), and its lease is
        renewed until it drops the hold.
        """
        trust = min(trust_seconds, self.trust_seconds)
        hold = Hold(self, store, lease, granted_at + trust, trust, on_stop, on_standing)
        self._holds[id(hold)] = hold
        return hold

    def forget(self, hold: Hold) -> None:
        """Stop the renewals of ``hold``; without effect if it is not renewed."""
        self._holds.pop(id(hold), None)

    def held(self, store: LeaseStore) -> set[Lease]:
        """Return the leases of a store that are renewed now."""
        return {hold.lease for hold in list(self._holds.values()) if hold.store is store}

    def _watch_all(self) -> None:
        for hold in list(self.guarded):
            hold.watch()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._died = self._loop.create_future()
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping.set()
        self.timer.close()
        await asyncio.to_thread(self._thread.join)

    async def watch(self) -> None:
        """Wait for ever; raise if the keeper's thread dies, so that its process ends with an error."""
        assert self._died is not None
        await asyncio.shield(self._died)

    def _run_thread(self) -> None:
        try:
            asyncio.run(self._renew_until_stopped())
        except BaseException as exc:
            self._call_loop(self._end_all, exc)

    def _end_all(self, exc: BaseException) -> None:
        for hold in list(self._holds.values()):
            hold.lose()
        if self._died is not None and not self._died.done():
            self._died.set_exception(exc)

    async def _renew_until_stopped(self) -> None:
        redis = self._connect()
        try:
            while not self._stopping.is_set():
                started = time.monotonic()
                whole = await self._renew_all(redis)  # guard: renewal-own-thread
                # After a failed renewal try again soon: the trust window is long enough for several tries.
                pause = self._every if whole else min(self._every / 4, 1.0)
                # This loop has nothing else to do, so it may block; the Event wakes it at once.
                self._stopping.wait(max(started + pause - time.monotonic(), 0.01))
        finally:
            await redis.aclose()

    async def _renew_all(self, redis: Redis) -> bool:
        """Renew every lease held now; return whether all calls succeeded."""
        for holds in self._by_store.values():
            holds.clear()
        for hold in list(self._holds.values()):
            self._by_store[hold.store].append(hold)
        calls: list[Awaitable[bool]] = []
        for store, holds in self._by_store.items():
            self._metrics.leases_held.labels(store.kind).set(len(holds))
            self._metrics.leases_lost.labels(store.kind)  # at 0, or the first has no increase to alert on
            batches = [holds[start : start + _BATCH] for start in range(0, len(holds), _BATCH)]
            calls += [self._renew(redis, store, batch) for batch in batches]
        # guard: stores-renewed-concurrently
        return all(await asyncio.gather(*calls))  # concurrent: a store that hangs delays its own leases only

    async def _renew(self, redis: Redis, store: LeaseStore, holds: list[Hold]) -> bool:
        requested_at = boot_time()
        try:
            async with asyncio.timeout(self._reply_seconds):
                standings = await store.renew(redis, [hold.lease for hold in holds])
        except TROUBLE as exc:
            self._metrics.lease_renewal_failures.labels(store.kind).inc()
            if not self._outages[store].failed(exc):
                _log.error("lease renewals refused", leases=len(holds), error=repr(exc))
            self._called(answered=False)
            return False
        self._outages[store].answered()
        self._metrics.lease_renewal_seconds.labels(store.kind).observe(boot_time() - requested_at)
        for hold, standing in zip(holds, standings, strict=True):
            if standing.is_kept:
                hold.renewed(requested_at)
        self._called(answered=True)
        self._call_loop(self._apply, holds, standings)  # guard: renewal-not-waiting-for-losers
        return True

    def _called(self, *, answered: bool) -> None:
        if self.after_call is not None:
            self.after_call(answered)

    def _call_loop(self, callback: Callable[..., None], *args: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)

    def _apply(self, holds: Sequence[Hold], standings: Sequence[RenewalReply]) -> None:
        for hold, standing in zip(holds, standings, strict=True):
            if hold.on_standing is not None:
                hold.on_standing(standing)
            elif standing is RenewalReply.STOP:
                hold.stop()
            elif standing is not RenewalReply.KEPT:
                self._lose(hold)

    def _lose(self, hold: Hold) -> None:
        # A hold whose body has ended was most likely settled between the request and the reply.
        if hold in self.guarded:
            self._metrics.leases_lost.labels(hold.store.kind).inc()
            _log.warning("lease lost", key=hold.lease.key, owner=hold.lease.owner, fence=hold.lease.fence)
        hold.lose()
