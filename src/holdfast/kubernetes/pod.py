"""A pod as we see it, and what is asked of whoever can look: nothing here needs the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COST: Final = "controller.kubernetes.io/pod-deletion-cost"
"""The annotation by which a ReplicaSet chooses: of two pods the one with the lower cost goes first."""

RULES: Final = ({"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},)
"""What the janitor's Role must allow, and all it should, in the namespace of the workers."""

TROUBLES: Final = ("away", "forbidden", "unauthorized", "refused", "odd")
"""The kinds of KubernetesUnavailable."""

_ENDED: Final = frozenset({"Failed", "Succeeded"})


class Pod(msgspec.Struct, frozen=True):
    """A pod as the API knows it."""

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
    """Whoever can say how a pod is now."""

    @property
    def namespace(self) -> str:
        """Where it looks."""
        ...

    async def get(self, name: str) -> Pod | None:
        """The pod of that name as it is now, not as a cache remembers it; None if there is none."""
        ...


def in_words(rule: Mapping[str, Sequence[str]]) -> str:
    """A rule of a Role as an error names it: ``apiGroups [""], resources [pods], verbs [get]``."""
    parts = {key: ", ".join(each or '""' for each in values) for key, values in rule.items()}
    return ", ".join(f"{key} [{values}]" for key, values in parts.items())


def cost_of(annotations: Mapping[str, str]) -> int:
    """The cost that a pod's annotations say; a ReplicaSet reads what is missing or no number as 0."""
    try:
        return int(annotations.get(COST, "0"))
    except ValueError:
        return 0
