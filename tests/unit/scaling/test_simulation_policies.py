"""Policies: by name, from short files, from ScaledObjects, and written as ScaledObjects."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import yaml

from holdfast.config.scaling import ScalingSettings
from holdfast.errors import InputError
from holdfast_simulator.policies import NAMED, policies_of
from holdfast_simulator.rules import Fixed, Keda, Local
from holdfast_simulator.scaledobject import Target, scaled_object, to_yaml
from holdfast_simulator.spec import FallbackBehavior, Lane, Metric, Select
from holdfast_simulator.world import World
from tests.support.deploy import keda_types

ROOT = Path(__file__).parents[3]
WORLD = World(slots=4, scaling=ScalingSettings(min_workers=1, max_workers=20, down_seconds=90))
TARGET = Target(
    queue="browser:jobs",
    streams=("{browser:jobs}:returned", "{browser:jobs}:high", "browser:jobs", "{browser:jobs}:low"),
    deployment="holdfast-worker-browser",
    release="holdfast",
    namespace="holdfast",
)


@pytest.fixture
def read(tmp_path):
    def write(text: str, world: World = WORLD):
        path = tmp_path / "patient.yaml"
        path.write_text(text)
        return policies_of(str(path), world)

    return write


def test_names_are_as_the_chart_has_them():
    [policy] = policies_of("depth", WORLD)
    spec = policy.keda
    assert (spec.min_replica_count, spec.max_replica_count) == (1, 20)
    assert (spec.polling_interval, spec.cooldown_period) == (5, 180)
    assert [(t.metric, t.target, t.push) for t in spec.triggers] == [(Metric.DEPTH, 4, False)]
    assert spec.fallback.behavior is FallbackBehavior.IF_HIGHER
    assert spec.behavior.scale_down.stabilization_window_seconds == 90
    assert policies_of("push", WORLD)[0].keda.triggers[0].push
    assert [t.lane for t in policies_of("stream-length", WORLD)[0].keda.triggers] == list(Lane)


def test_each_name_has_its_scaler():
    scalers = {name: type(policies_of(name, WORLD)[0].scaler(WORLD)) for name in [*NAMED, "fixed:3"]}
    assert scalers.pop("local") is Local
    assert scalers.pop("fixed:3") is Fixed
    assert set(scalers.values()) == {Keda}


def test_an_unknown_name_is_told_which_there_are():
    with pytest.raises(InputError, match=r"no policy 'dept': .* depth, push, .*, fixed:N"):
        policies_of("dept", WORLD)


def test_a_short_file_says_only_what_differs(read):
    [policy] = read(
        """
        maxReplicaCount: 50
        cooldownPeriod: 600
        behavior:
          scaleDown:
            stabilizationWindowSeconds: 600
            selectPolicy: Min
            policies:
              - {type: Pods, value: 1, periodSeconds: 60}
        """
    )
    assert policy.name == "patient"
    assert (policy.keda.min_replica_count, policy.keda.max_replica_count) == (1, 50)
    assert policy.keda.triggers[0].target == 4
    assert policy.keda.behavior.scale_down.select_policy is Select.MIN
    [chart] = policies_of("depth", WORLD)
    assert policy.keda.behavior.scale_up == chart.keda.behavior.scale_up
    assert policy.keda.fallback == chart.keda.fallback


def test_a_part_of_behavior_or_fallback_leaves_the_rest_to_the_chart(read):
    [chart] = policies_of("depth", WORLD)
    [policy] = read("behavior: {scaleDown: {stabilizationWindowSeconds: 600}}\nfallback: {replicas: 7}\n")
    down = msgspec.structs.replace(chart.keda.behavior.scale_down, stabilization_window_seconds=600)
    assert policy.keda.behavior == msgspec.structs.replace(chart.keda.behavior, scale_down=down)
    assert policy.keda.fallback == msgspec.structs.replace(chart.keda.fallback, replicas=7)
    [none] = read("fallback: null\nbehavior: null\n")
    assert (none.keda.fallback, none.keda.behavior) == (None, None)


def test_a_fallback_is_no_less_than_the_least_of_its_policy(read):
    """As in the chart: the greater one of keda.fallback.replicas and scaling.min."""
    assert read("minReplicaCount: 6\n")[0].keda.fallback.replicas == 6
    assert read("minReplicaCount: 0\n")[0].keda.fallback.replicas == 1


def test_a_short_file_may_be_empty_of_differences(read):
    assert read("name: plain\n")[0].keda == policies_of("depth", WORLD)[0].keda


def test_a_short_file_may_have_its_own_slots_and_weights(read):
    [policy] = read("slots: 8\nscaling: {age_weight: 5}\n")
    assert (policy.keda.triggers[0].target, policy.slots_in(WORLD)) == (8, 8)
    assert policy.scaling_in(WORLD).age_weight == 5
    assert policy.scaling_in(WORLD).max_workers == 20


def test_kinds_without_keda(read):
    [policy] = read("kind: local\nscaling: {down_seconds: 5, max_workers: 2}\n")
    assert isinstance(policy.scaler(WORLD), Local)
    [policy] = read("kind: fixed\nreplicas: 7\n")
    assert policy.scaler(WORLD).first == 7
    assert policy.triggers == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("maxReplicaCount: many\n", r"patient.yaml:1: Expected `int`, got `str` \(maxReplicaCount\)"),
        ("name: a\nmaxReplicas: 5\n", r"patient.yaml:2: .*unknown field `maxReplicas`"),
        ("minReplicaCount: 30\n", r"patient.yaml:1: minReplicaCount 30 is more than maxReplicaCount 20"),
        (
            "name: a\n\ntriggers:\n  - metric: depth\n  - metric: cpu\n",
            r"patient.yaml:5: Invalid enum value 'cpu' \(triggers\[1\].metric\)",
        ),
        ("triggers: []\n", r"patient.yaml:1: .*length >= 1"),
        ("triggers:\n  - target: 0\n", r"patient.yaml:2: .*> 0"),
        ("triggers:\n  - tarjet: 1\n", r"patient.yaml:2: .*unknown field `tarjet`"),
        ("name: a\nkind: cron\n", r"patient.yaml:2: .*'cron'"),
        ("kind: fixed\n", r"patient.yaml:1: a policy of kind fixed needs `replicas: N`"),
        (
            "kind: local\n\ncooldownPeriod: 3\n",
            r"patient.yaml:3: a policy of kind local has no 'cooldownPeriod'",
        ),
        ("scaling:\n  age_weight: 0\n", r"patient.yaml:2: .*>= 1"),
        ("scaling:\n  age_wait: 2\n", r"patient.yaml:2: there is no setting 'age_wait'"),
        (
            "behavior:\n  scaleDown:\n    policies: [{type: Pods, value: 1}]\n",
            r"patient.yaml:3: .*periodSeconds",
        ),
        ("- a\n", r"patient.yaml:1: a policy is a mapping"),
        ("a: [\n", r"patient.yaml:2: this is not YAML"),
        ("a: 1\nb: @\n", r"patient.yaml:2: this is not YAML"),
        ("", "holds no policy"),
        ("apiVersion: v1\nkind: Service\n", "holds no policy"),
    ],
)
def test_a_bad_policy_is_refused_with_its_line(read, text, said):
    with pytest.raises(InputError, match=said):
        read(text)


# -- ScaledObjects


def test_the_committed_manifest_is_the_policy_named_depth():
    world = World()
    [policy] = policies_of(str(ROOT / "deploy/kubernetes/keda.yaml"), world)
    assert policy.keda == policies_of("depth", world)[0].keda
    assert policy.name == "holdfast-worker-default"


def test_what_is_emitted_is_what_the_chart_renders():
    emitted = scaled_object(
        policies_of("depth", World())[0].keda,
        TARGET._replace(queue="agent-queue", deployment="holdfast-worker-default"),
    )
    rendered, *_ = yaml.safe_load_all((ROOT / "deploy/kubernetes/keda.yaml").read_text())
    rendered["metadata"].pop("labels")
    assert yaml.safe_load(to_yaml(emitted)) == rendered


@pytest.mark.parametrize(("letters", "config"), [(54, {}), (55, {"name": "d" * 55})])
def test_the_hpa_has_a_name_of_its_own_where_kedas_would_be_too_long(letters, config):
    """As in the chart: KEDA refuses a ScaledObject whose `keda-hpa-…` would have more than 63 letters."""
    spec = msgspec.structs.replace(policies_of("depth", WORLD)[0].keda, behavior=None)
    manifest = scaled_object(spec, TARGET._replace(deployment="d" * letters))
    keda_types.check(yaml.safe_load(to_yaml(manifest)))
    assert manifest["spec"]["advanced"].get("horizontalPodAutoscalerConfig", {}) == config


@pytest.mark.parametrize("name", ["pending-entries", "lag-count"])
def test_what_can_not_scale_is_not_emitted(name):
    with pytest.raises(InputError, match="does not see what waits"):
        scaled_object(policies_of(name, WORLD)[0].keda, TARGET)


@pytest.mark.parametrize("name", ["depth", "push", "stream-length"])
def test_what_is_emitted_is_valid_and_read_again_as_the_same_policy(name, read):
    spec = policies_of(name, WORLD)[0].keda
    text = to_yaml(scaled_object(spec, TARGET))
    manifest = yaml.safe_load(text)
    keda_types.check(manifest)
    for trigger in manifest["spec"]["triggers"]:
        assert all(isinstance(value, str) for value in trigger["metadata"].values())
    [again] = read(text)
    lanes = [msgspec.structs.replace(trigger, lane=None) for trigger in again.keda.triggers]
    assert lanes == [msgspec.structs.replace(trigger, lane=None) for trigger in spec.triggers]
    assert msgspec.structs.replace(again.keda, triggers=spec.triggers) == spec


def test_numbers_are_quoted_so_that_the_api_server_takes_them():
    text = to_yaml(scaled_object(policies_of("depth", WORLD)[0].keda, TARGET))
    assert 'targetValue: "4"' in text
    assert 'activationTargetValue: "0"' in text
    assert "browser%3Ajobs" in text
    assert "\n  triggers:\n    - type: metrics-api\n" in text


OBJECT = """
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: w}
spec:
  scaleTargetRef: {name: w}
  triggers:
    - type: TYPE
      metadata: METADATA
