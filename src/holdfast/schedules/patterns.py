"""Which schedules a scheduler runs, by their names: patterns match whole names, and disabled wins."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.config.values import compiled
from holdfast.errors import ConfigError
from holdfast.schedules.schedule import family

if TYPE_CHECKING:
    from typing import Self

    from holdfast.config import ScheduledAgentSettings
    from holdfast.config.scheduling import ZombieCleanupSettings


@dataclass(frozen=True, slots=True)
class Patterns:
    """The names that are run and those that are not, whatever the first say; None is all, and none."""

    enabled: re.Pattern[str] | None = None
    disabled: re.Pattern[str] | None = None

    @classmethod
    def of(cls, settings: ScheduledAgentSettings) -> Self:
        """Read the two patterns of the settings."""
        return cls(
            _pattern(settings.enabled_pattern, "redis.agent.enabled-pattern"),
            _pattern(settings.disabled_pattern, "redis.agent.disabled-pattern"),
        )

    def accepts(self, name: str) -> bool:
        """Tell whether a schedule is run here."""
        return not self.refusal(name)

    def refusal(self, name: str) -> str:
        """Return the setting that keeps a schedule from being run here, or nothing."""
        if self.disabled is not None and self.disabled.fullmatch(name):
            return "redis.agent.disabled-pattern"
        if self.enabled is not None and not self.enabled.fullmatch(name):
            return "redis.agent.enabled-pattern"
        return ""


@dataclass(frozen=True, slots=True)
class Overrun:
    """How long a run may go on after its deadline; times are those of Redis, never of this machine."""

    seconds: float
    exceptional: re.Pattern[str] | None = None
    exceptional_seconds: float = 0.0

    @classmethod
    def of(cls, settings: ZombieCleanupSettings) -> Self:
        """Read the thresholds of the settings."""
        pattern = "redis.scheduler.zombie-cleanup.exceptional-agents.pattern"
        return cls(
            settings.threshold_ms / 1000,
            _pattern(settings.exceptional_agents.pattern, pattern),
            settings.exceptional_agents.threshold_ms / 1000,
        )

    def allowed(self, name: str) -> float:
        """Return the seconds that a schedule may overrun its deadline."""
        if self.exceptional is not None and self.exceptional.fullmatch(family(name)):
            return self.exceptional_seconds
        return self.seconds

    def left(self, name: str, deadline: float, now: float) -> float:
        """Return how long the run may still go on at ``now``, which is Redis's time; 0 or less is over."""
        return deadline + self.allowed(name) - now


def _pattern(text: str, setting: str) -> re.Pattern[str] | None:
    try:
        return compiled(text) if text else None
    except (re.error, RecursionError, OverflowError) as exc:
        raise ConfigError(f"{setting} = {text[:80]} is not a regular expression: {exc}") from None
