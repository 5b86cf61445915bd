"""The chart, for every set of values and every profile: strict, and never at the cost of work."""

from __future__ import annotations

import itertools

import pytest

from holdfast.kubernetes.pod import RULES
from tests.support.deploy import keda_types
from tests.support.deploy.charts import (
    ALL,
    SETS,
    Manifest,
    component,
    containers,
    environment,
    of_kind,
    one,
    pod_specs,
    rendered,
    selects,
)

AUTOSCALED = {"external-push", "metrics-api", "redis-streams"}


@pytest.mark.parametrize(("name", "profile"), ALL)
def test_everything_has_one_name_and_the_namespace(name, profile):
    manifests = rendered(name, profile)
    names = [(each["kind"], each["metadata"]["name"]) for each in manifests]
    assert len(names) == len(set(names))
    assert {each["metadata"]["namespace"] for each in manifests} == {"agents"}


# -- Pod Security "restricted"


@pytest.mark.parametrize(("name", "profile"), ALL)
def test_nobody_runs_as_root_or_writes_where_it_should_not(name, profile):
    for pod in pod_specs(rendered(name, profile)).values():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert all({"hostPath"}.isdisjoint(volume) for volume in pod.get("volumes", []))
        for container in containers(pod):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"] and container["resources"]["limits"]["memory"]


@pytest.mark.parametrize(("name", "profile"), ALL)
def test_only_the_janitor_has_a_token_and_only_for_pods(name, profile):
    manifests = rendered(name, profile)
    with_token = {who for who, pod in pod_specs(manifests).items() if pod["automountServiceAccountToken"]}
    roles = of_kind(manifests, "Role")
    assert with_token == {f"{each['metadata']['name']}" for each in roles}
    assert with_token == (set() if name == "external" else {"holdfast-janitor"})
    assert not of_kind(manifests, "ClusterRole", "ClusterRoleBinding")
    for role in roles:
        assert role["rules"] == list(RULES)
    for binding in of_kind(manifests, "RoleBinding"):
        assert [each["name"] for each in binding["subjects"]] == ["holdfast-janitor"]
    accounts = {each["metadata"]["name"] for each in of_kind(manifests, "ServiceAccount")}
    assert {pod["serviceAccountName"] for pod in pod_specs(manifests).values()} <= accounts


# -- leaving


@pytest.mark.parametrize(("name", "profile"), ALL)
def test_workers_have_the_time_to_drain_and_to_hand_back(name, profile):
    for manifest in of_kind(rendered(name, profile), "Deployment"):
        if component(manifest) == "worker":
            pod = manifest["spec"]["template"]["spec"]
            drain = float(environment(pod["containers"][0])["HOLDFAST_DRAIN_SECONDS"])
            assert pod["terminationGracePeriodSeconds"] >= drain + 15


@pytest.mark.parametrize(("name", "profile"), ALL)
def test_only_the_api_sleeps_before_it_is_told_to_stop(name, profile):
    for manifest in of_kind(rendered(name, profile), "Deployment"):
        [container] = manifest["spec"]["template"]["spec"]["containers"]
        assert ("lifecycle" in container) == (component(manifest) == "api")
        if component(manifest) == "api":
            assert container["lifecycle"]["preStop"] == {"sleep": {"seconds": 5}}


@pytest.mark.parametrize(("name", "profile"), ALL)
def test_disruption_budgets_match_what_they_protect_and_never_block_it(name, profile):
    manifests = rendered(name, profile)
    labels = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in of_kind(manifests, "Deployment")
    }
    budgets = of_kind(manifests, "PodDisruptionBudget")
    for budget in budgets:
        assert budget["spec"]["maxUnavailable"] not in (0, "0%")
        matched = [who for who, has in labels.items() if selects(budget["spec"]["selector"], has)]
        assert matched == [budget["metadata"]["name"]]
    unprotected = set(labels) - {each["metadata"]["name"] for each in budgets}
    assert unprotected <= {"holdfast-janitor"}, "one janitor works at a time: any may go"


@pytest.mark.parametrize(("name", "profile"), ALL)
def test_a_selector_matches_its_own_pods_and_no_others(name, profile):
    made = of_kind(rendered(name, profile), "Deployment", "StatefulSet")
    for selecting, having in itertools.product(made, made):
        labels = having["spec"]["template"]["metadata"]["labels"]
        assert selects(selecting["spec"]["selector"], labels) == (selecting is having)
        for spread in selecting["spec"]["template"]["spec"].get("topologySpreadConstraints", []):
            assert selects(spread["labelSelector"], labels) == (selecting is having)


