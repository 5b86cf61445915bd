"""Outages of the Kubernetes API, as this process observes them."""

from __future__ import annotations

from typing import Final

from holdfast.errors import KubernetesUnavailable
from holdfast.outages import Outage, OutageReporter

_KUBERNETES: Final = Outage("Kubernetes API")


def kubernetes_outages(held_up: str, meanwhile: str = "") -> OutageReporter:
    """Return a reporter for the calls of one loop to the Kubernetes API."""
    return OutageReporter(_KUBERNETES, held_up, meanwhile, is_outage=_is_outage)


def _is_outage(exc: BaseException) -> bool:
    return isinstance(exc, KubernetesUnavailable)
