"""A mirror of the workers' pods: listed, then watched, and listed again whenever a watch has ended.

The mirror may be outdated. It shows which pods to read, and proves nothing.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from holdfast.errors import KubernetesUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.kubernetes.pod import Pod
    from holdfast.kubernetes.pods import Pods

_EXPIRED: Final = 410


class Mirror:
    """The last known pods, by uid; ``gone`` is called whenever a pod has gone."""

    def __init__(self, pods: Pods, gone: Callable[[], None] = lambda: None) -> None:
        self.pods = pods
        self.gone = gone
        self.seen: dict[str, Pod] = {}

    async def follow(self) -> None:
        """List once, then follow until the watch ends; raises KubernetesUnavailable."""
        found, version = await self.pods.list()
        before, self.seen = self.seen, {pod.uid: pod for pod in found if not pod.ended}
        if before.keys() - self.seen.keys():
            self.gone()
        changes = self.pods.watch(version)
        try:
            async with contextlib.aclosing(changes):
                async for pod, there in changes:
                    self.take(pod, there=there)
        except KubernetesUnavailable as exc:
            if exc.status != _EXPIRED:
                raise

    def take(self, pod: Pod, *, there: bool = True) -> None:
        """Note a pod as it is now."""
        if there and not pod.ended:
            self.seen[pod.uid] = pod
        elif self.seen.pop(pod.uid, None) is not None:
            self.gone()

    def clear(self) -> None:
        """Drop all pods; the next ``follow`` lists them again."""
        self.seen = {}
