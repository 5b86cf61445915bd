"""Which host gets an agent: pure strategies that order live hosts, best first."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from holdfast.hosts.agent import Needs


class HostLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A host as its last heartbeat describes it."""

    name: str
    address: str
    agents: int = 0
    capacity: int = 100
    cpu: float = 0.0
    """Unreserved cores."""
    memory_mb: float = 0.0
    """Unreserved memory."""
    labels: tuple[str, ...] = ()
    holds: tuple[str, ...] = ()
    """Labels of the agents it holds."""
    draining: bool = False

    @property
    def density(self) -> float:
        """The share of the capacity that is used, from 0 to 1."""
        return self.agents / self.capacity if self.capacity > 0 else 1.0


class Strategy(Protocol):
    """A choice among hosts: any function like this is one (``hosts.placement = package.module:function``)."""

    def __call__(self, hosts: list[HostLoad], needs: Needs, turn: int, /) -> Iterable[HostLoad]:
        """Put hosts that may take an agent in order, best first; ``turn`` counts placements.

        The hosts are sorted by name. Hosts that are left out are not called.
        """
        ...


def order(strategy: str | Strategy, hosts: Sequence[HostLoad], needs: Needs, turn: int) -> list[HostLoad]:
    """Return the hosts that may take an agent, best first; ``turn`` counts placements."""
    fitting = sorted((host for host in hosts if fits(host, needs)), key=lambda host: host.name)
    choose = strategy_named(strategy) if isinstance(strategy, str) else strategy
    return list(choose(fitting, needs, turn))


def strategy_named(name: str) -> Strategy:
    """Return a built-in strategy, or the function that ``package.module:function`` names."""
    if name in _STRATEGIES:
        return _STRATEGIES[name]
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as exc:
        known = ", ".join(_STRATEGIES)
        raise ConfigError(f"hosts.placement = {name!r} is none of {known}, nor a function: {exc}.") from exc


def fits(host: HostLoad, needs: Needs) -> bool:
    """Whether a host may take an agent at all."""
    return (
        not host.draining
        and host.agents < host.capacity
        and set(needs.near) <= set(host.labels)
        and not set(needs.apart) & set(host.holds)
    )


def why_not(hosts: Sequence[HostLoad], needs: Needs) -> str:
    """Return why no host takes an agent."""
    if not hosts:
        return "there is no live host"
    ordered = sorted(hosts, key=lambda host: host.name)
    return "; ".join(f"{host.name}: {_refusal(host, needs)}" for host in ordered)


def _refusal(host: HostLoad, needs: Needs) -> str:
    if host.draining:
        return "it is draining"
    if host.agents >= host.capacity:
        return f"it is full ({host.agents} of {host.capacity})"
    if missing := set(needs.near) - set(host.labels):
        return f"it is not labelled {', '.join(sorted(missing))}"
    if present := set(needs.apart) & set(host.holds):
        return f"it holds {', '.join(sorted(present))}"
    return "it did not respond"


def _round_robin(hosts: list[HostLoad], needs: Needs, turn: int) -> list[HostLoad]:
    del needs
    at = turn % len(hosts) if hosts else 0
    return hosts[at:] + hosts[:at]


def _least_loaded(hosts: list[HostLoad], needs: Needs, turn: int) -> list[HostLoad]:
    # Equally loaded hosts take turns: a burst must not go to the first host until its next heartbeat.
    return sorted(_round_robin(hosts, needs, turn), key=lambda host: host.density)


def _resource_aware(hosts: list[HostLoad], needs: Needs, turn: int) -> list[HostLoad]:
    """Hosts with enough resources first, by what they have left over; then the others, as a last resort."""

    def left(host: HostLoad) -> tuple[bool, float]:
        cpu, memory = host.cpu - needs.cpu, host.memory_mb - needs.memory_mb
        return cpu < 0 or memory < 0, -min(cpu, memory / _MB_PER_CORE)

    return sorted(_least_loaded(hosts, needs, turn), key=left)


_MB_PER_CORE: Final = 2048.0
"""The memory that weighs as much as one core."""
_STRATEGIES: Final[Mapping[str, Strategy]] = {
    "round-robin": _round_robin,
    "least-loaded": _least_loaded,
    "resource-aware": _resource_aware,
}
