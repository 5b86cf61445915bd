"""Which schedules a scheduler runs, by their names: patterns, and its shard of them.

A shard says who should run a schedule first of all; who may is decided by the lease.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from holdfast.config.parse import compiled
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from holdfast.config import ScheduledAgentSettings

_WEIGHT_BYTES = 8


@dataclass(frozen=True, slots=True)
class Patterns:
    """Patterns of the names that are run, and of those that are not: these win. None is all, and none."""

    enabled: re.Pattern[str] | None = None
    disabled: re.Pattern[str] | None = None

    @classmethod
    def of(cls, settings: ScheduledAgentSettings) -> Self:
        """Read the two patterns of the settings."""
        return cls(
            pattern_of(settings.enabled_pattern, "redis.agent.enabled-pattern"),
            pattern_of(settings.disabled_pattern, "redis.agent.disabled-pattern"),
        )

    def accepts(self, name: str) -> bool:
        """Return whether a schedule is run here."""
        return not self.refusal(name)

    def refusal(self, name: str) -> str:
        """Return the setting that keeps a schedule from being run here, or nothing."""
        if self.disabled is not None and self.disabled.fullmatch(name):
            return "redis.agent.disabled-pattern"
        if self.enabled is not None and not self.enabled.fullmatch(name):
            return "redis.agent.enabled-pattern"
        return ""


def pattern_of(text: str, setting: str) -> re.Pattern[str] | None:
    """Compile the pattern of a setting; None if it is empty."""
    try:
        return compiled(text) if text else None
    except (re.error, RecursionError, OverflowError) as exc:
        raise ConfigError(f"{setting} = {text[:80]} is not a regular expression: {exc}") from None


class Shards:
    """The live schedulers and what each owns; without any other, one owns all."""

    def __init__(self, me: str, others: Iterable[str] = ()) -> None:
        self.me = me
        self.pods = tuple(sorted({me, *others}))
        # The scheduler is hashed once; a schedule costs only the hash of its own name.
        self._begun = [(pod, blake2b(pod.encode() + b"\0", digest_size=_WEIGHT_BYTES)) for pod in self.pods]

    def owner(self, name: str) -> str:
        """Return the scheduler that a schedule belongs to: all schedulers agree."""
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
        """Return whether a schedule belongs to this scheduler."""
        return self.owner(name) == self.me