# -- probes


@pytest.mark.parametrize(("name", "profile"), ALL)
def test_every_process_is_asked_whether_it_lives_and_never_about_redis(name, profile):
    for manifest in of_kind(rendered(name, profile), "Deployment"):
        [container] = manifest["spec"]["template"]["spec"]["containers"]
        ports = {each["name"]: each["containerPort"] for each in container["ports"]}
        grpc = component(manifest) == "scaler" or (component(manifest) == "host" and name != "production")
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if grpc:
                assert container[probe]["grpc"]["port"] == ports["grpc"]
            else:
                path = "/readyz" if probe == "readinessProbe" else "/healthz"
                assert container[probe]["httpGet"]["path"] == path
                assert container[probe]["httpGet"]["port"] in ports


# -- scaling


def scaling_of(manifest: Manifest, manifests: list[Manifest]) -> list[str]:
    """The kinds of autoscalers that own a Deployment's replicas."""
    name = manifest["metadata"]["name"]
    scalers = of_kind(manifests, "ScaledObject", "HorizontalPodAutoscaler")
    return [each["kind"] for each in scalers if each["spec"]["scaleTargetRef"]["name"] == name]


@pytest.mark.parametrize(("name", "profile"), ALL)
def test_replicas_are_said_by_us_or_owned_by_one_autoscaler(name, profile):
    manifests = rendered(name, profile)
    for manifest in of_kind(manifests, "Deployment"):
        owners = scaling_of(manifest, manifests)
        assert len(owners) == ("replicas" not in manifest["spec"])
        if component(manifest) == "worker":
            assert owners == (["ScaledObject"] if profile in AUTOSCALED else [])
    targets = {each["spec"]["scaleTargetRef"]["name"] for each in of_kind(manifests, "ScaledObject")}
    assert targets <= {each["metadata"]["name"] for each in of_kind(manifests, "Deployment")}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("", {"default": 50, "browser": 1}),
        ("workers.browser.replicas=0", {"default": 50, "browser": 0}),
        ("workerDefaults.replicas=7", {"default": 7, "browser": 7}),
    ],
)
def test_without_an_autoscaler_a_warm_pool_is_as_large_as_its_min(more, expected):
    manifests = rendered("production", "none", more)
    found = {
        name: one(manifests, "Deployment", f"holdfast-worker-{name}")["spec"]["replicas"] for name in expected
    }
    assert found == expected


def test_a_worker_type_may_do_without_the_autoscaler_of_the_others():
    manifests = rendered("production", "external-push", "workers.browser.scaling.enabled=false")
    [scaled] = of_kind(manifests, "ScaledObject")
    assert scaled["metadata"]["name"] == "holdfast-worker-default"
    assert one(manifests, "Deployment", "holdfast-worker-browser")["spec"]["replicas"] == 1
    fixed = rendered(
        "production", "external-push", "workers.browser.scaling.enabled=false,workers.browser.replicas=4"
    )
    assert one(fixed, "Deployment", "holdfast-worker-browser")["spec"]["replicas"] == 4


@pytest.mark.parametrize("profile", sorted(AUTOSCALED))
@pytest.mark.parametrize("name", SETS)
def test_a_depth_that_nobody_knows_ends_no_worker(name, profile):
    for scaled in of_kind(rendered(name, profile), "ScaledObject"):
        spec = scaled["spec"]
        assert spec["fallback"]["behavior"] == "currentReplicasIfHigher"
        assert spec["fallback"]["replicas"] >= max(1, spec["minReplicaCount"])
        assert (spec["pollingInterval"], spec["cooldownPeriod"]) == (5, 180)
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        assert behavior["scaleDown"]["stabilizationWindowSeconds"] >= 60
        assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
        for trigger in spec["triggers"]:
            assert trigger["metricType"] == "AverageValue", "KEDA has a fallback for this type only"
            assert not {"consumerGroup", "lagCount", "pendingEntriesCount"} & set(trigger["metadata"])


LONGEST = "f" * 39 + "x"


