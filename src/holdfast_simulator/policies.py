"""The policies that can be simulated: by name, from a file of a few lines, or a ScaledObject as it is."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, cast

import msgspec
from msgspec import Meta

from holdfast.config.scaling import ScalingSettings
from holdfast.errors import InputError
from holdfast_simulator.manifest import read_documents
from holdfast_simulator.rules import Fixed, Keda, Local
from holdfast_simulator.scaledobject import plain, spec_of
from holdfast_simulator.spec import (
    UP_LIMITS,
    Behavior,
    Direction,
    Fallback,
    FallbackBehavior,
    KedaSpec,
    Lane,
    Limit,
    Metric,
    Trigger,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast_simulator.manifest import Document
    from holdfast_simulator.rules import Scaler
    from holdfast_simulator.world import World

POLLING_SECONDS: Final = 5.0
COOLDOWN_SECONDS: Final = 180.0
_LONGEST_WINDOW: Final = 3600
_FIXED = re.compile(r"fixed:([0-9]{1,6})")
_DEMAND: Final = (Trigger(metric=Metric.DEPTH, target=1.0),)


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Who decides, under a name; what it does not say about workers is as in the world."""

    name: str
    keda: KedaSpec | None = None
    replicas: int | None = None
    """That many, always."""
    slots: int | None = None
    scaling: ScalingSettings | None = None

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        """The triggers whose metrics it reads."""
        if self.replicas is not None:
            return ()
        return _DEMAND if self.keda is None else self.keda.triggers

    def slots_in(self, world: World) -> int:
        """How many runs one worker does at once."""
        return world.slots if self.slots is None else self.slots

    def scaling_in(self, world: World) -> ScalingSettings:
        """How runs weigh by their age."""
        return world.scaling if self.scaling is None else self.scaling

    def scaler(self, world: World) -> Scaler:
        """Whoever decides, without a memory yet."""
        if self.replicas is not None:
            return Fixed(self.replicas)
        if self.keda is not None:
            return Keda(self.keda)
        return Local(self.scaling_in(world), self.slots_in(world))


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a short policy says beside the names of a ScaledObject's spec."""

    kind: Literal["keda", "local", "fixed"] = "keda"
    name: str = ""
    slots: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    replicas: Annotated[int, Meta(ge=0, le=100_000)] | None = None
    scaling: dict[str, Any] | None = None


_HEAD: Final = frozenset(_Head.__struct_fields__)


def policies_of(text: str, world: World) -> list[Policy]:
    """The policy of that name, or those of that file."""
    if text in NAMED:
        return [NAMED[text](world)]
    if fixed := _FIXED.fullmatch(text):
        return [Policy(name=text, replicas=int(fixed[1]))]
    path = Path(text)
    if not path.exists():
        known = ", ".join([*NAMED, "fixed:N"])
        raise InputError(f"there is no policy {text[:80]!r}: it is neither a file nor one of {known}")
    found = [policy for document in read_documents(path) if (policy := _policy(document, world))]
    if not found:
        raise InputError(
            f"{path} holds no policy: neither a ScaledObject nor a mapping like `maxReplicaCount: 20`"
        )
    return found


def _policy(document: Document, world: World) -> Policy | None:
    """The policy of a document; None if it is some other manifest."""
    if not isinstance(document.value, dict):
        raise document.wrong("a policy is a mapping, like `maxReplicaCount: 20`")
    value = cast("dict[str, Any]", document.value)
    if "apiVersion" not in value:
        return _short(document, value, world)
    if value.get("kind") != "ScaledObject":
        return None
    name, spec = spec_of(document, world.slots)
    return Policy(name=name or document.path.stem, keda=spec)


