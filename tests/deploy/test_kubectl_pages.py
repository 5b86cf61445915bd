"""The commands of the pages that run inside of pods: the pod is one that the chart makes, and the program is one that it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.deploy.charts import ROOT, of_kind, pod_specs, rendered

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
FENCE = re.compile(r"^```(?:ba)?sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXEC = re.compile(r"kubectl (?:-n \S+ )?exec (?:-\S+ )*(\S+) -- (\S+)")
LOGS = re.compile(r"kubectl -n holdfast logs (deploy/\S+)")
HAS = {"Deployment": {"holdfast", "python"}, "StatefulSet": {"valkey-cli"}}
"""What there is to run: our image has no shell tools for networks, and the trial's Redis is a Valkey."""


def scripts(page: Path) -> str:
    return "\n".join(FENCE.findall(page.read_text()))


def made() -> dict[str, str]:
    """What the sets of values make, by the name that kubectl takes: its kind."""
    short = {"Deployment": "deploy", "StatefulSet": "statefulset"}
    manifests = [*rendered("trial"), *rendered("production")]
    return {
        f"{short[each['kind']]}/{each['metadata']['name']}": each["kind"]
        for each in of_kind(manifests, "Deployment", "StatefulSet")
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_is_run_in_a_pod_is_there(page):
    kinds = made()
    for pod, program in EXEC.findall(scripts(page)):
        assert pod in kinds, f"{pod} is not in the chart"
        assert program in HAS[kinds[pod]], f"{pod} has no {program}"
    for pod in LOGS.findall(scripts(page)):
        assert pod in kinds, f"{pod} is not in the chart"


def test_the_check_finds_a_client_that_is_not_in_the_image():
    [(pod, program)] = EXEC.findall("kubectl -n holdfast exec deploy/holdfast-api -- redis-cli PING")
    assert program not in HAS[made()[pod]]


def test_the_troubleshooting_page_has_something_to_check():
    found = EXEC.findall(scripts(ROOT / "docs" / "operate" / "troubleshooting.md"))
    assert {program for _, program in found} == {"holdfast", "python", "valkey-cli"}


def test_the_trial_redis_logs_its_own_client_in():
    [container] = pod_specs(rendered("trial"))["holdfast-redis"]["containers"]
    assert "REDISCLI_AUTH" in {each["name"] for each in container["env"]}
