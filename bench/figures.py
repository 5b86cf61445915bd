"""What was measured, and whether it is as good as it should be."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Goal:
    """A limit on a figure, or on its ratio to the bare one."""

    way: Literal[">=", "<=", "<", "="]
    limit: float
    of: Literal["figure", "ratio"] = "figure"

    def met(self, value: float) -> bool:
        return {
            ">=": value >= self.limit,
            "<=": value <= self.limit,
            "<": value < self.limit,
            "=": abs(value - self.limit) < 0.05,
        }[self.way]

    def __str__(self) -> str:
        return f"{self.way} {number(self.limit)}" + (" x bare" if self.of == "ratio" else "")


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report; ``rounds`` are the single measurements behind it."""

    name: str
    value: float
    unit: str
    bare: float | None = None
    ratio: float | None = None
    goal: Goal | None = None
    rounds: tuple[float, ...] = ()

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        judged = self.ratio if self.goal.of == "ratio" else self.value
        return "ok" if judged is not None and self.goal.met(judged) else "missed"


def median_of(
    name: str,
    unit: str,
    ours: Sequence[float],
    bare: Sequence[float] = (),
    goal: Goal | None = None,
) -> Figure:
    """A figure from rounds; its ratio is the median of the rounds' ratios, so that slow drifts cancel out."""
    ratios = [ours_now / bare_now for ours_now, bare_now in zip(ours, bare, strict=False) if bare_now]
    return Figure(
        name,
        statistics.median(ours),
        unit,
        bare=statistics.median(bare) if bare else None,
        ratio=statistics.median(ratios) if ratios else None,
        goal=goal,
        rounds=tuple(ours),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def number(value: float) -> str:
    """A number with the digits that mean something."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
