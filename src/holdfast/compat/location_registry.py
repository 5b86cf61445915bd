"""``AgentLocationRegistry``: where agents run, for programs without an event loop, on the hosts' own table.

It reads what hosts have registered. An agent that it registers itself has a lease too, with the ttl of its
heartbeats, so no host starts a second copy. It changes nothing about agents that hosts run.
"""

# redis-py types its commands for both kinds of client at once.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from holdfast import hosts
from holdfast.errors import Conflict, InputError
from holdfast.hosts.agent import checked
from holdfast.redis.keys import HostKeys
from holdfast.redis.scripts import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from holdfast.redis.scripts import Script

_REGISTER = load(hosts.__name__, "register")
_HEARTBEAT = load(hosts.__name__, "heartbeat")
_DEREGISTER = load(hosts.__name__, "deregister")
_SWEEP = load(hosts.__name__, "sweep")

_ADDRESS: Final = re.compile(r"(?P<host>[^\s/?#@]+):(?P<port>\d{1,5})")
_KEEP_MS: Final = 3_600_000
_SWEEP_AT_MOST: Final = 100


class AgentLocationRegistry:
    """Locations of agents. ``redis_client`` is a ``redis.Redis``, with or without ``decode_responses``."""

    TTL_SECONDS: float = 60

    def __init__(self, redis_client: redis.Redis, *, key_prefix: str = "", hash_tag: str = "") -> None:
        self.redis = redis_client
        self.keys = HostKeys.of(prefix=key_prefix, hash_tag=hash_tag)
        keys = self.keys
        self._table = [keys.leases, keys.index, keys.record_prefix, keys.location_prefix, keys.host_prefix]

    def register(self, agent_id: str, host_address: str) -> None:
        """Register where an agent runs, until ``TTL_SECONDS`` after its last heartbeat.

        Registering it again moves it. Raises :class:`~holdfast.errors.Conflict` for an agent that a host runs
        or that is being placed on one.
        """
        found = _ADDRESS.fullmatch(host_address)
        if found is None:
            raise InputError(f"{host_address!r} is not the address of a host: give host:port")
        self._run(_SWEEP, _SWEEP_AT_MOST, _KEEP_MS)
        word, at = self._run(
            _REGISTER, _host(found["host"]), host_address, self._ttl_ms, checked(agent_id), _KEEP_MS
        )
        if _text(word) == "held":
            where = f"runs on {_text(at)}" if at else "waits for a host"
            raise Conflict(f"agent {agent_id} {where}: its location is registered by its host")

    def heartbeat(self, agent_id: str) -> bool:
        """Keep an agent for another ``TTL_SECONDS``; return False if it is not registered any more.

        A host renews its agents itself: for those this only returns whether they are registered.
        """
        return bool(self._run(_HEARTBEAT, agent_id, self._ttl_ms, _KEEP_MS))

    def get_location(self, agent_id: str) -> str | None:
        """Return where an agent runs, as ``host:port``; one GET."""
        found: Any = self.redis.get(self.keys.location_prefix + agent_id)
        return None if found is None else _text(found)

    def deregister(self, agent_id: str) -> None:
        """Deregister an agent; raises Conflict for one that a host runs, which must be stopped instead."""
        word, at = self._run(_DEREGISTER, agent_id, _KEEP_MS)
        if _text(word) == "held":
            where = f"runs on {_text(at)}: stop it there" if at else "waits for a host: stop it"
            raise Conflict(f"agent {agent_id} {where}, which deregisters it")

    def get_host_load(self) -> dict[str, int]:
        """Return the number of agents of each host."""
        self._run(_SWEEP, _SWEEP_AT_MOST, _KEEP_MS)
        prefix = self.keys.host_prefix
        pattern = re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + "*"
        keys: Iterator[Any] = self.redis.scan_iter(match=pattern, count=1000, _type="SET")
        found = {_text(key) for key in keys}
        loads = {key.removeprefix(prefix): int(self._command("SCARD", key)) for key in sorted(found)}
        return {host: count for host, count in loads.items() if count}

    def get_host_agents(self, hostname: str) -> list[str]:
        """Return the agents of a host, by its name."""
        found: Any = self._command("SMEMBERS", self.keys.host_prefix + hostname)
        return sorted(_text(each) for each in found)

    @property
    def _ttl_ms(self) -> int:
        return max(1, int(self.TTL_SECONDS * 1000))

    def _run(self, script: Script, *args: Any) -> Any:
        call: Any = self.redis.register_script(script.source)
        return call(keys=self._table, args=args)

    def _command(self, *words: Any) -> Any:
        reply: Any = self.redis.execute_command(*words)
        return reply


def _host(name: str) -> str:
    return name.removeprefix("[").removesuffix("]")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