@pytest.mark.parametrize("kind", ["default", "sixteen-letters-"[:15] + "x"])
@pytest.mark.parametrize("full", ["holdfast", "customer-support-agents-prod-eu1-holdfas", LONGEST])
def test_long_names_stay_within_what_kubernetes_and_keda_take(full, kind):
    """KEDA's webhook refuses a ScaledObject whose HPA would have more than 63 letters."""
    more = f"fullnameOverride={full},workers.{kind}.queues={{agent-queue}}"
    manifests = rendered(
        "trial", "metrics-api", more if kind == "default" else f"workers.default=null,{more}"
    )
    [scaled] = of_kind(manifests, "ScaledObject")
    name = scaled["metadata"]["name"]
    deployment = one(manifests, "Deployment", name)
    assert scaled["spec"]["scaleTargetRef"]["name"] == name
    assert name.endswith(f"-worker-{kind}")
    for label in deployment["spec"]["template"]["metadata"]["labels"].values():
        assert len(label) <= 63
    config = scaled["spec"]["advanced"]["horizontalPodAutoscalerConfig"]
    hpa = config.get("name", f"keda-hpa-{name}")
    assert len(hpa) <= 63
    assert ("name" in config) == (len(f"keda-hpa-{name}") > 63), "an HPA that is there keeps its name"
    others = {each["metadata"]["name"] for each in of_kind(manifests, "HorizontalPodAutoscaler")}
    assert hpa not in others


def test_keda_asks_the_api_where_it_is_with_a_key_that_it_knows():
    manifests = rendered("trial", "metrics-api")
    [scaled] = of_kind(manifests, "ScaledObject")
    [trigger] = scaled["spec"]["triggers"]
    service = one(manifests, "Service", "holdfast-api")["spec"]
    port = next(each["port"] for each in service["ports"] if each["name"] == "http")
    url = f"http://holdfast-api.agents.svc:{port}/internal/scaling/agent-queue"
    assert trigger["metadata"]["url"] == url
    [shown] = of_kind(manifests, "TriggerAuthentication")
    assert trigger["authenticationRef"] == {"name": shown["metadata"]["name"]}
    [reference] = shown["spec"]["secretTargetRef"]
    secret = one(manifests, "Secret", reference["name"])["stringData"]
    assert (reference["parameter"], reference["key"]) == ("token", "scaling-token")
    assert "scaling-token" in secret


@pytest.mark.parametrize("name", ["trial", "external"])
def test_keda_logs_in_with_a_key_that_the_secret_has(name):
    manifests = rendered(name, "redis-streams")
    [shown] = of_kind(manifests, "TriggerAuthentication")
    [reference] = shown["spec"]["secretTargetRef"]
    assert (reference["parameter"], reference["key"]) == ("password", "redis-password")
    assert one(manifests, "Secret", reference["name"])["stringData"]["redis-password"] == "change-me"


def test_keda_logs_in_as_the_user_that_the_values_name():
    user = "redis.url=redis://holdfast@redis.example:6379/0,keda.redisStreams.username=holdfast"
    [scaled] = of_kind(rendered("external", "redis-streams", user), "ScaledObject")
    keda_types.check(scaled)
    assert {each["metadata"]["username"] for each in scaled["spec"]["triggers"]} == {"holdfast"}


def test_keda_shows_nothing_to_a_redis_without_a_password():
    manifests = rendered("external", "redis-streams", "redis.password=")
    assert not of_kind(manifests, "TriggerAuthentication")
    [scaled] = of_kind(manifests, "ScaledObject")
    assert not [each for each in scaled["spec"]["triggers"] if "authenticationRef" in each]


def test_keda_asks_the_scaler_where_it_is():
    manifests = rendered("production", "external-push")
    service = one(manifests, "Service", "holdfast-scaler")["spec"]
    assert service["clusterIP"] == "None"
    port = next(each["port"] for each in service["ports"] if each["name"] == "grpc")
    for scaled in of_kind(manifests, "ScaledObject"):
        for trigger in scaled["spec"]["triggers"]:
            assert trigger["metadata"]["scalerAddress"] == f"dns:///holdfast-scaler.agents.svc:{port}"
    asked = [
        trigger["metadata"]["queue"]
        for scaled in of_kind(manifests, "ScaledObject")
        for trigger in scaled["spec"]["triggers"]
    ]
    assert sorted(asked) == ["agent-queue", "browser:jobs", "tankpit:jobs"]


# -- Redis


