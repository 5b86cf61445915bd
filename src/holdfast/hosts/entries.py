"""The entries of agents' processes on every host: plain classes, and Rustic AI where it is installed."""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.config import HostSettings

PLAIN: Final[Mapping[str, str]] = {"plain": "holdfast.processes.plain:run"}

RUSTIC: Final = "rustic"
RUSTIC_PATH: Final = "holdfast.compat.rustic.entry:run"
RUSTIC_PREPARE: Final = ("holdfast.compat.rustic.entry:prepare", "agents of Rustic AI")
_RUSTIC_PRELOAD: Final = (
    "holdfast.compat.rustic.entry",
    "holdfast.compat.rustic.engine",  # a guild's manager has an engine, and calls hosts
    "holdfast.hosts.remote",
    "rustic_ai.core.agents.system.guild_manager_agent",
    "rustic_ai.core.agents.utils.user_proxy_agent",
    "rustic_ai.redis.messaging.backend",
    "rustic_ai.redis.state.manager",
    "encodings.idna",  # the first connection would import it
)


def offers_rustic(hosts: HostSettings) -> bool:
    """Whether agents of Rustic AI may run here: it is installed, and the settings allow it."""
    return hosts.rustic and _is_installed("rustic_ai.core")


def rustic_preload() -> tuple[str, ...]:
    """The installed modules that every agent of Rustic AI uses."""
    return tuple(name for name in _RUSTIC_PRELOAD if not name.startswith("rustic_ai.") or _is_installed(name))


def _is_installed(module: str) -> bool:
    """Find a module without importing any part of it: a host never loads its agents' code."""
    top, *below = module.split(".")
    spec, name = find_spec(top), top
    for part in below:
        if spec is None or spec.submodule_search_locations is None:
            return False
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, spec.submodule_search_locations)
    return spec is not None
