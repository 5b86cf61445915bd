"""Pictures of outcomes: areas of braille dots for a terminal, lines as SVG for a page. Pure text."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast_simulator.outcome import Outcome, Sample

_LEFT: Final = (0x40, 0x04, 0x02, 0x01)
_RIGHT: Final = (0x80, 0x20, 0x10, 0x08)
_BLANK: Final = 0x2800

_WIDTH, _HEIGHT, _GAP, _EDGE = 900, 210, 46, 64
_MOST_TICKS: Final = 8
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))
_WEEK: Final = 604_800
_STEPS: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(60 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(3_600 * hours for hours in (1, 2, 3, 6, 12)),
    *(86_400, 172_800, _WEEK),
)
_COLOURS: Final = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")

_DASHES: Final = ("", "8 8", "2 5", "12 6 2 6")
"""Curves that are the same lie on each other: the gaps of the upper one show the lower one."""
_MOST_LINES: Final = 5


def replicas_of(sample: Sample) -> float:
    """What is drawn as the number of workers."""
    return float(sample.replicas)


def waiting_of(sample: Sample) -> float:
    """What is drawn as the queue."""
    return float(sample.waiting)


def scale_of(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Those that say how wide and high a picture is: one that never finishes would press all others flat."""
    return [outcome for outcome in outcomes if not outcome.unfinished] or outcomes


def highest(outcomes: Sequence[Outcome], of: Callable[[Sample], float]) -> float:
    """The highest value of any of them."""
    return max((of(sample) for outcome in outcomes for sample in outcome.samples), default=0.0)


def columns(samples: Sequence[Sample], of: Callable[[Sample], float], count: int, end: float) -> list[float]:
    """The highest value in each of ``count`` equal parts of the time until ``end``."""
    peaks = [-1.0] * count
    for sample in samples:
        if sample.at <= end:
            at = min(int(sample.at / end * count), count - 1) if end else 0
            peaks[at] = max(peaks[at], of(sample))
    last = 0.0
    for at, value in enumerate(peaks):
        last = peaks[at] = last if value < 0 else value
    return peaks


def braille(values: Sequence[float], top: float, height: int) -> list[str]:
    """An area under ``values``, two of them a character, ``height`` lines high for ``top``."""
    dots = [math.ceil(4 * height * min(value / top, 1.0)) if top else 0 for value in values]
    lines: list[str] = []
    for row in reversed(range(height)):
        cells = zip(dots[::2], dots[1::2], strict=True)
        lines.append("".join(chr(_BLANK + _half(a, row, _LEFT) + _half(b, row, _RIGHT)) for a, b in cells))
    return lines


def _half(dots: int, row: int, bits: Sequence[int]) -> int:
    return sum(bits[: max(min(dots - 4 * row, 4), 0)])


def svg(outcomes: Sequence[Outcome], span: Callable[[float], str]) -> str:
    """One picture of all policies: their replicas above, what waited below; ``span`` words the waits."""
    end = max((outcome.seconds for outcome in scale_of(outcomes)), default=0.0) or 1.0
    height = 2 * (_HEIGHT + _GAP) + 24 + 18 * len(outcomes)
    panels = [
        _panel(outcomes, "replicas", replicas_of, end, _GAP / 2),
        _panel(outcomes, "waiting runs", waiting_of, end, _GAP * 1.5 + _HEIGHT),
    ]
    captions = [_caption(outcome, span) + _cut(outcome, outcomes) for outcome in outcomes]
    legend = [_legend(text, at, height - 18 * (len(captions) - at)) for at, text in enumerate(captions)]
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
            f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
            *panels,
            *legend,
            "</svg>",
            "",
        ]
    )


def _legend(caption: str, at: int, y: float) -> str:
    line = f'<line x1="{_EDGE}" x2="{_EDGE + 32}" y1="{y + 2:g}" y2="{y + 2:g}" {_stroke(at)}/>'
    return f'{line}<text x="{_EDGE + 40}" y="{y + 7:g}">{escape(caption)}</text>'


