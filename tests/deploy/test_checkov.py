"""The manifests and the Dockerfile as checkov sees them, in an environment of its own: it asks for old versions of much."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.deploy.charts import ROOT, SETS, rendered
from tests.support.tools.environments import clean_environ
from tests.support.tools.fetching import CHECKOV, needed

CONFIG = ROOT / "deploy" / "checkov.yaml"


@pytest.fixture(scope="module")
def checkov() -> str:
    return str(needed(CHECKOV) / "bin" / "checkov")


def findings(checkov: str, folder: Path) -> tuple[int, set[str]]:
    """How many checks passed, and what did not: check and resource."""
    command = [checkov, "--config-file", str(CONFIG), "--directory", str(folder)]
    command += ["--skip-download", "--output", "json", "--quiet", "--compact", "--soft-fail"]
    done = subprocess.run(
        command, cwd=folder, env=clean_environ(), check=False, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    reports = said if isinstance(said, list) else [said]
    failed = {
        f"{each['check_id']} {each['check_name']}: {each['resource']} in {Path(each['file_path']).name}"
        for report in reports
        for each in report["results"]["failed_checks"]
    }
    assert not any(report["summary"]["parsing_errors"] for report in reports)
    return sum(report["summary"]["passed"] for report in reports), failed


@pytest.mark.timeout(400)
def test_checkov_finds_nothing(checkov, tmp_path):
    for name in SETS:
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump_all(rendered(name)))
    (tmp_path / "Dockerfile").write_text((ROOT / "deploy" / "docker" / "Dockerfile").read_text())
    passed, failed = findings(checkov, tmp_path)
    assert not failed
    assert passed > 500


@pytest.mark.timeout(400)
def test_checkov_would_find_what_is_wrong(checkov, tmp_path):
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "careless", "namespace": "agents"},
        "spec": {"containers": [{"name": "x", "image": "x", "securityContext": {"privileged": True}}]},
    }
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod))
    (tmp_path / "Dockerfile").write_text("FROM python:latest\nRUN true\n")
    _, failed = findings(checkov, tmp_path)
    assert {finding.split()[0] for finding in failed} >= {
        "CKV_K8S_16",
        "CKV_K8S_20",
        "CKV_DOCKER_3",
        "CKV_DOCKER_7",
    }
