"""Which scheduler a schedule belongs to, by rendezvous hashing: one that comes or goes moves its share only.

A shard says who should run a schedule first of all; who may is decided by the lease.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_WEIGHT_BYTES = 8


class Shards:
    """The live schedulers as one of them sees them; without any other, everything is its own."""

    def __init__(self, me: str, others: Iterable[str] = ()) -> None:
        self.me = me
        self.pods = tuple(sorted({me, *others}))
        # The pod is hashed once; what a schedule costs is its own name only.
        self._begun = [(pod, blake2b(pod.encode() + b"\0", digest_size=_WEIGHT_BYTES)) for pod in self.pods]

    def owner(self, name: str) -> str:
        """Return the scheduler that a schedule belongs to: all of them agree, whoever asks."""
        if len(self.pods) == 1:
            return self.me
        encoded = name.encode()  # guard: shard-by-hash
        best, heaviest = self.me, b""
        for pod, begun in self._begun:
            weight = begun.copy()
            weight.update(encoded)
            digest = weight.digest()
            if digest > heaviest:
                best, heaviest = pod, digest
        return best

    def owns(self, name: str) -> bool:
        """Tell whether a schedule belongs to this scheduler."""
        return self.owner(name) == self.me
