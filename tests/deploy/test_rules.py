"""The rules for Prometheus: of metrics that there are, each alert shown to fire and to be quiet, each explained."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.cli import main
from tests.support.deploy.promql import PROMETHEUS, ROOT, Catalogue, Wrong, alerts, rule_files, rules_of

TESTS = sorted((PROMETHEUS / "tests").glob("*.test.yml"))
RUNBOOK = ROOT / "docs" / "operate" / "alerts.md"
URL = "https://github.com/holdfast/holdfast/blob/main/docs/operate/alerts.md"
ALERTS = alerts()
CATALOGUE = Catalogue.with_rules()
_TEMPLATED = re.compile(r"\$labels\.(\w+)")
_COMMAND = re.compile(r"`(holdfast [^`]+)`")


def cases() -> dict[str, list[dict[str, Any]]]:
    """The unit tests, by the alert that they are of."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file in TESTS:
        for case in yaml.safe_load(file.read_text())["tests"]:
            found.setdefault(case["name"], []).append(case)
    return found


CASES = cases()


def run(*words: object, cwd: Path = PROMETHEUS) -> tuple[int, str]:
    done = subprocess.run(
        [str(word) for word in words], cwd=cwd, capture_output=True, text=True, timeout=100, check=False
    )
    return done.returncode, done.stdout + done.stderr


# -- what promtool says


def test_promtool_takes_every_file(promtool):
    code, said = run(promtool, "check", "rules", *rule_files())
    assert code == 0, said
    assert said.count("SUCCESS") == len(rule_files())


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.name)
def test_the_unit_tests_of_the_rules_pass(promtool, file):
    code, said = run(promtool, "test", "rules", file)
    assert code == 0, said


MISTAKES = {"never": {"expr": "vector(0) > 1"}, "always": {"expr": "vector(1)"}}


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.name)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_alert_that_is_broken_fails_its_unit_test(promtool, file, mistake, tmp_path):
    shutil.copytree(PROMETHEUS / "tests", tmp_path / "tests")
    for rules in rule_files():
        document = yaml.safe_load(rules.read_text())
        for group in document["groups"]:
            group["rules"] = [
                rule | MISTAKES[mistake] if "alert" in rule else rule for rule in group["rules"]
            ]
        (tmp_path / rules.name).write_text(yaml.safe_dump(document, sort_keys=False))
    code, said = run(promtool, "test", "rules", tmp_path / "tests" / file.name)
    assert code == 1
    tested = [case["name"] for case in yaml.safe_load(file.read_text())["tests"] if case["name"] in ALERTS]
    assert [name for name in tested if f'alertname=\\"{name}\\"' not in said] == []


# -- what they are made of


@pytest.mark.parametrize("file", rule_files(), ids=lambda file: file.name)
def test_rules_are_made_of_metrics_labels_and_values_that_there_are(file):
    for rule in rules_of(file):
        labels = CATALOGUE.labels(rule["expr"])
        said = " ".join(rule.get("annotations", {}).values())
        assert set(_TEMPLATED.findall(said)) <= labels, rule


def test_the_series_of_the_unit_tests_are_ones_that_there_are():
    for name, of_alert in CASES.items():
        for case in of_alert:
            for each in case["input_series"]:
                CATALOGUE.labels(each["series"])
            for each in case.get("promql_expr_test", []):
                if not each["expr"].startswith("ALERTS"):
                    CATALOGUE.labels(each["expr"])
        assert name in ALERTS or name.startswith("record "), name


@pytest.mark.parametrize(
    ("expr", "said"),
    [
        ("holdfast_queue_lenght > 1", "holdfast_queue_lenght is no metric"),
        ("holdfast_runs_submitted > 1", "no metric"),  # a counter ends in _total
        ("holdfast_run_duration_seconds > 1", "no metric"),  # a histogram has three series
        ('holdfast_queue_depth{agent="a"}', "agent: no label of holdfast_queue_depth"),
        ("sum by (agent) (holdfast_queue_depth)", "agent: no label"),
        ("sum by (agent) (sum by (queue) (holdfast_runs_claimed_total))", "agent: no label"),
        ("histogram_quantile(0.9, sum by (queue) (rate(holdfast_queue_wait_seconds_bucket[5m])))", "le"),
        ('holdfast_runs_refused_total{reason="fool"}', 'reason="fool"'),
        ('holdfast_runs_finished_total{status=~"failed|timedout"}', 'status="timedout"'),
        ("sum by (queue) (holdfast_queue_depth) > holdfast_queue_workers", "never match"),
        ("holdfast_queue_depth / on (agent) holdfast_queue_workers", "agent: no label"),
        ("sum(holdfast_queue_depth", "parse"),
        ("queue:nothing:rate5m", "no rule records it"),
    ],
)
def test_the_check_of_expressions_finds_what_is_wrong(expr, said):
    with pytest.raises(Wrong, match=re.escape(said) if said != "parse" else ".*"):
        CATALOGUE.labels(expr)


# -- each alert


def test_no_two_alerts_have_one_name():
    named = [rule["alert"] for file in rule_files() for rule in rules_of(file) if "alert" in rule]
    assert len(named) == len(set(named)) > 50


def test_the_pages_of_seeds_have_their_alerts():
    """Lag, retries, dead letters, backpressure, fallbacks, Redis, ghosts, no workers, the Event API, hosts."""
    wanted = [
        "StreamLag",
        "RetriesHigh",
        "DeadLetters",
        "WorkerBacklog",
        "ProducersFallBack",
        "RedisSlow",
        "BreakerOpen",
        "RunsStuck",
        "NoWorkers",
        "RunsWait",
        "ScalerBlind",
        "GhostConsumers",
        "EventsGivenUp",
        "RelayStands",
        "HostDown",
        "SchedulerDegraded",
    ]
    assert {f"Holdfast{name}" for name in wanted} <= set(ALERTS)


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_an_alert_says_what_is_wrong_what_to_run_and_where_to_read_on(name):
    rule = ALERTS[name]
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert "`" in rule["annotations"]["description"], "it names nothing to look at"
    assert rule["annotations"]["runbook_url"] == f"{URL}#{name.lower()}"


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_an_alert_is_shown_to_fire_and_to_be_quiet(name):
    expectations = [
        each["exp_samples"]
        for case in CASES.get(name, [])
        for each in case["promql_expr_test"]
        if f'alertname="{name}"' in each["expr"]
    ]
    assert any(expectations), "no unit test lets it fire"
    assert not all(expectations), "no unit test shows it quiet"


def sections() -> dict[str, str]:
    """The runbook's sections by their heading."""
    parts = re.split(r"^### (\w+)$", RUNBOOK.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_alert_has_a_section_of_the_runbook_and_no_other_has():
    written = sections()
    assert set(written) == set(ALERTS)
    for name, text in written.items():
        assert len(text.split()) > 25, f"{name}: what it means, what to look at, what to do"


def help_of(*path: str) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), contextlib.suppress(SystemExit):
        main([*path, "--help"])
    return said.getvalue()


def test_every_command_that_an_alert_names_exists():
    named = {
        text for rule in ALERTS.values() for text in _COMMAND.findall(rule["annotations"]["description"])
    }
    assert len(named) > 20
    for command in named:
        words = re.sub(r"\{\{.*?\}\}", "x", command).split()[1:]
        levels = 3 if words[:2] == ["relay", "undelivered"] else 2
        path = [word for word in words[:levels] if re.fullmatch(r"[a-z]+", word)]
        said = help_of(*path)
        assert "No such command" not in said, command
        assert [word for word in words if word.startswith("--") and word not in said] == [], command
