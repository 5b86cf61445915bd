"""Rustic AI on Holdfast's hosts: the engine for its guilds, and the entry of its agents' processes.

Rustic AI is imported with its engine only: a host need not have it installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.packages import needs_extra

if TYPE_CHECKING:
    from holdfast.compat.rustic.engine import K8sExecutionEngine

__all__ = ["K8sExecutionEngine"]


def __getattr__(name: str) -> Any:
    if name != "K8sExecutionEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs_extra("K8sExecutionEngine (on Python 3.13)", "rustic"):
        from holdfast.compat.rustic.engine import K8sExecutionEngine  # noqa: PLC0415 - a host may be without it

    return K8sExecutionEngine
