"""The media clustering example as it is deployed: Helm values, compose and Terraform say what its settings say."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml

from holdfast.agents.loader import load_app
from holdfast.cli.root import COMMANDS
from holdfast.config import load
from tests.support.deploy.charts import helm, of_kind, one, parsed, pod_specs
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "media_clustering"
VALUES = EXAMPLE / "helm-values.yaml"
COMPOSE = EXAMPLE / "docker-compose.yml"
QUEUE = "streams:media.cluster"


@pytest.fixture(scope="module")
def manifests():
    done = helm("--values", str(VALUES))
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


def test_the_workers_of_the_chart_serve_the_queue_as_the_example_describes_it(manifests, tmp_path):
    (tmp_path / "holdfast.yaml").write_text(
        one(manifests, "ConfigMap", "media-clustering")["data"]["holdfast.yaml"]
    )
    deployed, described = (
        load(tmp_path / "holdfast.yaml", {}).settings,
        load(EXAMPLE / "holdfast.yaml", {}).settings,
    )
    assert deployed.messaging.queue == described.messaging.queue == QUEUE
    ours, theirs = deployed.queue_named(QUEUE), described.queue_named(QUEUE)
    for name in ("group", "deadletter", "default_agent", "slots", "max_attempts", "max_pending", "max_depth"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert (ours.scaling.min_workers, ours.scaling.max_workers) == (1, 20)
    [worker] = pod_specs(manifests)["media-clustering-worker-clustering"]["containers"]
    assert {"name": "HOLDFAST_WORKER_QUEUES", "value": QUEUE} in worker["env"]
    [scaled] = of_kind(manifests, "ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["name"] == "media-clustering-worker-clustering"


def test_the_app_that_is_deployed_has_the_agent_of_the_queue(monkeypatch):
    monkeypatch.chdir(ROOT)
    app = yaml.safe_load(VALUES.read_text())["app"]
    assert "cluster" in load_app(app).agents


def test_the_command_of_the_page_matches_the_labels_of_the_pods(manifests):
    page = (EXAMPLE / "observability-dashboards.md").read_text()
    [label] = set(re.findall(r"kubectl logs .*-l app=([a-z-]+)", page))
    # With a label, kubectl shows the last 10 lines of each pod unless it is asked for all.
    assert all("--tail=-1" in command for command in re.findall(r"kubectl logs [^|\n]*", page))
    pods = [one["spec"]["template"]["metadata"] for one in of_kind(manifests, "Deployment")]
    assert [pod["labels"]["holdfast/worker-type"] for pod in pods if pod["labels"].get("app") == label]


def test_the_compose_file_is_what_compose_accepts_and_its_settings_load(monkeypatch):
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        str(COMPOSE),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    lines = (EXAMPLE / "dev.env").read_text().splitlines()
    dev = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    for name in ("api", "worker", "migrate"):
        assert services[name]["command"][0] in COMMANDS
        given = {**dev, **services[name]["environment"]}
        config = ROOT / given.pop("HOLDFAST_CONFIG").removeprefix("/app/")
        given.pop("MEDIA_RESULTS")
        settings = load(
            config, {key: re.sub(r"\$\{\w+:-(.*?)\}", r"\1", value) for key, value in given.items()}
        ).settings
        assert settings.messaging.queue == QUEUE
        assert settings.redis.url == "redis://media-redis:6379/0"
    redis = services["media-redis"]["command"]
    assert redis[redis.index("--appendonly") + 1] == "yes"
    assert redis[redis.index("--maxmemory-policy") + 1] == "noeviction"
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_both_ways_of_the_compose_file_write_to_one_volume():
    """Else a job that went both ways would be done twice, and results would end with their container."""
    document = yaml.safe_load(COMPOSE.read_text())
    for name in ("worker", "http-service"):
        service = document["services"][name]
        [(volume, path)] = [each.split(":") for each in service["volumes"]]
        assert volume in document["volumes"]
        assert service["environment"]["MEDIA_RESULTS"].startswith(f"{path}/")
        assert service["depends_on"]["results-owner"] == {"condition": "service_completed_successfully"}
    owner = document["services"]["results-owner"]
    user = re.search(r"^USER (\S+)", (ROOT / "deploy" / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    assert user
    assert owner["entrypoint"] == ["chown", user[1], path]


def test_terraform_declares_what_it_uses_and_sets_values_that_there_are():
    folder = EXAMPLE / "terraform"
    main, variables = (folder / "main.tf").read_text(), (folder / "variables.tf").read_text()
    assert set(re.findall(r"var\.(\w+)", main)) == set(re.findall(r'variable "(\w+)"', variables))
    assert main.count("{") == main.count("}")
    providers = set(re.findall(r'source = "([^"]+)"', main))
    assert providers == {"hashicorp/kubernetes", "hashicorp/helm"}, "no cloud's own"
    for path in re.findall(r'"\$\{path\.module\}/([^"]+)"', main):
        assert (folder / path).exists(), path
    names = re.findall(r'name  = "([\w.]+)"', main)
    assert {"redis.ports", "database.port"} <= set(names)
    given = {"redis.ports": "{6380}", "image.repository": "theirs", "image.tag": "v7"}
    values = ",".join(f"{name}={given.get(name, 7)}" for name in names)
    done = helm("--values", str(VALUES), "--set", values)
    assert done.returncode == 0, done.stderr
    [secret] = set(re.findall(r'name      = "([\w-]+)"\n    namespace', main))
    assert yaml.safe_load(VALUES.read_text())["secret"]["existing"] == secret
