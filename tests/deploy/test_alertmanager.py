"""Where alerts go: what is critical to a pager, the rest to a channel; a greater trouble mutes what it explains."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.deploy.promql import ROOT, Catalogue, alerts

FILE = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"
CONFIG: dict[str, Any] = yaml.safe_load(FILE.read_text())
ALERTS = alerts()
_MATCHER = re.compile(r'(\w+) *=~? *"?([^"]*)"?')


def amtool_says(amtool: Path, *words: str) -> str:
    done = subprocess.run(
        [str(amtool), *words], cwd=FILE.parent, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def named(matchers: list[str]) -> set[str]:
    """The alerts that a list of matchers names."""
    found = (_MATCHER.fullmatch(matcher) for matcher in matchers)
    return {name for match in found if match and match[1] == "alertname" for name in match[2].split("|")}


def test_amtool_takes_it(amtool):
    assert "SUCCESS" in amtool_says(amtool, "check-config", FILE.name)


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_an_alert_reaches_those_whom_its_severity_concerns(amtool, name):
    severity = ALERTS[name]["labels"]["severity"]
    said = amtool_says(
        amtool,
        "config",
        "routes",
        "test",
        f"--config.file={FILE.name}",
        f"alertname={name}",
        f"severity={severity}",
    )
    assert said.strip() == ("pagerduty,slack" if severity == "critical" else "slack")


def test_no_secret_is_in_it():
    given = yaml.safe_dump(CONFIG)
    assert "http" not in given
    assert CONFIG["global"]["slack_api_url_file"].startswith("/etc/alertmanager/secrets/")
    assert not re.search(r"(routing_key|service_key|api_url|password|token):", given)


@pytest.mark.parametrize("rule", CONFIG["inhibit_rules"], ids=lambda rule: rule["source_matchers"][0])
def test_what_mutes_and_what_is_muted_are_alerts_that_can_have_those_labels_equal(rule):
    sources, targets = named(rule["source_matchers"]), named(rule["target_matchers"])
    assert sources
    assert targets
    assert sources | targets <= set(ALERTS)
    assert not sources & targets
    catalogue = Catalogue.with_rules()
    for name in sources | targets:
        # A label that only one side has never is equal, and nothing would be muted.
        assert set(rule["equal"]) <= catalogue.labels(ALERTS[name]["expr"]), name


def test_a_page_is_muted_only_by_another_page():
    for rule in CONFIG["inhibit_rules"]:
        severities = {ALERTS[name]["labels"]["severity"] for name in named(rule["source_matchers"])}
        muted = {ALERTS[name]["labels"]["severity"] for name in named(rule["target_matchers"])}
        assert "critical" not in muted or severities == {"critical"}


def test_routes_name_alerts_that_there_are():
    for route in CONFIG["route"]["routes"]:
        assert named(route["matchers"]) <= set(ALERTS)
