"""What a host needs to know of Rustic AI to run its agents: is it there, its entry, what to preload."""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.config import HostSettings

ENTRY: Final = "rustic"
PATH: Final = "holdfast.hosts.rustic.entry:run"
PREPARE: Final = ("holdfast.hosts.rustic.entry:prepare", "agents of Rustic AI")

_PRELOAD: Final = (
    "holdfast.hosts.rustic.entry",
    "holdfast.hosts.rustic.engine",  # a guild's manager has one, and calls hosts
    "holdfast.hosts.remote",
    "rustic_ai.core.agents.system.guild_manager_agent",
    "rustic_ai.core.agents.utils.user_proxy_agent",
    "rustic_ai.redis.messaging.backend",
    "rustic_ai.redis.state.manager",
    "encodings.idna",  # the first connection would import it
)


def is_offered(hosts: HostSettings) -> bool:
    """Whether agents of Rustic AI may run here: where it can be imported, unless the settings say no."""
    return hosts.rustic and _there("rustic_ai.core")


def preload() -> tuple[str, ...]:
    """The modules that every agent of Rustic AI uses, as far as they are installed."""
    return tuple(name for name in _PRELOAD if not name.startswith("rustic_ai.") or _there(name))


def _there(module: str) -> bool:
    """Look without importing anything of it: a host never has its agents' code in its own process."""
    top, *below = module.split(".")
    spec, name = find_spec(top), top
    for part in below:
        if spec is None or spec.submodule_search_locations is None:
            return False
        name = f"{name}.{part}"
        spec = PathFinder.find_spec(name, spec.submodule_search_locations)
    return spec is not None
