"""The dashboards: current, complete, and made of metrics and labels that there are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.support.deploy.promql import OTHERS, ROOT, Catalogue, Wrong, alerts

FOLDER = ROOT / "deploy" / "grafana"
FILES = sorted(FOLDER.glob("*.json"))
MODELS: dict[str, dict[str, Any]] = {file.stem: json.loads(file.read_text()) for file in FILES}
CATALOGUE = Catalogue.with_rules()
UNITS = {"short", "s", "ops", "bytes", "percent", "percentunit"}
_LABEL = re.compile(r"\{\{(\w+)\}\}")
_VARIABLE = re.compile(r"\$(?!__)\{?(\w+)")


def panels(model: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in model["panels"] if panel["type"] != "row"]


def targets() -> list[tuple[str, str, str]]:
    """The panel, the expression as Prometheus gets it, and the legend, of every query there is."""
    return [
        (
            f"{name}: {panel['title']}",
            target["expr"].replace("$__rate_interval", "5m"),
            target["legendFormat"],
        )
        for name, model in MODELS.items()
        for panel in panels(model)
        for target in panel["targets"]
    ]


def test_the_files_are_what_the_source_says():
    done = subprocess.run(
        [sys.executable, "-B", str(FOLDER / "build.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_is_a_page_for_each_subject_with_an_address_of_its_own():
    wanted = {"runs", "workers", "schedules", "hosts", "producers", "services"}
    assert set(MODELS) == {f"holdfast-{name}" for name in wanted}
    assert {name: model["uid"] for name, model in MODELS.items()} == {name: name for name in MODELS}
    assert len({model["title"] for model in MODELS.values()}) == len(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_a_panel_says_what_it_shows_in_which_unit(name):
    model = MODELS[name]
    assert len({panel["id"] for panel in model["panels"]}) == len(model["panels"])
    titles = [panel["title"] for panel in panels(model)]
    assert len(titles) == len(set(titles))
    for panel in panels(model):
        assert panel["title"]
        assert panel["description"].endswith((".", ")")), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["targets"], panel["title"]
        assert all(target["legendFormat"] for target in panel["targets"])


@pytest.mark.parametrize("name", MODELS)
def test_no_panel_covers_another(name):
    taken: set[tuple[int, int]] = set()
    for panel in MODELS[name]["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_expressions_are_made_of_metrics_and_labels_that_there_are():
    wrong = []
    for where, expr, legend in targets():
        try:
            unknown = set(_LABEL.findall(legend)) - CATALOGUE.labels(expr)
        except Wrong as error:
            wrong.append(f"{where}: {error}")
        else:
            wrong += [f"{where}: {label} of the legend is no label of {expr}" for label in unknown]
    assert wrong == []
    assert len(targets()) > 90


def test_what_keda_and_the_hpa_do_is_shown_beside_what_queues_are_worth():
    shown = " ".join(expr for where, expr, _ in targets() if where.startswith("holdfast-workers"))
    assert all(name in shown for name in OTHERS)


def test_promtool_takes_every_expression(promtool, tmp_path):
    rules = [
        {"record": f"dashboard:expression{number}", "expr": expr}
        for number, (_, expr, _) in enumerate(targets())
    ]
    file = tmp_path / "expressions.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": rules}]}))
    done = subprocess.run(
        [str(promtool), "check", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", MODELS)
def test_what_the_reader_chooses_from_is_there_and_used(name):
    model = MODELS[name]
    variables = {each["name"]: each for each in model["templating"]["list"]}
    used = {
        word
        for panel in panels(model)
        for target in panel["targets"]
        for word in _VARIABLE.findall(target["expr"])
    }
    assert used | {"datasource"} == set(variables)
    for variable in variables.values():
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()
            assert label in CATALOGUE.labels(metric)


@pytest.mark.parametrize("name", MODELS)
def test_marks_are_of_alerts_that_there_are(name):
    (marks,) = MODELS[name]["annotations"]["list"]
    pattern = re.search(r'alertname=~"([^"]+)"', marks["expr"])[1]
    assert [alert for alert in alerts() if re.fullmatch(pattern, alert)]