"""


@pytest.mark.parametrize(
    ("kind", "metadata", "metric", "target"),
    [
        ("redis-streams", "{stream: q, streamLength: '7'}", Metric.STREAM_LENGTH, 7),
        ("redis-streams", "{stream: q}", Metric.STREAM_LENGTH, 5),
        ("redis-streams", "{stream: q, consumerGroup: g, pendingEntriesCount: '3'}", Metric.PENDING, 3),
        ("redis-cluster-streams", "{stream: q, consumerGroup: g}", Metric.PENDING, 5),
        ("redis-streams", "{stream: q, consumerGroup: g, lagCount: '9'}", Metric.LAG, 9),
        ("external", "{scalerAddress: 'a:1', queue: q}", Metric.DEPTH, 4),
        ("external-push", "{scalerAddress: 'a:1', queue: q, slots: '6'}", Metric.DEPTH, 6),
        ("metrics-api", "{url: u, valueLocation: depth, targetValue: '2.5'}", Metric.DEPTH, 2.5),
    ],
)
def test_the_triggers_of_others_are_read_as_keda_reads_them(read, kind, metadata, metric, target):
    [policy] = read(OBJECT.replace("TYPE", kind).replace("METADATA", metadata))
    [trigger] = policy.keda.triggers
    assert (trigger.metric, trigger.target) == (metric, target)
    assert (policy.keda.polling_interval, policy.keda.cooldown_period) == (30, 300)  # KEDA's own
    assert policy.keda.behavior is None


@pytest.mark.parametrize(
    ("kind", "metadata", "said"),
    [
        ("redis-streams", "{stream: q, streamLength: 7}", r"patient.yaml:9: Expected `str`, got `int`"),
        (
            "redis-streams",
            "{stream: q, streamLength: few}",
            r"patient.yaml:9: streamLength 'few' is not a number",
        ),
        ("cpu", "{value: '60'}", r"patient.yaml:8: a trigger of type 'cpu' can't be simulated"),
        (
            "metrics-api",
            "{url: u, valueLocation: wanted, targetValue: '1'}",
            r"patient.yaml:9: valueLocation 'wanted'",
        ),
        ("metrics-api", "{url: u, valueLocation: depth}", r"patient.yaml:9: targetValue '' is not a number"),
    ],
)
def test_a_scaled_object_that_can_not_be_simulated_says_where(read, kind, metadata, said):
    with pytest.raises(InputError, match=said):
        read(OBJECT.replace("TYPE", kind).replace("METADATA", metadata))
