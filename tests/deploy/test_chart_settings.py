"""What the chart tells our processes, they understand: every variable is a setting, and the file loads."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
import yaml

from holdfast.api.auth import Keyring, check_exposure
from holdfast.cli.root import COMMANDS
from holdfast.config import setting_rows
from holdfast.config.environment import CONFIG_VARIABLE
from holdfast.config.tree import Settings
from holdfast.redis.keys import QueueKeys
from tests.support.deploy.charts import (
    ALL,
    CHART,
    FIELDS,
    FOREIGN,
    Manifest,
    component,
    environment,
    of_kind,
    one,
    pod_specs,
    processes,
    rendered,
    settings_of,
)

OURS = {name for row in setting_rows() for name in row.env} | {CONFIG_VARIABLE}


@pytest.mark.parametrize(("name", "profile"), ALL)
def test_every_variable_is_a_setting(name, profile):
    for container in processes(rendered(name, profile)):
        assert set(environment(container)) <= OURS | FOREIGN


@pytest.mark.parametrize(("name", "profile"), ALL)
def test_every_process_loads_its_settings(name, profile, tmp_path):
    manifests = rendered(name, profile)
    assert len(processes(manifests)) >= 2
    for container in processes(manifests):
        settings = settings_of(manifests, container, tmp_path).settings
        assert settings.redis.url
        assert settings.database.url
        assert settings.log.format == "json"
        ports = {each["name"]: each["containerPort"] for each in container.get("ports", [])}
        assert settings.metrics.port == ports.get("metrics", settings.metrics.port)
        assert settings.metrics.host == "0.0.0.0"


def test_without_a_database_each_pod_may_have_a_store_of_its_own(tmp_path):
    more = "database.trial.enabled=false,database.ephemeral=true,settings.database.pool_size=3"
    for manifests, ephemeral in (rendered("trial", more=more), True), (rendered("trial"), False):
        for container in processes(manifests):
            database = settings_of(manifests, container, tmp_path).settings.database
            assert (not database.url, database.per_worker) == (ephemeral, ephemeral)


@pytest.mark.parametrize(("name", "profile"), ALL)
def test_every_command_is_one_of_ours(name, profile):
    for container in processes(rendered(name, profile)):
        assert container["command"][1] in COMMANDS


@pytest.mark.parametrize(("name", "profile"), ALL)
def test_what_keda_scales_by_is_what_workers_do(name, profile, tmp_path):
    manifests = rendered(name, profile)
    for worker in [each for each in of_kind(manifests, "Deployment") if component(each) == "worker"]:
        [container] = worker["spec"]["template"]["spec"]["containers"]
        settings = settings_of(manifests, container, tmp_path).settings
        scaled = [
            each["spec"]
            for each in of_kind(manifests, "ScaledObject")
            if each["metadata"]["name"] == worker["metadata"]["name"]
        ]
        for queue in settings.worker_queues():
            assert queue.scaling.min_workers <= queue.scaling.max_workers
            for spec in scaled:
                assert spec["minReplicaCount"] == queue.scaling.min_workers
                assert spec["maxReplicaCount"] == queue.scaling.max_workers
                check_triggers(spec["triggers"], settings)


def check_triggers(triggers: list[Manifest], settings: Settings) -> None:
    for queue in settings.worker_queues():
        lanes = QueueKeys.of(queue.name, prefix=settings.redis.key_prefix).lanes
        streams = {trigger["metadata"].get("stream") for trigger in triggers} - {None}
        assert not streams or set(lanes) <= streams
        for trigger in triggers:
            told = trigger["metadata"].get("targetValue") or trigger["metadata"].get("streamLength")
            assert told in (None, str(queue.slots))


@pytest.mark.parametrize("prefix", ["blue:", "{blue}:"])
def test_a_prefix_reaches_the_lanes(prefix):
    manifests = rendered(
        "trial", "redis-streams", f"settings.redis.key_prefix={prefix.replace('{', chr(92) + '{')}"
    )
    [scaled] = of_kind(manifests, "ScaledObject")
    lanes = {trigger["metadata"]["stream"] for trigger in scaled["spec"]["triggers"]}
    assert lanes == set(QueueKeys.of("agent-queue", prefix=prefix).lanes)


def test_a_file_of_yours_is_where_the_settings_look_for_it(tmp_path):
    manifests = rendered("external")
    settings = settings_of(manifests, processes(manifests)[0], tmp_path).settings
    assert settings.redis.tls_ca_file == "/etc/redis-ca/ca.crt"


def test_large_numbers_stay_whole(tmp_path):
    """Helm reads numbers as floats: 2000000 must not arrive as 2e+06."""
    manifests = rendered("production")
    assert settings_of(manifests, processes(manifests)[0], tmp_path).settings.queue.max_depth == 2_000_000


def test_the_worker_types_of_a_production_have_their_own_queues_and_limits(tmp_path):
    manifests = rendered("production")
    [worker] = pod_specs(manifests)["holdfast-worker-browser"]["containers"]
    settings = settings_of(manifests, worker, tmp_path).settings
    assert [queue.name for queue in settings.worker_queues()] == ["browser:jobs", "tankpit:jobs"]
    assert {queue.slots for queue in settings.worker_queues()} == {2}
    assert settings.worker.drain_seconds == 120
    assert settings.worker.name == settings.pod.name == FIELDS["metadata.name"]
    assert settings.queue_named("browser:jobs").timeout_seconds == 600
    assert settings.queue_named("tankpit:jobs").timeout_seconds == 2700
    assert settings.queue_named("browser:jobs").scaling.age_weight == 4
    assert not settings.api.relay and not settings.api.janitor


def test_the_janitor_looks_for_the_pods_that_the_chart_makes(tmp_path):
    manifests = rendered("trial")
    [janitor] = pod_specs(manifests)["holdfast-janitor"]["containers"]
    settings = settings_of(manifests, janitor, tmp_path).settings
    assert settings.janitor.kubernetes
    assert settings.pod.namespace == "agents"
    wanted = dict(label.split("=") for label in settings.janitor.pod_selector)
    found = {
        each["metadata"]["name"]
        for each in of_kind(manifests, "Deployment", "StatefulSet")
        if wanted.items() <= each["spec"]["template"]["metadata"]["labels"].items()
    }
    assert found == {"holdfast-worker-default"}


@pytest.mark.parametrize(("name", "profile"), ALL)
def test_the_api_starts_with_its_keys(name, profile, tmp_path):
    manifests = rendered(name, profile)
    [api] = pod_specs(manifests)["holdfast-api"]["containers"]
    settings = settings_of(manifests, api, tmp_path).settings
    check_exposure(settings.api)
    assert len(Keyring(settings.api)) >= 1


def test_the_api_lets_keda_in_and_only_to_look(tmp_path):
    manifests = rendered("trial", "metrics-api")
    [api] = pod_specs(manifests)["holdfast-api"]["containers"]
    ring = Keyring(settings_of(manifests, api, tmp_path).settings.api)
    token = one(manifests, "Secret", "holdfast")["stringData"]["scaling-token"]
    caller = ring.caller({}, {b"authorization": f"Bearer {token}".encode()})
    assert (caller.name, caller.tenant, caller.roles) == ("keda", "", frozenset({"read"}))
    assert hashlib.sha256(token.encode()).hexdigest() in "".join(
        of_kind(manifests, "Secret")[0]["stringData"]["api-keys"]
    )


# -- the schema of the values


def test_the_schema_knows_every_value_and_no_other():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    compare(schema, schema, values, "")
    sections = set(schema["properties"]["settings"]["propertyNames"]["enum"])
    assert sections == set(Settings.__struct_fields__) - {"pod"}, (
        "a section of holdfast.yaml that values can't have"
    )


def compare(root: dict[str, Any], schema: dict[str, Any], values: Any, path: str) -> None:
    if "$ref" in schema:
        schema = root["definitions"][schema["$ref"].rsplit("/", 1)[1]]
    if schema.get("additionalProperties") is not False or not isinstance(values, dict):
        return
    known = set(schema["properties"]) - ({"global"} if not path else set())
    assert known == set(values), f"{path or 'the root'}: {known ^ set(values)}"
    for name, below in values.items():
        compare(root, schema["properties"][name], below, f"{path}.{name}")


def test_the_chart_has_the_version_of_the_package():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (CHART.parents[2] / "pyproject.toml").read_text()
    assert f'\nversion = "{chart["appVersion"]}"\n' in project


@pytest.mark.parametrize(
    "more", ["keda.profile=none", "workers.default.scaling.enabled=false"], ids=["no KEDA", "a fixed type"]
)
def test_types_that_are_not_scaled_do_not_keep_the_janitor_from_starting(more, tmp_path):
    """Fails if a scale-in that nobody makes is found too short by the settings, and not by the chart."""
    more += ",workers.default.scaling.down=5,settings.janitor.deletion_cost_lower_seconds=20"
    manifests = rendered("trial", more=more)
    for container in processes(manifests):
        queues = settings_of(manifests, container, tmp_path).settings.queues
        assert not queues["agent-queue"].scaling.enabled
