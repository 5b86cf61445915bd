"""ScaledObjects of KEDA: a policy written as one, and one read as a policy.

Trigger metadata are strings: the API server refuses numbers and booleans, so every one is quoted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, cast
from urllib.parse import quote_plus

import msgspec
import yaml
from msgspec import Meta

from holdfast.errors import InputError
from holdfast_simulator.spec import (
    Behavior,
    Count,
    Fallback,
    Interval,
    KedaSpec,
    Lane,
    Metric,
    Seconds,
    Trigger,
)

if TYPE_CHECKING:
    from holdfast_simulator.manifest import Document

_STREAMS: Final = frozenset({"redis-streams", "redis-cluster-streams", "redis-sentinel-streams"})
_SCALER_PORT: Final = 9800
_HPA_NAME_MOST: Final = 63
_DEFAULT_TARGET: Final = "5"
"""KEDA's own, for whatever a stream's trigger counts."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of a manifest; what does not decide about replicas is not looked at."""


class _Names(_Part, frozen=True, kw_only=True):
    name: str = ""


class _Trigger(_Part, frozen=True, kw_only=True):
    type: str
    metadata: dict[str, str] = {}


class _HpaConfig(_Part, frozen=True, kw_only=True):
    behavior: Behavior | None = None


class _Advanced(_Part, frozen=True, kw_only=True):
    horizontal_pod_autoscaler_config: _HpaConfig = _HpaConfig()


class _ObjectSpec(_Part, frozen=True, kw_only=True):
    min_replica_count: Count = 0
    max_replica_count: Annotated[int, Meta(ge=1)] = 100
    idle_replica_count: Count | None = None
    polling_interval: Interval = 30.0
    cooldown_period: Seconds = 300.0
    triggers: Annotated[list[_Trigger], Meta(min_length=1)]
    fallback: Fallback | None = None
    advanced: _Advanced = _Advanced()


class _Manifest(_Part, frozen=True, kw_only=True):
    metadata: _Names = _Names()
    spec: _ObjectSpec


def spec_of(document: Document, slots: int) -> tuple[str, KedaSpec]:
    """Read the name and the spec of a ScaledObject; ``slots`` is the target that our own scaler answers."""
    found = document.convert(document.value, _Manifest)
    spec = found.spec
    return found.metadata.name, document.convert(
        {
            "minReplicaCount": spec.min_replica_count,
            "maxReplicaCount": spec.max_replica_count,
            "idleReplicaCount": spec.idle_replica_count,
            "pollingInterval": spec.polling_interval,
            "cooldownPeriod": spec.cooldown_period,
            "triggers": [_counted(document, at, one, slots) for at, one in enumerate(spec.triggers)],
            "fallback": spec.fallback,
            "behavior": spec.advanced.horizontal_pod_autoscaler_config.behavior,
        },
        KedaSpec,
        base=".spec",
    )


def _counted(document: Document, at: int, trigger: _Trigger, slots: int) -> dict[str, Any]:
    """What a trigger counts, if that can be simulated."""
    place = f".spec.triggers[{at}]"
    metadata = trigger.metadata

    def number(name: str, otherwise: str) -> float:
        text = metadata.get(name, otherwise)
        try:
            return float(text)
        except ValueError:
            raise document.wrong(
                f"{name} {text[:20]!r} is not a number", f"{place}.metadata.{name}"
            ) from None

    if trigger.type in {"external", "external-push"}:
        target, activation = number("slots", str(slots)), number("activation", "0")
        return {"target": target, "activation": activation, "push": trigger.type == "external-push"}
    if trigger.type == "metrics-api":
        where = metadata.get("valueLocation", "")
        if where != "depth":
            raise document.wrong(
                f"valueLocation {where!r} can't be simulated, only depth", f"{place}.metadata.valueLocation"
            )
        activation = number("activationTargetValue", "0")
        return {"target": number("targetValue", ""), "activation": activation}
    if trigger.type not in _STREAMS:
        known = ", ".join(["metrics-api", "external", "external-push", *sorted(_STREAMS)])
        raise document.wrong(
            f"a trigger of type {trigger.type!r} can't be simulated, only {known}", f"{place}.type"
        )
    suffix = metadata.get("stream", "").rpartition(":")[2]
    lane = suffix if suffix in {Lane.RETURNED, Lane.HIGH, Lane.LOW} else Lane.NORMAL
    if "consumerGroup" not in metadata:
        metric, target = Metric.STREAM_LENGTH, number("streamLength", _DEFAULT_TARGET)
    elif "lagCount" in metadata:
        metric, target = Metric.LAG, number("lagCount", "")
    else:
        metric, target = Metric.PENDING, number("pendingEntriesCount", _DEFAULT_TARGET)
    activation = number("activationLagCount", "0") if metric is Metric.LAG else 0.0
    return {"metric": metric, "lane": lane, "target": target, "activation": activation}


