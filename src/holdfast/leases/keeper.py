"""The keeper renews every lease of its process, on its own thread and connection.

Its invariant is the trust window: a guarded body ends before its lease can be given to another, because the
guard is a time limit that only a renewal moves, from the moment the renewal was *asked*, by 3/4 of the ttl.
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
from holdfast.leases.lease import Lease, LeaseStore, Standing
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
"""Lua unpack fails near 8,000 items and a long script stalls Redis; a beat is one call up to here."""

_log = get_logger(__name__)


class LeaseTimes(Protocol):
    """When leases of one ttl are renewed, and how long a renewal is trusted: settings of leases or hosts."""

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
    """One lease being kept: ``async with hold`` guards a body, ``drop`` ends the keeping."""

    keeper: Keeper
    store: LeaseStore
    lease: Lease
    until: float
    trust_seconds: float
    on_stop: Callable[[], None] | None
    on_standing: Callable[[Standing], None] | None = None
    lost: bool = False
    stopped: bool = False
    _guard: asyncio.Timeout | None = None

    def drop(self) -> None:
        """Stop renewing: the lease was settled, released or lost."""
        # They refer to their holder, and that to this: the garbage collector would have to find the cycle.
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
            raise LeaseLost(f"{self.lease} was not kept") from timeout

    def trusted_until(self) -> float:
        """Return until when the lease is trusted; one that is lost is not trusted again."""
        return 0.0 if self.lost else self.until

    def renewed(self, asked: float) -> None:
        """Trust the lease from the ``boot_time()`` at which a renewal, or a repeated grant, was asked."""
        if not self.lost:
            self.until = max(self.until, asked + self.trust_seconds)  # guard: trust-window

    def watch(self) -> None:
        """End the body if its time is over, else look again then."""
        # The keeper's thread moves ``until``: uvloop runs due timers before the callbacks of other threads.
        if self._guard is None or self._guard.expired():
            return
        left = self.until - boot_time()
        if left > 0:
            self.keeper.timer.after(left)  # guard: lease-end-timer
        else:
            # After a freeze a renewal may still succeed, before the guard has ended the body.
            self.lost = True  # guard: expired-lease-stays-lost
            self._guard.reschedule(0.0)  # guard: expired-lease-stops-body

    def lose(self) -> None:
        """Somebody else may hold it: end the body now."""
        self.lost, self.until = True, 0.0
        self.watch()
        self.drop()

    def stop(self) -> None:
        """Tell the holder, once, that somebody asked it to stop."""
        if not self.stopped and self.on_stop is not None:
            self.stopped = True
            self.on_stop()


class Keeper:
    """Keeps holds alive from its own thread: code which blocks the event loop does not lose its leases."""

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
                "agents go on until their leases can't be trusted any more, then they are stopped",
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
        on_standing: Callable[[Standing], None] | None = None,
    ) -> Hold:
        """Start keeping ``lease``; ``granted_at`` is the ``boot_time()`` when the grant was asked.

        ``trust_seconds`` is for a store whose ttl may be shorter than that of the keeper's settings. A holder
        that guards no body acts on every standing itself (``on_standing``, on its event loop), and its lease
        is renewed until it drops it.
        """
        trust = min(trust_seconds, self.trust_seconds)
        hold = Hold(self, store, lease, granted_at + trust, trust, on_stop, on_standing)
        self._holds[id(hold)] = hold
        return hold

    def forget(self, hold: Hold) -> None:
        """Stop keeping ``hold``; harmless if it is not kept."""
        self._holds.pop(id(hold), None)

    def held(self, store: LeaseStore) -> set[Lease]:
        """The leases of a store that are being kept."""
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
        """Wait for ever; raise if the keeper's thread dies, so that its process goes down loudly."""
        assert self._died is not None
        await asyncio.shield(self._died)

    def _run_thread(self) -> None:
        try:
            asyncio.run(self._beat_until_stopped())
        except BaseException as exc:
            self._call_loop(self._end_all, exc)

    def _end_all(self, exc: BaseException) -> None:
        for hold in list(self._holds.values()):
            hold.lose()
        if self._died is not None and not self._died.done():
            self._died.set_exception(exc)

    async def _beat_until_stopped(self) -> None:
        redis = self._connect()
        try:
            while not self._stopping.is_set():
                started = time.monotonic()
                whole = await self._beat(redis)  # guard: renewal-own-thread
                # After a failed beat try again soon: the trust window leaves room for several tries.
                pause = self._every if whole else min(self._every / 4, 1.0)
                # Blocking is fine here: this loop has nothing else to do, and an Event wakes it at once.
                self._stopping.wait(max(started + pause - time.monotonic(), 0.01))
        finally:
            await redis.aclose()

    async def _beat(self, redis: Redis) -> bool:
        """Renew everything held now; False if some call failed."""
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
        return all(await asyncio.gather(*calls))  # side by side: a store that hangs costs only its own leases

    async def _renew(self, redis: Redis, store: LeaseStore, holds: list[Hold]) -> bool:
        asked = boot_time()
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
        self._metrics.lease_renewal_seconds.labels(store.kind).observe(boot_time() - asked)
        for hold, standing in zip(holds, standings, strict=True):
            if standing.is_kept:
                hold.renewed(asked)
        self._called(answered=True)
        self._call_loop(self._apply, holds, standings)  # guard: renewal-not-waiting-for-losers
        return True

    def _called(self, *, answered: bool) -> None:
        if self.after_call is not None:
            self.after_call(answered)

    def _call_loop(self, callback: Callable[..., None], *args: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)

    def _apply(self, holds: Sequence[Hold], standings: Sequence[Standing]) -> None:
        for hold, standing in zip(holds, standings, strict=True):
            if hold.on_standing is not None:
                hold.on_standing(standing)
            elif standing is Standing.STOP:
                hold.stop()
            elif standing is not Standing.KEPT:
                self._lose(hold)

    def _lose(self, hold: Hold) -> None:
        # One whose body has ended was most likely settled between the asking and the answer.
        if hold in self.guarded:
            self._metrics.leases_lost.labels(hold.store.kind).inc()
            _log.warning("lease lost", key=hold.lease.key, owner=hold.lease.owner, fence=hold.lease.fence)
        hold.lose()
