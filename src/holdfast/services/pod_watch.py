"""The janitor in Kubernetes: pods as proof that a worker has died, and deletion costs of busy workers' pods.

Any janitor may read a pod for a proof. One at a time, under a lease, watches the pods: it wakes its own
cleanup when a pod has gone, and writes the deletion cost of busy ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from typing import TYPE_CHECKING

from holdfast.errors import KubernetesUnavailable
from holdfast.kubernetes.outages import kubernetes_outages
from holdfast.leases.leadership import Leadership, LeaderTask
from holdfast.packages import needs_extra
from holdfast.redis.client import TROUBLE
from holdfast.redis.keys import pods_leader_key
from holdfast.reliability.backoff import backoff_seconds
from holdfast.runs.podproof import PodProofs
from holdfast.scaling.deletioncost import Busy, Costs, Patch
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping

    from holdfast.config import Settings
    from holdfast.kubernetes.mirror import Mirror
    from holdfast.kubernetes.pod import Pod
    from holdfast.leases.keeper import Keeper
    from holdfast.outages import OutageReporter
    from holdfast.redis.client import Redis
    from holdfast.redis.members import Member, Members
    from holdfast.services.connections import Connections
    from holdfast.telemetry.metrics import Metrics

_FIRST_RETRY_SECONDS = 1.0
_LAST_RETRY_SECONDS = 30.0
_CAMPAIGN_SECONDS = 15.0
_MARGIN_SECONDS = 1.0
_AWAY = ("away", "unauthorized")
"""Kinds of errors that affect every pod."""

_log = get_logger(__name__)


class PodWatcher:
    """Watches the workers' pods for one janitor."""

    def __init__(
        self, mirror: Mirror, connections: Connections, members: Members, metrics: Metrics, owner: str
    ) -> None:
        settings = connections.settings
        self._redis = connections.redis
        self._members = members
        self._metrics = metrics
        self._settings = settings.janitor
        self._mirror = mirror
        mirror.gone = self._wake_waiters
        metrics.pods_watched.set_function(lambda: len(mirror.seen))
        self.proofs = PodProofs(mirror.pods, members, self._redis, metrics)
        self._costs = Costs(settings.janitor)
        leadership = Leadership(
            pods_leader_key(prefix=settings.redis.key_prefix),
            owner=owner,
            # Not a pass's ttl, which is longer: no pods are marked until the lease of a dead janitor ends.
            ttl_ms=int(settings.lease.ttl_seconds * 1000),  # guard: pod-watch-lease-ttl
        )
        self._leader_task = LeaderTask(self._redis, leadership)
        self._campaign_seconds = min(settings.lease.ttl_seconds / 4, _CAMPAIGN_SECONDS)
        # By then the heartbeat and the leases of a worker in a gone pod have ended too.
        ended = max(3 * settings.worker.heartbeat_seconds, settings.lease.ttl_seconds)
        self._settle_seconds = ended + _MARGIN_SECONDS
        self._nudges: list[asyncio.Event] = []
        self._watching = kubernetes_outages("watch of the workers' pods", "the janitor goes on without it")
        self._marking = kubernetes_outages("deletion costs of pods", "the janitor goes on without them")

    async def close(self) -> None:
        """Close the connection to Kubernetes."""
        await self._mirror.pods.close()

    def nudge(self) -> asyncio.Event:
        """Return an event for one waiter, which is set whenever pods have gone."""
        self._nudges.append(asyncio.Event())
        return self._nudges[-1]

    async def rest(self, nudge: asyncio.Event, seconds: float) -> None:
        """Sleep; once a pod has gone, only until its heartbeat and leases have ended."""
        try:
            async with asyncio.timeout(seconds):
                await nudge.wait()
        except TimeoutError:
            return
        nudge.clear()
        await asyncio.sleep(self._settle_seconds)  # guard: nudge-cleared-before-settling

    async def run(self, keeper: Keeper) -> None:
        """Watch while no other janitor does, until cancelled."""
        while True:
            try:
                # guard: pod-watch-leader-only
                await self._leader_task.perform(keeper, self._watch, endless=True)
            except Exception as exc:
                _log.error("pod watch failed", error=repr(exc))
            await asyncio.sleep(self._campaign_seconds)

    async def _watch(self) -> None:
        self._costs = Costs(self._settings)
        _log.info("pod watch started", namespace=self._mirror.pods.namespace)
        # guard: pod-watch-begins-with-look
        self._wake_waiters()  # a pod may have gone while no janitor watched
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow())
                if self._settings.deletion_cost and not self._settings.dry_run:
                    group.create_task(self._mark())
        finally:
            # The next term lists the pods again: another janitor handles changes until then.
            self._mirror.clear()

    async def _follow(self) -> None:
        failures = 0
        while True:
            started = time.monotonic()
            try:
                await self._mirror.follow()
            except KubernetesUnavailable as exc:
                self._failed(self._watching, exc)
                failures += 1
            else:
                self._watching.answered()
                failures = 0
            pause = backoff_seconds(failures + 1, _FIRST_RETRY_SECONDS, _LAST_RETRY_SECONDS)
            # Never at once: an API that ends every watch must not be called in a busy loop.
            await asyncio.sleep(max(pause - (time.monotonic() - started), _FIRST_RETRY_SECONDS))

    def _wake_waiters(self) -> None:
        for nudge in self._nudges:
            nudge.set()

    def _failed(self, outages: OutageReporter, exc: KubernetesUnavailable) -> None:
        self._metrics.kubernetes_errors.labels(exc.kind).inc()
        outages.failed(exc)

    # -- deletion costs

    async def _mark(self) -> None:
        while True:
            try:
                await self._mark_once()
            except TROUBLE as exc:
                self._metrics.redis_errors.labels(type(exc).__name__).inc()
            except KubernetesUnavailable as exc:
                self._failed(self._marking, exc)
                await asyncio.sleep(_LAST_RETRY_SECONDS)
            await asyncio.sleep(self._settings.deletion_cost_seconds)

    async def _mark_once(self) -> None:
        members = await self._members.all(self._redis)
        for patch in self._costs.look(time.monotonic(), busy_workers(members, self._mirror.seen)):
            pod = self._mirror.seen.get(patch.uid)
            if pod is not None:
                await self._write(pod, patch)
                await asyncio.sleep(1 / self._settings.deletion_cost_per_second)

    async def _write(self, pod: Pod, patch: Patch) -> None:
        try:
            changed = await self._mirror.pods.set_cost(pod, patch.cost)
        except KubernetesUnavailable as exc:
            if exc.kind in _AWAY:
                raise
            # One rejected pod, as by an admission webhook, must not prevent the others.
            self._costs.wrote(time.monotonic(), patch)
            self._failed(self._marking, exc)
            return
        self._costs.wrote(time.monotonic(), patch)
        self._marking.answered()
        if changed is None:
            return  # it has gone meanwhile: the watch reports it
        if pod.uid in self._mirror.seen:
            self._mirror.take(changed)
        self._metrics.pod_costs_written.labels("raised" if patch.raised else "lowered").inc()
        _log.debug("pod marked", pod=pod.name, cost=patch.cost, before=pod.cost)


