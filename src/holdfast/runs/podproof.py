"""Whether a consumer's pod proves that its process is dead or alive; used beside the heartbeat, never alone.

::

    the pod, by the name that the worker registered      the proof
    ───────────────────────────────────────────────      ─────────────────────────────────────────────────
    not found, ended, or another uid under that name     gone: the idle threshold does not apply
    running, without another worker in it                lives: the consumer stays
    being deleted; or another worker runs in it          unknown: the idle threshold decides
    not registered, or in another namespace              unknown; but a pod of the consumer's own name lives
    not readable now                                     unknown
"""

from __future__ import annotations

import enum
import re
import time
from typing import TYPE_CHECKING

from holdfast.errors import KubernetesUnavailable
from holdfast.kubernetes.outages import kubernetes_outages
from holdfast.kubernetes.pod import TROUBLES

if TYPE_CHECKING:
    from holdfast.kubernetes.pod import Pod, PodLook
    from holdfast.redis.client import Redis
    from holdfast.redis.members import Members, PodName
    from holdfast.telemetry.metrics import Metrics

_KIND = "worker"
_REST_SECONDS = 30.0
"""After a failure no pod is read for this long: a pass must not wait for a timeout per consumer."""
_POD_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class Proof(enum.StrEnum):
    """The state of a consumer's pod."""

    GONE = "gone"
    LIVES = "lives"
    UNKNOWN = "unknown"


def proof_of(known: PodName | None, found: Pod | None, *, namespace: str, shared: bool = False) -> Proof:
    """Compare the registered pod with the one found; ``shared``: another live process is in that pod.

    Without a registered pod, ``found`` is the pod that happens to have the consumer's name, if any.
    """
    if known is None or known.namespace != namespace:  # guard: pod-proof-known-pod
        running = found is not None and not found.ended and not found.deleting
        return Proof.LIVES if known is None and running else Proof.UNKNOWN
    if found is None or found.ended or (known.uid and found.uid != known.uid):
        return Proof.GONE
    return Proof.UNKNOWN if shared or found.deleting else Proof.LIVES


class PodProofs:
    """Reads the pods of consumers; while the Kubernetes API is unavailable, every proof is unknown."""

    def __init__(self, pods: PodLook, members: Members, redis: Redis, metrics: Metrics) -> None:
        self._pods = pods
        self._members = members
        self._redis = redis
        self._metrics = metrics
        self._rest_until = 0.0
        self._outages = kubernetes_outages("proof from pods", "consumers are judged without it")
        for kind in TROUBLES:  # at 0, or the first has no increase to alert on
            metrics.kubernetes_errors.labels(kind)

    async def __call__(self, consumer: str) -> Proof:
        """Return what the pod of a consumer without a heartbeat proves."""
        known = await self._members.pod(self._redis, _KIND, consumer)
        name = known.name if known else consumer
        elsewhere = known is not None and known.namespace != self._pods.namespace
        if elsewhere or time.monotonic() < self._rest_until or not _POD_NAME.fullmatch(name):
            return Proof.UNKNOWN
        try:
            found = await self._pods.get(name)
        except KubernetesUnavailable as exc:
            self._failed(exc)
            return Proof.UNKNOWN
        self._outages.answered()
        shared = found is not None and known is not None and await self._is_shared(consumer, found)
        return proof_of(known, found, namespace=self._pods.namespace, shared=shared)

    async def _is_shared(self, consumer: str, pod: Pod) -> bool:
        """Whether another worker runs in that pod: then the pod proves nothing about this consumer."""
        members = await self._members.all(self._redis, _KIND)
        # guard: pod-proof-one-process
        return any(member.name != consumer and member.fields.get("pod_uid") == pod.uid for member in members)

    def _failed(self, exc: KubernetesUnavailable) -> None:
        self._metrics.kubernetes_errors.labels(exc.kind).inc()
        self._rest_until = time.monotonic() + _REST_SECONDS  # guard: pod-proof-rest
        self._outages.failed(exc)
