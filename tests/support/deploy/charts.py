"""The chart, rendered by the real helm: what it makes of values, and how it refuses them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from holdfast.cli.render import chart_folder, find_helm
from holdfast.config import Loaded, load
from holdfast.config.environment import CONFIG_VARIABLE
from tests.support.paths import ROOT

CHART = ROOT / "deploy" / "helm" / "holdfast"
SETS = ("trial", "production", "external")
PROFILES = ("metrics-api", "external-push", "redis-streams", "none")
ALL = [(name, profile) for name in SETS for profile in PROFILES]
"""Every set of values with every profile."""

# What the profile that asks Redis needs; with every other one, the values are as they ship.
_FOR_REDIS_STREAMS = {
    "trial": "workers.default.scaling.min=1",
    "production": "keda.redisStreams.address=redis.example:6379,workers.browser.scaling.min=1",
    "external": "",
}

Manifest = dict[str, Any]

# What Kubernetes and a Secret of the operator would tell.
FIELDS = {
    "metadata.name": "holdfast-worker-default-6d4f-x2x9z",
    "metadata.uid": "5b2f0c1e-8f0a-4a55-9a51-0d6b0f3c2a11",
    "metadata.namespace": "agents",
    "status.podIP": "10.0.0.7",
}
SECRETS = {
    "redis-url": "redis://redis.example:6379/0",
    "redis-password": "secret",
    "database-url": "postgresql://holdfast:secret@postgres.example:5432/holdfast",
    "api-keys": f"ops:*:read+submit+operate:{'0' * 64}",
    "hosts-token": "token",
    "event-api-secret": "secret",
    "webhook-secret": "whsec_c2VjcmV0c2VjcmV0c2VjcmV0",
}

FOREIGN = {"OTEL_EXPORTER_OTLP_ENDPOINT"}
"""Variables of the values that are not ours: what agents need."""


def values_file(name: str) -> Path:
    return CHART / "ci" / f"{name}-values.yaml"


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    """Call helm template on the chart; nothing of the caller's own helm is looked at."""
    command = [find_helm(), "template", "holdfast", str(CHART), "--namespace", "agents", *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)


@cache
def rendered(name: str, profile: str = "", more: str = "") -> list[Manifest]:
    """The manifests that a set of values gives, with another profile, with ``more`` as in --set.

    They are kept for the next who asks: copy what you change.
    """
    assert chart_folder() == CHART
    words = ["--values", str(values_file(name))]
    sets = [f"keda.profile={profile}" if profile else ""]
    sets += [_FOR_REDIS_STREAMS[name] if profile == "redis-streams" else "", more]
    done = helm(*words, *(word for each in sets if each for word in ("--set", each)))
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


def parsed(text: str) -> list[Manifest]:
    """The documents of a YAML text, by the fast parser where there is one."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(text, loader) if document]


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] in kinds]


def one(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    [found] = [each for each in of_kind(manifests, kind) if each["metadata"]["name"] == name]
    return found


def pod_specs(manifests: list[Manifest]) -> dict[str, Manifest]:
    """The pods that there will be, by the name of what makes them."""
    made = of_kind(manifests, "Deployment", "StatefulSet", "Job")
    return {each["metadata"]["name"]: each["spec"]["template"]["spec"] for each in made}


def component(manifest: Manifest) -> str:
    return manifest["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]


def containers(pod: Manifest) -> list[Manifest]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def processes(manifests: list[Manifest]) -> list[Manifest]:
    """The containers of ours."""
    return [
        container
        for each in of_kind(manifests, "Deployment")
        for container in (
            *each["spec"]["template"]["spec"]["containers"],
            *each["spec"]["template"]["spec"].get("initContainers", []),
        )
        if container.get("command", [""])[0] == "holdfast"
    ]


def environment(container: Manifest) -> dict[str, str]:
    """What a container is told in plain words; what comes from elsewhere is empty."""
    return {each["name"]: each.get("value", "") for each in container.get("env", [])}


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector matches, as Kubernetes reads it."""
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    for term in selector.get("matchExpressions") or []:
        assert term["operator"] == "In", "this test knows no other operator"
        if labels.get(term["key"]) not in term["values"]:
            return False
    return True


def settings_of(manifests: list[Manifest], container: Manifest, folder: Path) -> Loaded:
    """The settings, as the process in this container would read them."""
    config = one(manifests, "ConfigMap", "holdfast")["data"]["holdfast.yaml"]
    (folder / "holdfast.yaml").write_text(config)
    existing = of_kind(manifests, "Secret")
    secrets = existing[0]["stringData"] if existing else SECRETS
    environ = {each["name"]: variable_value(each, secrets) for each in container["env"]}
    assert environ.pop(CONFIG_VARIABLE) == "/etc/holdfast/holdfast.yaml"
    return load(folder / "holdfast.yaml", environ)


def variable_value(variable: Manifest, secrets: dict[str, str]) -> str:
    source: dict[str, Any] = variable.get("valueFrom", {})
    if "fieldRef" in source:
        return FIELDS[source["fieldRef"]["fieldPath"]]
    if "secretKeyRef" in source:
        key = source["secretKeyRef"]
        assert key.get("optional") or key["key"] in secrets
        return secrets.get(key["key"], "")
    return variable["value"]
