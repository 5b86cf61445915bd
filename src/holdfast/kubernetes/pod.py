"""A pod, and the protocol of a client that reads pods: nothing here needs the client itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COST: Final = "controller.kubernetes.io/pod-deletion-cost"
"""The annotation by which a ReplicaSet chooses: of two pods the one with the lower cost is deleted first."""

RULES: Final = ({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},)
"""The rules of the janitor's Role in the namespace of the workers; it needs no others."""

TROUBLES: Final = ("away", "forbidden", "unauthorized", "refused", "odd")
"""The kinds of KubernetesUnavailable."""

_ENDED: Final = frozenset({"Failed", "Succeeded"})


class Pod(msgspec.Struct, frozen=True):
    """A pod, as the API returns it."""

    name: str
    uid: str
    phase: str = "Running"
    deleting: bool = False
    cost: int = 0

    @property
    def ended(self) -> bool:
        """Whether its containers have ended and none of them will start again."""
        return self.phase in _ENDED


class PodLook(Protocol):
    """Reads the current state of pods."""

    @property
    def namespace(self) -> str:
        """The namespace of the pods."""
        ...

    async def get(self, name: str) -> Pod | None:
        """Return the current pod of that name, never from a cache; None if there is none."""
        ...


def in_words(rule: Mapping[str, Sequence[str]]) -> str:
    """Return a rule of a Role as an error names it: ``apiGroups [""], resources [pods], verbs [get]``."""
    parts = {key: ", ".join(each or '""' for each in values) for key, values in rule.items()}
    return ", ".join(f"{key} [{values}]" for key, values in parts.items())


def cost_of(annotations: Mapping[str, str]) -> int:
    """Return the cost in a pod's annotations; like a ReplicaSet, 0 if it is missing or no number."""
    try:
        return int(annotations.get(COST, "0"))
    except ValueError:
        return 0
