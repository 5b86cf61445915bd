"""The project's own CI: valid, with no more rights than it needs, and calling only what there is."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.deploy.charts import helm, parsed

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
WORKFLOWS: dict[str, dict[Any, Any]] = {file.stem: yaml.safe_load(file.read_text()) for file in FILES}
_PINNED = re.compile(r"[\w-]+/[\w-]+@v\d+\.\d+\.\d+")
_PATH = re.compile(r"(?<![\w/.-])((?:\.ci|deploy|tests|src)/[\w./-]+\w)")
_TARGET = re.compile(r"\bmake (\w[\w-]*)")


def jobs(name: str) -> dict[str, Any]:
    return WORKFLOWS[name]["jobs"]


def steps(name: str) -> list[dict[str, Any]]:
    return [step for job in jobs(name).values() for step in job.get("steps", [])]


def test_they_are_what_github_reads():
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "check_jsonschema",
            "--builtin-schema",
            "vendor.github-workflows",
            *map(str, FILES),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(WORKFLOWS) == {"check", "deploy", "e2e", "newest", "nightly"}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_they_may_read_and_nothing_else(name):
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    assert not [job for job in jobs(name).values() if "permissions" in job]
    for step in steps(name):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
    assert "secrets." not in (ROOT / ".github" / "workflows" / f"{name}.yml").read_text()


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_they_use_has_a_version_an_end_and_no_twin(name):
    for step in steps(name):
        assert "uses" not in step or _PINNED.fullmatch(step["uses"]), step["uses"]
    for job in jobs(name).values():
        assert job.get("uses", "").startswith("./") or job["timeout-minutes"] <= 180
        assert job.get("runs-on", "ubuntu-24.04") == "ubuntu-24.04"
    assert set(WORKFLOWS[name]["concurrency"]) == {"group", "cancel-in-progress"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_files_and_targets_that_they_name_exist(file):
    text = file.read_text()
    missing = [path for path in _PATH.findall(text) if not (ROOT / path).exists()]
    assert missing == []
    makefile = (ROOT / "Makefile").read_text()
    assert [target for target in _TARGET.findall(text) if f"\n{target}:" not in makefile] == []


def test_every_python_that_we_promise_is_checked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = {
        line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r"Python :: 3\.\d+", line)
    }
    assert set(jobs("check")["check"]["strategy"]["matrix"]["python"]) == promised
    assert [step["run"] for step in steps("check") if "run" in step] == [".ci/run"]


def test_the_cluster_is_one_that_the_chart_takes_in_each_profile_that_is_tried():
    job = jobs("e2e")["kind"]
    version = WORKFLOWS["e2e"]["env"]["NODE"].rpartition(":v")[2]
    for profile in job["strategy"]["matrix"]["profile"]:
        done = helm(
            *("--values", str(ROOT / "deploy" / "e2e" / "values.yaml")),
            *("--set", f"keda.profile={profile}", "--kube-version", version),
        )
        assert done.returncode == 0, done.stderr
        (scaled,) = [each for each in parsed(done.stdout) if each["kind"] == "ScaledObject"]
        assert [trigger["type"] for trigger in scaled["spec"]["triggers"]] == [profile]


def test_no_test_is_run_again_when_it_fails():
    """A test that fails by chance is a defect: a rerun would hide it."""
    commands = [
        ROOT / ".ci" / "run",
        ROOT / "Makefile",
        ROOT / "pyproject.toml",
        *(ROOT / ".github" / "workflows").iterdir(),
    ]
    assert not [path.name for path in commands if "rerun" in path.read_text()]
