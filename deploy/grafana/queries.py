"""The expressions that pages are made of; what the reader chose is in each."""

from __future__ import annotations

from panels import Query, Variable

HERE = 'namespace=~"$namespace"'
QUEUE = f'{HERE}, queue=~"$queue"'
RATE = "[$__rate_interval]"

NAMESPACE = Variable("namespace", "holdfast_process_start_time_seconds")
QUEUES = Variable("queue", "holdfast_queue_depth")


def gauge(name: str, *, by: str = "queue", selector: str = QUEUE, how: str = "max") -> str:
    """A gauge that several processes show: the greatest is true of a queue, the sum of what each has a part of."""
    return f"{how} by ({by}) (holdfast_{name}{{{selector}}})"


def rate(name: str, *, by: str = "queue", selector: str = QUEUE) -> str:
    """How often something happens, a second."""
    return f"sum by ({by}) (rate(holdfast_{name}_total{{{selector}}}{RATE}))"


def quantiles(name: str, *, by: str = "queue", selector: str = QUEUE, legend: str = "") -> tuple[Query, ...]:
    """The middle and the tail of a histogram."""
    inner = f"sum by (le{', ' + by if by else ''}) (rate(holdfast_{name}_bucket{{{selector}}}{RATE}))"
    shown = legend or (f"{{{{{by}}}}}" if by else "")
    return tuple(
        Query(f"histogram_quantile({share}, {inner})", f"{shown} {words}".strip())
        for share, words in ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
    )


def one(expr: str, legend: str = "{{queue}}") -> tuple[Query, ...]:
    """A panel with one expression."""
    return (Query(expr, legend),)
