"""The rules that give the schedules' metrics their original names: all of those, from metrics that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[3]
FILE = ROOT / "deploy" / "prometheus" / "schedules.rules.yml"
SCHEDULES = ROOT / "src" / "holdfast" / "schedules"
ORIGINAL = {
    "cats.priorityScheduler.scheduler.oldestOverdueSeconds",
    "cats.priorityScheduler.scheduler.degraded",
    "cats.priorityScheduler.acquire.acquired",
    "cats.priorityScheduler.scheduler.readyCount",
    "cats.priorityScheduler.scripts.errors",
    "cats.priorityScheduler.circuitBreaker.trip",
    "cats.priorityScheduler.circuitBreaker.blocked",
    "cats.priorityScheduler.circuitBreaker.recovery",
    "cats.priorityScheduler.acquire.submissionFailures",
    "cats.priorityScheduler.scheduler.capacityPerCycle",
    "cats.priorityScheduler.scheduler.semaphoreAvailable",
    "cats.priorityScheduler.schedule.retryExhausted",
    "cats.priorityScheduler.schedule.recovery",
    "cats.priorityScheduler.cas.contention",
}
_SELECTED = re.compile(r"(holdfast_\w+)(?:\{(\w+)=\"(\w+)\"\})?")
_REMOVED = re.compile(r"without \((\w+)\) \((holdfast_\w+)")


def rules() -> list[dict[str, Any]]:
    names, _alerts = yaml.safe_load(FILE.read_text())["groups"]
    return names["rules"]


def is_written(value: str) -> bool:
    """Whether the schedules' code has this word, which it then labels something with."""
    return any(f'"{value}"' in file.read_text() for file in SCHEDULES.glob("*.py"))


def test_every_original_name_is_recorded_and_no_other():
    assert {rule["record"] for rule in rules()} == {name.replace(".", "_") for name in ORIGINAL}


def test_a_series_is_recorded_once():
    series = [(rule["record"], tuple(rule.get("labels", {}).items())) for rule in rules()]
    assert len(series) == len(set(series))


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["record"])
def test_a_rule_is_made_of_metrics_and_labels_that_there_are(rule):
    assert set(rule) <= {"record", "expr", "labels"}
    assert all(isinstance(value, str) for value in rule.get("labels", {}).values())
    known, expr = {one.name: one for one in Metrics().declared}, rule["expr"]
    assert expr.count("(") == expr.count(")")
    found = _SELECTED.findall(expr)
    assert found
    for metric, label, value in found:
        assert metric in known, f"{metric} is no metric of ours"
        if label:
            assert label in known[metric].labels
            assert is_written(value)
        assert metric.startswith("holdfast_schedule_"), "others than schedulers count it, too"
    for label, metric in _REMOVED.findall(expr):
        assert label in known[metric].labels
