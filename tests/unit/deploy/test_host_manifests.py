"""The manifests of hosts name what is there: settings, ports, services and metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.config import HostSettings, setting_rows
from holdfast.hosts.server import SERVICE
from holdfast.telemetry.metrics import Metrics

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes" / "hosts"
DOCUMENTS: dict[tuple[str, str], Any] = {
    (document["kind"], document["metadata"]["name"]): document
    for file in sorted(FOLDER.glob("*.yaml"))
    for document in yaml.safe_load_all(file.read_text())
}
POD = DOCUMENTS["Deployment", "agent-host"]["spec"]["template"]["spec"]
HOST = POD["containers"][0]


def test_every_variable_is_a_setting_and_has_a_value_it_allows():
    known = {name: row for row in setting_rows() for name in row.env}
    given = {each["name"]: each for each in HOST["env"]}
    assert set(given) <= set(known)
    assert {"POD_IP", "REDIS_URL", "HOLDFAST_HOSTS_NAME", "HOLDFAST_HOSTS_TOKEN"} <= set(given)


def test_ports_are_those_that_a_host_listens_on():
    ports = {each["name"]: each["containerPort"] for each in HOST["ports"]}
    values = {each["name"]: each.get("value") for each in HOST["env"]}
    assert ports["grpc"] == HostSettings().grpc_port == int(values["GRPC_PORT"])
    assert ports["metrics"] == int(values["METRICS_PORT"])
    service = DOCUMENTS["Service", "agent-host"]["spec"]
    assert service["clusterIP"] == "None"
    assert {each["name"]: each["port"] for each in service["ports"]} == ports
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert HOST[probe]["grpc"]["port"] == ports["grpc"]
    assert HOST["readinessProbe"]["grpc"]["service"] == SERVICE


def test_the_grace_period_is_enough_for_all_agents_to_move():
    settings = HostSettings()
    assert POD["terminationGracePeriodSeconds"] >= settings.stop_seconds * settings.max_processes / 8 + 30


def test_the_metric_that_hosts_grow_by_is_measured_by_them():
    metric = DOCUMENTS["HorizontalPodAutoscaler", "agent-host"]["spec"]["metrics"][0]["pods"]["metric"][
        "name"
    ]
    assert metric in {declared.name for declared in Metrics().declared}


@pytest.mark.parametrize("which", [("Deployment", "agent-host"), ("StatefulSet", "holdfast-redis")])
def test_nobody_runs_as_root_or_writes_where_it_should_not(which: tuple[str, str]):
    pod = DOCUMENTS[which]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
