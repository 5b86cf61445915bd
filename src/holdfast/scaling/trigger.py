"""A trigger of KEDA: the queues and options of its ``scalerMetadata``. Pure: no Redis, no gRPC.

::

    queue: browser-jobs            required; several by commas are summed
    slots: "3"                     runs that one worker does at once; else the queue's own
    targetWaitSeconds, ageWeight   instead of the queue's scaling.target_wait_seconds and age_weight
    activation: "0"                more than this, and there should be a worker
"""

from __future__ import annotations

import math
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.config.durations import DAY
from holdfast.errors import InputError, NotFound
from holdfast.scaling.policy import slots_of, total_demand

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.config import QueueSettings
    from holdfast.config.scaling import ScalingSettings
    from holdfast.runs.partition import Depth
    from holdfast.runs.queue import RunQueue

_KEYS: Final = ("queue", "slots", "targetWaitSeconds", "ageWeight", "activation")
_FROM_ENV: Final = "FromEnv"
_SHOWN: Final = 80
_INDEX: Final = re.compile(r"\As\d+-")
"""The prefix that KEDA adds to a metric's name in the HPA, and removes before it calls the scaler."""


def _plain(key: str) -> str:
    return key.lower().replace("_", "").replace("-", "")


def _closest_key(key: str) -> str:
    """Return the key that a misspelled one is similar to, or the key itself: KEDA has its own keys."""
    close = get_close_matches(_plain(key)[:_SHOWN], list(_KEY_BY_PLAIN), n=1, cutoff=0.85)
    return _KEY_BY_PLAIN[close[0]] if close else key


_KEY_BY_PLAIN: Final = {_plain(key): key for key in _KEYS}
"""The keys by their spelling without case and separators."""


class Trigger:
    """The queues and options of one ScaledObject."""

    __slots__ = ("_scalings", "activation", "metric", "queues", "slots")

    def __init__(
        self, queues: Sequence[RunQueue], scalings: Sequence[ScalingSettings], slots: int, activation: float
    ) -> None:
        self.queues = tuple(queues)
        self._scalings = tuple(scalings)
        self.slots = slots
        self.activation = activation
        self.metric = metric_name([queue.name for queue in queues])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its queues."""
        return tuple(queue.name for queue in self.queues)

    def demand(self, depths: Sequence[Depth]) -> float:
        """Return how many runs of its queues need a slot."""
        return round(total_demand(zip(depths, self._scalings, strict=True), self.slots), 3)

    def is_active(self, wanting: float) -> bool:
        """Return whether this demand needs a first worker: it must exceed the activation, as in KEDA."""
        return wanting > self.activation  # guard: activation-exceeded

    def check_metric(self, name: str) -> None:
        """Raise NotFound for a metric of another trigger."""
        if _INDEX.sub("", name.lower()) != self.metric:
            raise NotFound(f"there is no metric {name[:_SHOWN]!r} here; this trigger has {self.metric}")


def metric_name(queues: Sequence[str]) -> str:
    """Return the name of the metric of these queues, in characters that Kubernetes allows."""
    return "-".join(("holdfast", *(re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") for name in queues)))


def read_trigger(metadata: Mapping[str, str], known: Mapping[str, RunQueue]) -> Trigger:
    """Parse ``scalerMetadata``; NotFound and InputError name the error and the valid values."""
    given = _given(metadata)
    queues = [_queue(name, known) for name in _names(given, known)]
    settings = [queue.settings for queue in queues]
    scalings = [_scaling(each, given) for each in settings]
    activation = _number(given, "activation", 0, 1e12)
    return Trigger(queues, scalings, _slots(settings, given), activation or 0.0)


def _given(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the keys of Holdfast; KEDA sends all keys of a trigger, also its own like ``scalerAddress``."""
    given: dict[str, str] = {}
    for written, value in metadata.items():
        key = written.removesuffix(_FROM_ENV)
        meant = _closest_key(key)
        if meant != key:
            raise InputError(f"scalerMetadata has {written[:_SHOWN]!r}: write {meant}")
        if key in _KEYS and value.strip():
            given[key] = value.strip()
    return given


def _names(given: Mapping[str, str], known: Mapping[str, RunQueue]) -> list[str]:
    names = [name.strip() for name in given.get("queue", "").split(",")]
    if not any(names):
        raise InputError(f"scalerMetadata has no queue: name one of {', '.join(known)}")
    if not all(names):
        raise InputError(f"scalerMetadata: queue = {given['queue'][:_SHOWN]!r} has an empty name in it")
    return list(dict.fromkeys(names))


def _queue(name: str, known: Mapping[str, RunQueue]) -> RunQueue:
    found = known.get(name)
    if found is not None:
        return found
    close = get_close_matches(name[:_SHOWN], list(known), n=1)
    meant = f": did you mean {close[0]!r}? There are" if close else "; there are"
    raise NotFound(f"no queue {name[:_SHOWN]!r} is configured here{meant} {', '.join(known)}")


def _slots(settings: Sequence[QueueSettings], given: Mapping[str, str]) -> int:
    written = _number(given, "slots", 1, 1_000_000)
    if written is not None:
        if written != int(written):
            raise InputError(f"scalerMetadata: slots = {given['slots'][:_SHOWN]!r} is not a whole number")
        return int(written)
    found = {each.name: slots_of(each) for each in settings}
    if len(set(found.values())) > 1:
        differing = ", ".join(f"{name} has {slots}" for name, slots in found.items())
        raise InputError(
            f"scalerMetadata: the workers of these queues differ in slots ({differing}): set slots"
        )
    return next(iter(found.values()))


def _scaling(settings: QueueSettings, given: Mapping[str, str]) -> ScalingSettings:
    wait = _number(given, "targetWaitSeconds", 0.1, DAY)
    weight = _number(given, "ageWeight", 1, 100)
    scaling = settings.scaling
    return msgspec.structs.replace(
        scaling,
        target_wait_seconds=scaling.target_wait_seconds if wait is None else wait,
        age_weight=scaling.age_weight if weight is None else weight,
    )


def _number(given: Mapping[str, str], key: str, least: float, most: float) -> float | None:
    if key not in given:
        return None
    try:
        number = float(given[key])
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise InputError(
            f"scalerMetadata: {key} = {given[key][:_SHOWN]!r} is not allowed: "
            f"a number from {least:.12g} to {most:.12g}"
        )
    return number
