"""The rules that give the hosts' metrics their original names, and the alerts on them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[3]
FILE = ROOT / "deploy" / "prometheus" / "hosts.rules.yml"
HISTOGRAMS = {
    "rustic_agent_creation_duration_seconds": {"guild_id", "host"},
    "grpc_server_handling_seconds": {"grpc_method"},
    "rustic_registry_lookup_duration_seconds": set[str](),
}
ORIGINAL = {
    "rustic_agents_total": {"guild_id", "host"},
    "rustic_agents_running": {"guild_id", "host"},
    "rustic_agent_creation_errors_total": {"guild_id", "host"},
    "rustic_process_cpu_usage": {"agent_id", "host"},
    "rustic_process_memory_usage": {"agent_id", "host"},
    "grpc_server_handled_total": {"grpc_method", "grpc_code"},
    "rustic_registry_lookups_total": {"result"},
    "rustic_agent_density": {"host"},
    **{
        f"{name}_{part}": labels for name, labels in HISTOGRAMS.items() for part in ("bucket", "sum", "count")
    },
}
CRITICAL = {
    "HoldfastHostDown",
    "HoldfastHostRedisAway",
    "HoldfastAgentCreationErrors",
    "HoldfastHostCallErrors",
}
WARNING = {
    "HoldfastAgentCreationSlow",
    "HoldfastHostCpuHigh",
    "HoldfastHostMemoryHigh",
    "HoldfastRegistrySlow",
    "HoldfastAgentsCrash",
    "HoldfastHostsFull",
    "HoldfastHostsDie",
}
_SELECTED = re.compile(r"(holdfast_\w+)(?:\{(\w+)[=!~]+\"([^\"]+)\"\})?")
_RENAMED = re.compile(r'"(\w+)", "\$1", "(\w+)", "\(\.\*\)"')
_REMOVED = re.compile(r"without \((\w+)\) \((holdfast_\w+)")
_CODES = {"RESOURCE_EXHAUSTED", "ALREADY_EXISTS", "FAILED_PRECONDITION", "INTERNAL", "UNKNOWN", "UNAVAILABLE"}
_WORDS = _CODES | {"INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "running", "crashed"}


def groups() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    names, alerts = yaml.safe_load(FILE.read_text())["groups"]
    return names["rules"], alerts["rules"]


RECORDS, ALERTS = groups()


def known(metric: str) -> tuple[str, ...] | None:
    """The labels of a metric of ours, under one of the names it is scraped by."""
    declared = {one.name: one for one in Metrics().declared}
    if metric in declared and declared[metric].kind != "histogram":
        return declared[metric].labels
    stem, _, part = metric.rpartition("_")
    if stem in declared and declared[stem].kind == "histogram" and part in {"bucket", "sum", "count"}:
        return (*declared[stem].labels, *(("le",) if part == "bucket" else ()))
    return None


def test_every_original_name_is_recorded_once_and_no_other():
    names = [rule["record"] for rule in RECORDS]
    assert set(names) == set(ORIGINAL)
    assert len(names) == len(set(names))


def test_every_alert_of_the_design_is_there():
    severities = {rule["alert"]: rule["labels"]["severity"] for rule in ALERTS}
    assert severities == dict.fromkeys(CRITICAL, "critical") | dict.fromkeys(WARNING, "warning")
    of_one_host = [rule for rule in ALERTS if not rule["alert"].startswith("HoldfastHosts")]
    assert all("{{ $labels.instance }}" in rule["annotations"]["summary"] for rule in of_one_host)


@pytest.mark.parametrize("rule", RECORDS, ids=lambda rule: rule["record"])
def test_a_recorded_series_has_the_labels_of_the_design(rule: dict[str, Any]):
    (metric,) = [found for found, *_ in _SELECTED.findall(rule["expr"])]
    labels = {"instance", *(known(metric) or ())}
    labels -= {label for label, _ in _REMOVED.findall(rule["expr"])}
    for new, old in _RENAMED.findall(rule["expr"]):
        assert old in labels
        labels.add(new)
    assert ORIGINAL[rule["record"]] <= labels


@pytest.mark.parametrize("rule", RECORDS + ALERTS, ids=lambda rule: rule.get("record") or rule["alert"])
def test_a_rule_is_made_of_metrics_and_labels_that_there_are(rule: dict[str, Any]):
    expr = rule["expr"]
    assert expr.count("(") == expr.count(")")
    found = _SELECTED.findall(expr)
    assert found
    for metric, label, value in found:
        labels = known(metric)
        assert labels is not None, f"{metric} is no metric of ours"
        assert not label or label in labels
        assert set(value.split("|")) <= _WORDS | {""}
    for label, metric in _REMOVED.findall(expr):
        assert label in (known(metric) or ())