def _caption(outcome: Outcome, span: Callable[[float], str]) -> str:
    waits = outcome.wait_seconds
    return (
        f"{outcome.policy}: {outcome.replicas_mean:.1f} replicas, at most {outcome.replicas_most}; "
        f"wait p50 {span(waits.p50)}, p95 {span(waits.p95)}, p99 {span(waits.p99)}"
    )


def _cut(outcome: Outcome, outcomes: Sequence[Outcome]) -> str:
    """What the picture cuts off of a policy, since its height is that of others."""
    text = ""
    for title, of in (("replicas", replicas_of), ("waiting", waiting_of)):
        top, most = levels(highest(scale_of(outcomes), of))[-1], highest([outcome], of)
        text += f"; {title} cut at {top:,}, goes to {most:,.0f}" if most > top else ""
    return text


def _panel(
    outcomes: Sequence[Outcome], title: str, of: Callable[[Sample], float], end: float, y: float
) -> str:
    named = levels(highest(scale_of(outcomes), of))
    top = named[-1]
    inner = _WIDTH - 2 * _EDGE
    parts = [f'<g transform="translate({_EDGE} {y:g})">', f'<text x="0" y="-6">{title}</text>']
    for level in named:
        at = _HEIGHT * (1 - level / top)
        parts += [
            f'<line x1="0" x2="{inner}" y1="{at:g}" y2="{at:g}" stroke="#ddd"/>',
            f'<text x="-8" y="{at + 4:g}" text-anchor="end">{level:,}</text>',
        ]
    for second in ticks(end):
        x = f"{inner * second / end:g}"
        parts += [
            f'<line x1="{x}" x2="{x}" y1="{_HEIGHT}" y2="{_HEIGHT + 4}" stroke="#999"/>',
            f'<text x="{x}" y="{_HEIGHT + 17}" text-anchor="middle">{_time(second)}</text>',
        ]
    parts += [_line(outcome, of, at, end, top, inner) for at, outcome in enumerate(outcomes)]
    return "\n".join([*parts, "</g>"])


def _line(
    outcome: Outcome, of: Callable[[Sample], float], at: int, end: float, top: float, inner: float
) -> str:
    steps: list[str] = []
    for sample in outcome.samples:
        if sample.at > end:
            break
        x, y = inner * sample.at / end, _HEIGHT * (1 - min(of(sample) / top, 1.0))
        steps.append(f"H{x:.1f}V{y:.1f}" if steps else f"M{x:.1f} {y:.1f}")
    return f'<path d="{"".join(steps)}" fill="none" {_stroke(at)}/>'


def _stroke(at: int) -> str:
    dashes = _DASHES[at % len(_DASHES)]
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'stroke="{_COLOURS[at % len(_COLOURS)]}" stroke-width="1.5"{dashed}'


def levels(most: float) -> range:
    """The whole numbers that the upright axis names, a round step apart, up to ``most`` or above."""
    size = 10 ** max(math.floor(math.log10(most)) - 1, 0) if most >= 1 else 1
    step = next(size * times for times in (1, 2, 5, 10, 20) if most <= _MOST_LINES * size * times)
    return range(0, step * max(math.ceil(most / step), 1) + 1, step)


def ticks(end: float) -> range:
    """The seconds that a time axis names: as many as have room, a round step apart."""
    fits = (step for step in _STEPS if end / step <= _MOST_TICKS)
    step = next(fits, _WEEK * math.ceil(end / _WEEK / _MOST_TICKS))
    return range(0, math.floor(end) + 1, step)


def _time(seconds: int) -> str:
    """Write a round time with its units, as tables do: 30s, 15m, 1h 30m, 1d 12h."""
    parts: list[str] = []
    for size, unit in _UNITS:
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0"
