"""What agents report of themselves, as a host counts it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from prometheus_client import generate_latest

from holdfast.hosts.host_metrics import MESSAGES, count_messages
from holdfast.services.resident_counters import CounterDeltas
from holdfast.telemetry.metrics import Metrics


class Told:
    """The part of a control that reports."""

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self.reports: list[dict[str, Any]] = []

    def report(self, kind: str, **data: Any) -> None:
        assert kind == MESSAGES
        self.reports.append(data)
        count_messages(self.metrics, "Clerk", data)


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"holdfast_host_{name}_total", {"agent": "Clerk", **labels})


def test_what_a_worker_counts_reaches_its_host_once():
    worker, host = Metrics(["receive"]), Metrics()
    told = Told(host)
    news = CounterDeltas(worker, told)  # pyright: ignore[reportArgumentType]
    news.tell()
    assert told.reports == []  # nothing has happened
    meter = worker.runs("mailbox:clerk", "receive")
    meter.finished("succeeded", 2.5)
    meter.finished("succeeded", 0.5)
    meter.finished("failed", 1.0)
    meter.retried("error")
    news.tell()
    news.tell()
    assert len(told.reports) == 1
    meter.finished("succeeded", 1.0)
    news.tell()
    assert value(host, "messages", status="succeeded") == 3
    assert value(host, "messages", status="failed") == 1
    assert value(host, "message_retries") == 1
    assert value(host, "message_seconds") == pytest.approx(5.0)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"finished": None, "retried": "many", "seconds": None},
        {"finished": {"made up": 5}, "retried": -1, "seconds": math.nan},
        {"finished": {"succeeded": -3, "failed": math.inf, "timed_out": [1]}},
        {"finished": ["succeeded"], "seconds": {}},
    ],
)
def test_a_report_that_makes_no_sense_counts_nothing(said: dict[str, Any]):
    metrics = Metrics()
    before = generate_latest(metrics.registry)
    count_messages(metrics, "Clerk", said)
    assert [line for line in generate_latest(metrics.registry).splitlines() if b"Clerk" in line] == []
    assert b"Clerk" not in before