def busy_workers(members: Iterable[Member], pods: Mapping[str, Pod]) -> list[Busy]:
    """Return the workers' pods that may be deleted, with the load of all workers in each."""
    held: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for member in members:
        pod = pods.get(member.fields.get("pod_uid", ""))
        if member.kind == "worker" and pod is not None and not pod.deleting:
            # An unreadable record, as of another version, is skipped: it must not end the watch.
            with contextlib.suppress(ValueError):
                load, seconds = member.fields.get("load"), member.fields.get("held_seconds")
                held[pod.uid].append((int(load or 0), float(seconds or 0)))
    return [
        Busy(uid, pods[uid].cost, sum(load for load, _ in each), sum(seconds for _, seconds in each))
        for uid, each in held.items()
    ]


def open_pods(connections: Connections, members: Members, metrics: Metrics, owner: str) -> PodWatcher | None:
    """Return the janitor's pod watcher, if the settings enable it."""
    mirror = _open_mirror(connections.settings)
    return PodWatcher(mirror, connections, members, metrics, owner) if mirror is not None else None


@contextlib.asynccontextmanager
async def looking_at_pods(
    settings: Settings, members: Members, redis: Redis, metrics: Metrics
) -> AsyncGenerator[PodProofs | None]:
    """Yield the proofs for one pass, if the settings enable them."""
    mirror = _open_mirror(settings)
    try:
        yield PodProofs(mirror.pods, members, redis, metrics) if mirror is not None else None
    finally:
        if mirror is not None:
            await mirror.pods.close()


def _open_mirror(settings: Settings) -> Mirror | None:
    """Return the mirror of the workers' pods, if the settings enable it."""
    if not settings.janitor.kubernetes:
        return None
    setting = "janitor.kubernetes = true"
    with needs_extra(setting, "kubernetes"):
        from holdfast.kubernetes.mirror import Mirror  # noqa: PLC0415
        from holdfast.kubernetes.pods import Pods  # noqa: PLC0415
    pods = Pods(setting, namespace=settings.pod.namespace, labels=settings.janitor.pod_selector)
    return Mirror(pods)
