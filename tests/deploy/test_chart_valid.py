"""Whether the API server would take what we ship: every set of values, every profile, and the manifests that are committed."""

from __future__ import annotations

import copy
import shutil
import subprocess
from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate
import kubernetes_validate.utils
import pydantic
import pytest
import yaml

from tests.support.deploy import keda_types
from tests.support.deploy.charts import (
    ALL,
    ROOT,
    SETS,
    Manifest,
    helm,
    of_kind,
    parsed,
    rendered,
    values_file,
)
from tests.support.tools.missing import skip_or_fail

COMMITTED = ROOT / "deploy" / "kubernetes"
OLDEST, NEWEST = "1.30", "1.37"
"""The oldest Kubernetes that Chart.yaml allows, and the newest whose schemas we have."""


@pytest.fixture(autouse=True)
def read_schemas_once(monkeypatch):
    """The definitions are megabytes, and kubernetes-validate reads them for every manifest."""
    monkeypatch.setattr(kubernetes_validate.utils, "schema_contents", _schema)


_real_schema = kubernetes_validate.utils.schema_contents


@cache
def _schema(filename: str, version: str) -> Any:
    return _real_schema(filename, version)


def accepted(manifests: list[Manifest], version: str) -> None:
    """Whether the API server would take them all; raises what is wrong."""
    assert manifests
    for manifest in manifests:
        if manifest["kind"] in keda_types.SCHEMAS:
            keda_types.check(manifest)
        else:
            kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize(("name", "profile"), ALL)
def test_every_manifest_is_what_kubernetes_accepts(name, profile, version):
    accepted(rendered(name, profile), version)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", SETS)
def test_the_values_that_ship_are_accepted_as_they_ship(name, version):
    manifests = rendered(name)
    assert parsed(helm("--values", str(values_file(name))).stdout) == manifests, (
        "something was set beside them"
    )
    accepted(manifests, version)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_committed_manifests_are_accepted_as_they_are(version):
    accepted(committed(), version)


@pytest.mark.parametrize("profile", ["metrics-api", "external-push", "redis-streams"])
def test_what_keda_gets_alone_is_current_and_accepted(profile):
    file = ROOT / "deploy" / "keda" / f"{profile}.yaml"
    never_zero = ["--values", str(file.with_suffix(".values.yaml"))] if profile == "redis-streams" else []
    values = ["--values", str(COMMITTED / "values.yaml"), *never_zero, "--set", f"keda.profile={profile}"]
    done = helm(*values, "--namespace", "holdfast", "--show-only", "templates/keda.yaml")
    manifests = parsed(file.read_text())
    assert manifests == parsed(done.stdout), "it is not what the chart says: run `make keda`"
    accepted(manifests, NEWEST)


# -- kustomize


def committed() -> list[Manifest]:
    """What `kubectl apply -k deploy/kubernetes` applies, file by file."""
    listed = yaml.safe_load((COMMITTED / "kustomization.yaml").read_text())["resources"]
    return [each for name in listed for each in parsed((COMMITTED / name).read_text())]


def named(manifest: Manifest) -> tuple[str, str, str]:
    return manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"]


def test_the_kustomization_says_what_kustomize_knows_and_names_nothing_twice():
    said = yaml.safe_load((COMMITTED / "kustomization.yaml").read_text())
    assert set(said) == {"apiVersion", "kind", "resources"}
    assert (said["apiVersion"], said["kind"]) == ("kustomize.config.k8s.io/v1beta1", "Kustomization")
    assert len(said["resources"]) == len(set(said["resources"]))
    names = [named(each) for each in committed()]
    assert len(names) == len(set(names)), "kustomize refuses a second one of the same name"


def test_kubectl_builds_the_committed_manifests_and_loses_none():
    if (kubectl := shutil.which("kubectl")) is None:
        # Nothing here can fetch it; the test above looks at the same file without it.
        skip_or_fail("kubectl kustomize deploy/kubernetes (no kubectl is on the PATH)")
    done = subprocess.run(
        [kubectl, "kustomize", str(COMMITTED)], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    built = parsed(done.stdout)
    assert sorted(map(named, built)) == sorted(map(named, committed()))
    accepted(built, NEWEST)


# -- the checks themselves


def test_the_checks_find_what_is_wrong():
    manifests = rendered("trial")
    deployment = copy.deepcopy(of_kind(manifests, "Deployment")[0])
    deployment["spec"]["template"]["spec"]["terminationGraceSeconds"] = 5
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, NEWEST, strict=True)
    for break_it in (
        lambda spec: spec.update(trigger=spec.pop("triggers")),
        lambda spec: spec["triggers"][0]["metadata"].update(targetValue=3),
        lambda spec: spec["triggers"][0]["metadata"].update(pendingEntriesCount="3"),
        lambda spec: spec.update(coolDownPeriod=180),
    ):
        scaled = copy.deepcopy(of_kind(manifests, "ScaledObject")[0])
        break_it(scaled["spec"])
        with pytest.raises((jsonschema.ValidationError, AssertionError)):
            keda_types.check_ours(scaled)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda spec: spec.update(trigger=spec.pop("triggers")),
        lambda spec: spec["triggers"][0]["metadata"].update(targetValue=3),
        lambda spec: spec["triggers"][0].update(authentication={"name": "x"}),
        lambda spec: spec.update(coolDownPeriod=180),
        lambda spec: spec["scaleTargetRef"].pop("name"),
    ],
)
def test_the_types_that_keda_publishes_find_what_is_wrong_too(break_it):
    scaled = copy.deepcopy(of_kind(rendered("trial"), "ScaledObject")[0])
    keda_types.check_published(scaled)
    break_it(scaled["spec"])
    with pytest.raises((pydantic.ValidationError, AssertionError)):
        keda_types.check_published(scaled)
