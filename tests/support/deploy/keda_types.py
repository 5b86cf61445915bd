"""KEDA's types, twice: those that are published, and our own, which are stricter.

The published ones (cloudcoil-models-keda) are made from KEDA's own CRDs, so they know what we may have misread. But what runs on our
oldest Python is of KEDA 2.16 and does not know `fallback.behavior`; and no CRD says which keys a trigger's metadata may have.
Ours are only what we use: a field or a key of a trigger that KEDA does not know is an error. Trigger metadata are strings; the
API server refuses numbers and booleans there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema

Schema = dict[str, Any]

TRIGGERS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    # type: what it must have, what else it may have
    "metrics-api": (
        frozenset({"url", "valueLocation", "targetValue"}),
        frozenset({"activationTargetValue", "format", "authMode", "unsafeSsl"}),
    ),
    "external-push": (
        frozenset({"scalerAddress"}),
        # KEDA hands on what it does not know: these are ours.
        frozenset({"enableTLS", "queue", "slots", "targetWaitSeconds", "ageWeight", "activation"}),
    ),
    "redis-streams": (
        frozenset({"stream", "streamLength", "address"}),
        frozenset({"databaseIndex", "enableTLS", "unsafeSsl", "username"}),
    ),
}


def _object(properties: Schema, *required: str) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(required),
    }


_TEXT: Schema = {"type": "string", "minLength": 1}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_SOME: Schema = {"type": "integer", "minimum": 1}
_METADATA = _object(
    {"name": _TEXT, "namespace": _TEXT, "labels": {"type": "object"}, "annotations": {"type": "object"}},
    "name",
)
_POLICY = _object(
    {
        "type": {"enum": ["Pods", "Percent"]},
        "value": _SOME,
        "periodSeconds": {"type": "integer", "minimum": 1, "maximum": 1800},
    },
    "type",
    "value",
    "periodSeconds",
)
_RULES = _object(
    {
        "stabilizationWindowSeconds": {"type": "integer", "minimum": 0, "maximum": 3600},
        "selectPolicy": {"enum": ["Max", "Min", "Disabled"]},
        "policies": {"type": "array", "items": _POLICY, "minItems": 1},
        "tolerance": _TEXT,
    }
)
_TRIGGER = _object(
    {
        "type": {"enum": sorted(TRIGGERS)},
        "name": _TEXT,
        "metricType": {"enum": ["AverageValue", "Value"]},
        "useCachedMetrics": {"type": "boolean"},
        "metadata": {"type": "object", "additionalProperties": {"type": "string"}},
        "authenticationRef": _object({"name": _TEXT, "kind": _TEXT}, "name"),
    },
    "type",
    "metadata",
)
SCALED_OBJECT = _object(
    {
        "apiVersion": {"const": "keda.sh/v1alpha1"},
        "kind": {"const": "ScaledObject"},
        "metadata": _METADATA,
        "spec": _object(
            {
                "scaleTargetRef": _object(
                    {"apiVersion": _TEXT, "kind": _TEXT, "name": _TEXT, "envSourceContainerName": _TEXT},
                    "name",
                ),
                "pollingInterval": _SOME,
                "cooldownPeriod": _COUNT,
                "initialCooldownPeriod": _COUNT,
                "idleReplicaCount": _COUNT,
                "minReplicaCount": _COUNT,
                "maxReplicaCount": _SOME,
                "fallback": _object(
                    {
                        "failureThreshold": _SOME,
                        "replicas": _COUNT,
                        "behavior": {
                            "enum": [
                                "static",
                                "currentReplicas",
                                "currentReplicasIfHigher",
                                "currentReplicasIfLower",
                            ]
                        },
                    },
                    "failureThreshold",
                    "replicas",
                ),
                "advanced": _object(
                    {
                        "restoreToOriginalReplicaCount": {"type": "boolean"},
                        "horizontalPodAutoscalerConfig": _object(
                            {"name": _TEXT, "behavior": _object({"scaleUp": _RULES, "scaleDown": _RULES})}
                        ),
                    }
                ),
                "triggers": {"type": "array", "items": _TRIGGER, "minItems": 1},
            },
            "scaleTargetRef",
            "triggers",
        ),
    },
    "apiVersion",
    "kind",
    "metadata",
    "spec",
)
TRIGGER_AUTHENTICATION = _object(
    {
        "apiVersion": {"const": "keda.sh/v1alpha1"},
        "kind": {"const": "TriggerAuthentication"},
        "metadata": _METADATA,
        "spec": _object(
            {
                "secretTargetRef": {
                    "type": "array",
                    "items": _object(
                        {"parameter": _TEXT, "name": _TEXT, "key": _TEXT}, "parameter", "name", "key"
                    ),
                    "minItems": 1,
                }
            },
            "secretTargetRef",
        ),
    },
    "apiVersion",
    "kind",
    "metadata",
    "spec",
)
_POD_ENDPOINT = _object({"port": _TEXT, "path": _TEXT, "interval": _TEXT}, "port")
_LABELS = _object({"matchLabels": {"type": "object", "additionalProperties": {"type": "string"}}})


def _monitor(kind: str, endpoints: str) -> Schema:
    spec = _object(
        {"selector": _LABELS, endpoints: {"type": "array", "items": _POD_ENDPOINT, "minItems": 1}},
        "selector",
        endpoints,
    )
    head: Schema = {"apiVersion": {"const": "monitoring.coreos.com/v1"}, "kind": {"const": kind}}
    return _object({**head, "metadata": _METADATA, "spec": spec}, "apiVersion", "kind", "metadata", "spec")


SCHEMAS: dict[str, Schema] = {
    "ScaledObject": SCALED_OBJECT,
    "TriggerAuthentication": TRIGGER_AUTHENTICATION,
    "PodMonitor": _monitor("PodMonitor", "podMetricsEndpoints"),
    "ServiceMonitor": _monitor("ServiceMonitor", "endpoints"),
}
"""The kinds that Kubernetes itself does not know."""

PUBLISHED = {"ScaledObject", "TriggerAuthentication"}
"""The kinds that have published types."""
NEWER = {".spec.fallback.behavior"}
"""Fields that came after KEDA 2.16."""


def check(manifest: dict[str, Any]) -> None:
    """Raise ValidationError of jsonschema or pydantic, or AssertionError, with what is wrong."""
    check_published(manifest)
    check_ours(manifest)


def check_published(manifest: dict[str, Any]) -> None:
    """Read a manifest as KEDA's own types; what they pass over in silence must be newer than they are."""
    if manifest["kind"] in PUBLISHED:
        from cloudcoil.models.keda import v1alpha1  # here, since the import takes most of a second

        published = getattr(v1alpha1, manifest["kind"])
        understood = published.model_validate(manifest).model_dump(by_alias=True, exclude_unset=True)
        unknown = set(_lost(manifest, understood)) - NEWER
        assert not unknown, f"KEDA has no {sorted(unknown)}"


def _lost(given: Any, understood: Any, path: str = "") -> Iterator[str]:
    if isinstance(given, list):
        for number, each in enumerate(given):
            yield from _lost(each, understood[number], f"{path}[{number}]")
    elif isinstance(given, dict):
        for key, value in given.items():
            if key in understood:
                yield from _lost(value, understood[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"


def check_ours(manifest: dict[str, Any]) -> None:
    """Compare a manifest with what we use of KEDA."""
    jsonschema.validate(manifest, SCHEMAS[manifest["kind"]])
    if manifest["kind"] != "ScaledObject":
        return
    spec = manifest["spec"]
    assert spec.get("minReplicaCount", 0) <= spec.get("maxReplicaCount", 100)
    for trigger in spec["triggers"]:
        must, may = TRIGGERS[trigger["type"]]
        keys = set(trigger["metadata"])
        assert must <= keys <= must | may, f"{trigger['type']}: {sorted(keys)}"