def test_the_trial_redis_keeps_what_it_took():
    pod = pod_specs(rendered("trial"))["holdfast-redis"]
    words = pod["containers"][0]["args"]
    said = dict(itertools.pairwise(words))
    assert said["--appendonly"] == "yes"
    assert said["--appendfsync"] == "everysec"
    assert said["--maxmemory-policy"] == "noeviction"
    assert said["--requirepass"] == "$(REDIS_PASSWORD)"
    [claim] = one(rendered("trial"), "StatefulSet", "holdfast-redis")["spec"]["volumeClaimTemplates"]
    assert {"name": claim["metadata"]["name"], "mountPath": said["--dir"]} in pod["containers"][0][
        "volumeMounts"
    ]


# -- network


def allowed_into(manifests: list[Manifest], labels: dict[str, str]) -> list[Manifest]:
    policies = [
        each["spec"]
        for each in of_kind(manifests, "NetworkPolicy")
        if selects(each["spec"]["podSelector"], labels) and "Ingress" in each["spec"]["policyTypes"]
    ]
    assert any("ingress" not in each for each in policies), "nothing denies by default"
    return [rule for each in policies for rule in each.get("ingress", [])]


def labels_of(manifests: list[Manifest], name: str) -> dict[str, str]:
    [found] = [
        each for each in of_kind(manifests, "Deployment", "StatefulSet") if each["metadata"]["name"] == name
    ]
    return found["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize(("profile", "keda"), [("metrics-api", False), ("redis-streams", True)])
def test_redis_is_open_to_our_pods_and_to_keda_only(profile, keda):
    manifests = rendered("trial", profile)
    [rule] = allowed_into(manifests, labels_of(manifests, "holdfast-redis"))
    assert rule["ports"] == [{"protocol": "TCP", "port": 6379}]
    pods = [each["podSelector"] for each in rule["from"] if "podSelector" in each]
    for name in pod_specs(manifests):
        ours = name not in {"holdfast-redis", "holdfast-postgres"}
        assert any(selects(selector, labels_of(manifests, name)) for selector in pods) == ours
    spaces = [
        each["namespaceSelector"]["matchLabels"] for each in rule["from"] if "namespaceSelector" in each
    ]
    assert spaces == ([{"kubernetes.io/metadata.name": "keda"}] if keda else [])


@pytest.mark.parametrize(("name", "profile"), ALL)
def test_everything_that_must_be_reached_can_be(name, profile):
    manifests = rendered(name, profile)
    for each in of_kind(manifests, "Deployment"):
        labels = each["spec"]["template"]["metadata"]["labels"]
        opened = {port["port"] for rule in allowed_into(manifests, labels) for port in rule["ports"]}
        has = {port["name"] for port in each["spec"]["template"]["spec"]["containers"][0]["ports"]}
        assert opened == has


def test_policies_can_be_left_to_the_mesh():
    assert not of_kind(rendered("trial", more="networkPolicy.enabled=false"), "NetworkPolicy")


# -- monitoring


def test_monitors_are_opt_in_and_find_every_process():
    assert not of_kind(rendered("trial"), "PodMonitor", "ServiceMonitor")
    manifests = rendered("trial", more="monitoring.podMonitor=true,monitoring.serviceMonitor=true")
    for each in manifests:
        if each["kind"] in keda_types.SCHEMAS:
            keda_types.check(each)
    [monitor] = of_kind(manifests, "PodMonitor")
    for made in of_kind(manifests, "Deployment"):
        pod = made["spec"]["template"]
        assert selects(monitor["spec"]["selector"], pod["metadata"]["labels"])
        assert "metrics" in {port["name"] for port in pod["spec"]["containers"][0]["ports"]}


# -- files


def test_files_of_yours_reach_every_container_of_ours():
    for name, pod in pod_specs(rendered("external")).items():
        volumes = {each["name"] for each in pod["volumes"]}
        for container in containers(pod):
            mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
            assert mounts["authority"] == "/etc/redis-ca", name
            assert set(mounts) <= volumes


# -- sidecars


def test_sidecars_are_native_and_envoy_can_be_told():
    pod = pod_specs(rendered("production"))["holdfast-worker-browser"]
    [sidecar] = pod["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("proxy", "Always")
    told = environment(pod["containers"][0])
    assert told["HOLDFAST_ENVOY_QUIT_URL"] == "http://127.0.0.1:15020/quitquitquit"
    assert "HOLDFAST_ENVOY_QUIT_URL" not in environment(
        pod_specs(rendered("trial"))["holdfast-worker-default"]["containers"][0]
    )
