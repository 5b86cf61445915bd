"""``AgentPlacementService``: which host gets the next agent, for programs without an event loop.

It chooses as an engine does, among the hosts of the same directory and with the same round-robin counter.
"""

# redis-py types its commands for both kinds of client at once.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from holdfast.config import HostSettings
from holdfast.errors import NoHost
from holdfast.hosts.agent import Needs
from holdfast.hosts.directory import KIND, asked_directory, hosts_among
from holdfast.hosts.placement import order, strategy_named, why_not
from holdfast.redis.keys import HostKeys, member_key, members_key
from holdfast.redis.members import Member

if TYPE_CHECKING:
    import redis

    from holdfast.hosts.placement import HostLoad, Strategy


class AgentPlacementService:
    """Chooses hosts. ``strategy`` is a name or a function (:class:`~holdfast.hosts.placement.Strategy`).

    ``settings.directory`` is where it finds hosts: heartbeats in Redis, a list, DNS, Kubernetes.
    """

    def __init__(
        self,
        redis_client: redis.Redis,
        settings: HostSettings | None = None,
        *,
        strategy: str | Strategy = "",
        key_prefix: str = "",
    ) -> None:
        self.redis = redis_client
        self.settings = settings or HostSettings()
        chosen = strategy or self.settings.placement
        self._strategy = strategy_named(chosen) if isinstance(chosen, str) else chosen
        self._prefix = key_prefix
        self._counter = HostKeys.of(prefix=key_prefix, hash_tag=self.settings.hash_tag).counter

    def available_hosts(self) -> list[HostLoad]:
        """Return every live host that is not draining."""
        found = self._announced() if self.settings.directory == "redis" else self._looked_up()
        return sorted((host for host in found if not host.draining), key=lambda host: host.name)

    def rank_hosts(self, needs: Needs | None = None) -> list[HostLoad]:
        """Return the hosts that may take the next agent, best first; if one refuses, try the next."""
        return self._ranked(self.available_hosts(), needs or Needs())

    def select_host(self, needs: Needs | None = None) -> str:
        """Return the address of the host for the next agent; NoHost has the reason for each host."""
        hosts, needs = self.available_hosts(), needs or Needs()
        ranked = self._ranked(hosts, needs)
        if not ranked:
            raise NoHost(f"No host takes this agent: {why_not(hosts, needs)}.")
        return ranked[0].address

    def _ranked(self, hosts: list[HostLoad], needs: Needs) -> list[HostLoad]:
        turn: Any = self.redis.incr(self._counter)
        return order(self._strategy, hosts, needs, int(turn))

    def _announced(self) -> list[HostLoad]:
        names: Any = self.redis.zrange(members_key(prefix=self._prefix), 0, -1)
        members: list[Member] = []
        for kind, _, name in (_text(raw).partition(":") for raw in names):
            if kind == KIND:
                fields: Any = self.redis.hgetall(member_key(KIND, name, prefix=self._prefix))
                heartbeat = {_text(key): _text(value) for key, value in fields.items()}
                members += [Member(KIND, name, heartbeat)] if heartbeat else []
        return [host for _, host in hosts_among(members)]

    def _looked_up(self) -> list[HostLoad]:
        # On a thread of its own: the caller may run inside an event loop.
        with ThreadPoolExecutor(1, thread_name_prefix="holdfast-placement") as thread:
            return thread.submit(asyncio.run, self._look_up()).result()

    async def _look_up(self) -> list[HostLoad]:
        from holdfast.hosts.remote import RemoteCalls  # noqa: PLC0415  gRPC is an extra

        async with contextlib.AsyncExitStack() as stack:
            calls = RemoteCalls(self.settings)
            stack.push_async_callback(calls.close)
            directory = asked_directory(self.settings, calls)
            stack.push_async_callback(directory.close)
            return await directory.hosts()


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
