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


def findings(checkov: str, folder: Path) -> tuple[int, list[tuple[str, str]]]:
    """How many checks passed, and what did not: the folder in ``folder``, and the check with its resource."""
    command = [checkov, "--config-file", str(CONFIG), "--directory", str(folder)]
    command += ["--skip-download", "--output", "json", "--quiet", "--compact", "--soft-fail"]
    done = subprocess.run(
        command, cwd=folder, env=clean_environ(), check=False, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    reports = said if isinstance(said, list) else [said]
    assert not any(report["summary"]["parsing_errors"] for report in reports)
    failed = [
        (Path(each["file_path"]).parts[1], f"{each['check_id']} {each['check_name']}: {each['resource']}")
        for report in reports
        for each in report["results"]["failed_checks"]
    ]
    return sum(report["summary"]["passed"] for report in reports), failed


@pytest.mark.timeout(400)
def test_checkov_finds_nothing_in_ours_and_all_that_is_wrong_in_careless_ones(checkov, tmp_path):
    ours, careless = tmp_path / "ours", tmp_path / "careless"
    ours.mkdir()
    for name in SETS:
        (ours / f"{name}.yaml").write_text(yaml.safe_dump_all(rendered(name)))
    (ours / "Dockerfile").write_text((ROOT / "deploy" / "docker" / "Dockerfile").read_text())
    careless.mkdir()
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "careless", "namespace": "agents"},
        "spec": {"containers": [{"name": "x", "image": "x", "securityContext": {"privileged": True}}]},
    }
    (careless / "pod.yaml").write_text(yaml.safe_dump(pod))
    (careless / "Dockerfile").write_text("FROM python:latest\nRUN true\n")
    passed, failed = findings(checkov, tmp_path)
    assert [finding for folder, finding in failed if folder != "careless"] == []
    assert {finding.split()[0] for _, finding in failed} >= {
        "CKV_K8S_16",
        "CKV_K8S_20",
        "CKV_DOCKER_3",
        "CKV_DOCKER_7",
    }
    assert passed > 500
