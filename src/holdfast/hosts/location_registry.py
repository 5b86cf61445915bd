"""``AgentLocationRegistry``: where agents run, for programs without an event loop, on the table of all hosts.

It reads what hosts say. What it registers itself is under a lease too, with the ttl of its heartbeats: no
host starts such an agent meanwhile. And it changes nothing about agents that hosts run.
"""

# redis-py types its commands for both kinds of client at once.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import Conflict, InputError
from holdfast.hosts.agent import checked
from holdfast.redis.keys import HostKeys
from holdfast.redis.scripts import load

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from holdfast.redis.scripts import Script

_REGISTER = load(__package__, "register")
_HEARTBEAT = load(__package__, "heartbeat")
_DEREGISTER = load(__package__, "deregister")
_SWEEP = load(__package__, "sweep")

_ADDRESS: Final = re.compile(r"(?P<host>[^\s/?#@]+):(?P<port>\d{1,5})")
_KEEP_MS: Final = 3_600_000
_SWEEP_AT_MOST: Final = 100


class AgentLocationRegistry:
    """Who is where. The client is a ``redis.Redis``, whether it decodes or not."""

    TTL_SECONDS: float = 60

    def __init__(self, redis_client: redis.Redis, *, key_prefix: str = "", hash_tag: str = "") -> None:
        self.redis = redis_client
        self.keys = HostKeys.of(prefix=key_prefix, hash_tag=hash_tag)
        keys = self.keys
        self._table = [keys.leases, keys.index, keys.record_prefix, keys.location_prefix, keys.host_prefix]

    def register(self, agent_id: str, host_address: str) -> None:
        """Say where an agent runs, until ``TTL_SECONDS`` after its last heartbeat.

        Registered again it moves. Raises :class:`~holdfast.errors.Conflict` for an agent that one of our own
        hosts runs elsewhere, or that they look for a host for.
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
            raise Conflict(f"agent {agent_id} {where}: only its hosts say where it is")

    def heartbeat(self, agent_id: str) -> bool:
        """Keep an agent for another ``TTL_SECONDS``; False if nobody finds it any more.

        One that our own hosts run is kept by them: it is only looked for.
        """
        return bool(self._run(_HEARTBEAT, agent_id, self._ttl_ms, _KEEP_MS))

    def get_location(self, agent_id: str) -> str | None:
        """Where an agent runs, as ``host:port``; one GET."""
        found: Any = self.redis.get(self.keys.location_prefix + agent_id)
        return None if found is None else _text(found)

    def deregister(self, agent_id: str) -> None:
        """Say that an agent runs no more; raises Conflict for one that our own hosts run: stop that."""
        word, at = self._run(_DEREGISTER, agent_id, _KEEP_MS)
        if _text(word) == "held":
            where = f"runs on {_text(at)}: stop it there" if at else "waits for a host: stop it"
            raise Conflict(f"agent {agent_id} {where}, then nobody finds it")

    def get_host_load(self) -> dict[str, int]:
        """How many agents each host has."""
        self._run(_SWEEP, _SWEEP_AT_MOST, _KEEP_MS)
        prefix = self.keys.host_prefix
        pattern = re.sub(r"([*?\[\]\\])", r"\\\1", prefix) + "*"
        keys: Iterator[Any] = self.redis.scan_iter(match=pattern, count=1000, _type="SET")
        found = {_text(key) for key in keys}
        loads = {key.removeprefix(prefix): int(self._command("SCARD", key)) for key in sorted(found)}
        return {host: count for host, count in loads.items() if count}

    def get_host_agents(self, hostname: str) -> list[str]:
        """The agents of a host, by its name."""
        found: Any = self._command("SMEMBERS", self.keys.host_prefix + hostname)
        return sorted(_text(each) for each in found)

    @property
    def _ttl_ms(self) -> int:
        return max(1, int(self.TTL_SECONDS * 1000))

    def _run(self, script: Script, *args: Any) -> Any:
        call: Any = self.redis.register_script(script.source)
        return call(keys=self._table, args=args)

    def _command(self, *words: Any) -> Any:
        answer: Any = self.redis.execute_command(*words)
        return answer


def _host(name: str) -> str:
    return name.removeprefix("[").removesuffix("]")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