def _short(document: Document, value: dict[str, Any], world: World) -> Policy:
    head = document.convert({key: value[key] for key in value if key in _HEAD}, _Head)
    rest = {key: value[key] for key in value if key not in _HEAD}
    name = head.name or document.path.stem
    scaling = world.scaling
    if head.scaling is not None:
        given = {**msgspec.structs.asdict(world.scaling), **head.scaling}
        for key in head.scaling:
            if key not in ScalingSettings.__struct_fields__:
                raise document.wrong(f"there is no setting {key!r}", f".scaling.{key}")
        scaling = document.convert(given, ScalingSettings, base=".scaling")
    policy = Policy(name=name, slots=head.slots, scaling=None if head.scaling is None else scaling)
    if head.kind == "keda":
        return msgspec.structs.replace(policy, keda=_keda(document, rest, policy, world))
    if rest:
        raise document.wrong(
            f"a policy of kind {head.kind} has no {next(iter(rest))!r}", f".{next(iter(rest))}"
        )
    if head.kind == "local":
        return policy
    if head.replicas is None:
        raise document.wrong("a policy of kind fixed needs `replicas: N`", ".kind")
    return msgspec.structs.replace(policy, replicas=head.replicas)


def _keda(document: Document, rest: dict[str, Any], policy: Policy, world: World) -> KedaSpec:
    """Fill in what a short policy does not say: as the chart has it, for the slots of a worker."""
    scaling = policy.scaling_in(world)
    target = policy.slots_in(world)
    least = rest.get("minReplicaCount")
    chart: dict[str, Any] = {
        "minReplicaCount": scaling.min_workers,
        "maxReplicaCount": scaling.max_workers,
        "pollingInterval": POLLING_SECONDS,
        "cooldownPeriod": COOLDOWN_SECONDS,
        "triggers": [{}],
        "fallback": plain(fallback_of(least if isinstance(least, int) else scaling.min_workers)),
        "behavior": plain(behavior_of(scaling)),
    }
    given = _merged(chart, rest)
    if isinstance(given["triggers"], list):
        listed = cast("list[Any]", given["triggers"])
        given["triggers"] = [
            {"target": target, **cast("dict[str, Any]", one)} if isinstance(one, dict) else one
            for one in listed
        ]
    return document.convert(given, KedaSpec)


def _merged(chart: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """What is given over what the chart has, name by name; a list or a null replaces what was there."""
    merged = {**chart, **given}
    for key, value in given.items():
        below = chart.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            merged[key] = _merged(cast("dict[str, Any]", below), cast("dict[str, Any]", value))
    return merged


def _named(name: str, *triggers: Trigger) -> Callable[[World], Policy]:
    """A policy as the chart has it, with these triggers; their target is the slots of a worker."""

    def build(world: World) -> Policy:
        scaling, target = world.scaling, float(world.slots)
        spec = KedaSpec(
            min_replica_count=scaling.min_workers,
            max_replica_count=scaling.max_workers,
            polling_interval=POLLING_SECONDS,
            cooldown_period=COOLDOWN_SECONDS,
            triggers=tuple(msgspec.structs.replace(trigger, target=target) for trigger in triggers),
            fallback=fallback_of(scaling.min_workers),
            behavior=behavior_of(scaling),
        )
        return Policy(name=name, keda=spec)

    return build


def fallback_of(least: int) -> Fallback:
    """A metric that can't be read is not 0: the workers go on."""
    return Fallback(failure_threshold=3, replicas=max(least, 1), behavior=FallbackBehavior.IF_HIGHER)


def behavior_of(scaling: ScalingSettings) -> Behavior:
    """Up as fast as Kubernetes does by itself; down by half in a minute, to what was enough for a while."""
    return Behavior(
        scale_up=Direction(stabilization_window_seconds=0, policies=UP_LIMITS),
        scale_down=Direction(
            stabilization_window_seconds=min(math.ceil(scaling.down_seconds), _LONGEST_WINDOW),
            policies=(Limit(type="Percent", value=50, period_seconds=60),),
        ),
    )


def _counting(metric: Metric, *lanes: Lane, push: bool = False) -> tuple[Trigger, ...]:
    return tuple(Trigger(metric=metric, lane=lane, target=1.0, push=push) for lane in lanes or (None,))


NAMED: Final[dict[str, Callable[[World], Policy]]] = {
    "depth": _named("depth", *_counting(Metric.DEPTH)),
    "push": _named("push", *_counting(Metric.DEPTH, push=True)),
    "stream-length": _named("stream-length", *_counting(Metric.STREAM_LENGTH, *Lane)),
    "pending-entries": _named("pending-entries", *_counting(Metric.PENDING)),
    "lag-count": _named("lag-count", *_counting(Metric.LAG)),
    "local": lambda world: Policy(name="local", scaling=world.scaling),
}