class Target(NamedTuple):
    """What the manifest is about: the queue, the Deployment of its workers, and the release that it is in."""

    queue: str
    streams: tuple[str, ...]
    """Of the lanes, in their order."""
    deployment: str
    release: str
    namespace: str


def scaled_object(spec: KedaSpec, target: Target) -> dict[str, Any]:
    """Write a policy as a ScaledObject."""
    body: dict[str, Any] = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target.deployment},
        "minReplicaCount": spec.min_replica_count,
        "maxReplicaCount": spec.max_replica_count,
        "pollingInterval": round(spec.polling_interval),
        "cooldownPeriod": round(spec.cooldown_period),
        "triggers": [_trigger(trigger, target) for trigger in spec.triggers],
    }
    if spec.idle_replica_count is not None:
        body["idleReplicaCount"] = spec.idle_replica_count
    if spec.fallback is not None:
        body["fallback"] = plain(spec.fallback)
    # An autoscaler that goes leaves as many workers as there are.
    advanced: dict[str, Any] = {"restoreToOriginalReplicaCount": False}
    config = _hpa_name(target.deployment)
    if spec.behavior is not None:
        config["behavior"] = plain(spec.behavior)
    if config:
        advanced["horizontalPodAutoscalerConfig"] = config
    body["advanced"] = advanced
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": target.deployment, "namespace": target.namespace},
        "spec": body,
    }


def _hpa_name(deployment: str) -> dict[str, Any]:
    """Name the HPA where the name that KEDA gives it would be longer than KEDA takes."""
    return {"name": deployment} if len(f"keda-hpa-{deployment}") > _HPA_NAME_MOST else {}


def plain(value: Any) -> Any:
    """A struct as plain values, without what it leaves to Kubernetes."""
    built = msgspec.to_builtins(value)
    return _without_nothing(built)


def _without_nothing(value: Any) -> Any:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {key: _without_nothing(one) for key, one in fields.items() if one is not None and one != {}}
    if isinstance(value, list):
        return [_without_nothing(one) for one in cast("list[Any]", value)]
    return value


def _trigger(trigger: Trigger, target: Target) -> dict[str, Any]:
    if trigger.metric is not Metric.DEPTH:
        return _streams(trigger, target)
    each, above = _text(trigger.target), _text(trigger.activation)
    if trigger.push:
        address = f"dns:///{target.release}-scaler.{target.namespace}.svc:{_SCALER_PORT}"
        metadata = {"scalerAddress": address, "queue": target.queue, "slots": each, "activation": above}
        return _of("external-push", metadata)
    url = f"http://{target.release}-api.{target.namespace}.svc:80/internal/scaling/{quote_plus(target.queue)}"
    metadata = {"url": url, "valueLocation": "depth", "targetValue": each, "activationTargetValue": above}
    return {**_of("metrics-api", {**metadata, "authMode": "bearer"}), **_shown(target)}


def _streams(trigger: Trigger, target: Target) -> dict[str, Any]:
    if trigger.metric is not Metric.STREAM_LENGTH:
        raise InputError(
            f"no manifest is written for {trigger.metric}: it does not see what waits (a lag is NULL once "
            "entries are deleted out of order), so work would wait for ever; use depth or streamLength"
        )
    metadata = {
        # No consumerGroup: with one, KEDA would count what is pending instead of the length.
        "stream": target.streams[list(Lane).index(trigger.lane or Lane.NORMAL)],
        "address": f"{target.release}-redis.{target.namespace}.svc:6379",
        "streamLength": _text(trigger.target),
    }
    return {**_of("redis-streams", metadata), **_shown(target)}


def _of(kind: str, metadata: dict[str, str]) -> dict[str, Any]:
    quoted = {name: _Quoted(value) for name, value in metadata.items()}
    return {"type": kind, "metricType": "AverageValue", "metadata": quoted}


def _shown(target: Target) -> dict[str, Any]:
    """The TriggerAuthentication of the release: what KEDA shows to whomever it asks."""
    return {"authenticationRef": {"name": target.release}}


def _text(number: float) -> str:
    return f"{number:g}"


class _Quoted(str):
    """Text that must stay text, whatever YAML would make of it."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Writes lists under their key, as manifests have them, and quotes what must stay text."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Keep list items indented."""
        del indentless
        super().increase_indent(flow, False)  # noqa: FBT003 - yaml's own parameter


def _quoted(dumper: yaml.SafeDumper, text: _Quoted) -> yaml.ScalarNode:
    del dumper
    return yaml.ScalarNode("tag:yaml.org,2002:str", str(text), style='"')


_Dumper.add_representer(_Quoted, _quoted)


def to_yaml(manifest: dict[str, Any]) -> str:
    """Write a manifest."""
    return yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=110)
