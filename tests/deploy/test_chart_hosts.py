"""The hosts of the chart name what is there: ports, services and metrics; and all of their agents can move."""

from __future__ import annotations

import yaml

from holdfast.config import HostSettings
from holdfast.hosts.server import SERVICE
from holdfast.telemetry.metrics import Metrics
from tests.support.deploy.charts import ROOT, environment, one, pod_specs, rendered
from tests.support.deploy.promql import Catalogue


def test_hosts_grow_by_a_metric_that_they_measure():
    manifests = rendered("production")
    hosts = one(manifests, "HorizontalPodAutoscaler", "agent-host")
    metric = hosts["spec"]["metrics"][0]["pods"]["metric"]["name"]
    assert metric in {declared.name for declared in Metrics().declared}


def test_the_adapter_is_told_the_metric_that_the_autoscaler_asks_for():
    values = yaml.safe_load((ROOT / "deploy" / "prometheus" / "adapter-values.yaml").read_text())
    [rule] = values["rules"]["custom"]
    hosts = one(rendered("production"), "HorizontalPodAutoscaler", "agent-host")
    asked = hosts["spec"]["metrics"][0]["pods"]["metric"]["name"]
    assert rule["name"]["as"] == asked
    series = rule["seriesQuery"]
    assert Catalogue().labels(series) >= {"namespace", "pod"}
    assert series.startswith(f"{asked}{{")
    query = rule["metricsQuery"]
    for written, real in (("Series", asked), ("LabelMatchers", 'pod=~"a|b"'), ("GroupBy", "pod")):
        query = query.replace(f"<<.{written}>>", real)
    assert Catalogue().labels(query) == {"pod"}
    assert set(rule["resources"]["overrides"]) == {"namespace", "pod"}


def test_a_hosts_ports_are_those_that_it_listens_on():
    manifests = rendered("trial")
    [host] = one(manifests, "Deployment", "agent-host")["spec"]["template"]["spec"]["containers"]
    ports = {each["name"]: each["containerPort"] for each in host["ports"]}
    assert ports["grpc"] == HostSettings().grpc_port
    assert str(ports["metrics"]) == environment(host)["METRICS_PORT"]
    service = one(manifests, "Service", "agent-host")["spec"]
    assert service["clusterIP"] == "None"
    assert {each["name"]: each["port"] for each in service["ports"]} == ports
    assert host["readinessProbe"]["grpc"]["service"] == SERVICE
    assert {"POD_IP", "REDIS_URL", "HOLDFAST_HOSTS_NAME", "HOLDFAST_HOSTS_TOKEN"} <= set(environment(host))


def test_the_hosts_grace_period_is_enough_for_all_agents_to_move():
    settings = HostSettings()
    pod = pod_specs(rendered("trial"))["agent-host"]
    needed = settings.stop_seconds * settings.max_processes / 8 + 30
    assert pod["terminationGracePeriodSeconds"] >= needed


def test_hosts_with_tls_are_probed_over_http_since_the_kubelet_speaks_no_tls():
    pod = pod_specs(rendered("production"))["agent-host"]
    [host] = pod["containers"]
    assert host["livenessProbe"]["httpGet"]["port"] == "metrics"
    assert {"name": "tls", "mountPath": "/etc/holdfast-tls", "readOnly": True} in host["volumeMounts"]
    assert [each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each] == ["agent-host-tls"]
