"""Places agents of dead hosts on live ones: every host polls, and each agent goes to one of them.

Invariant: after an outage of Redis no host is declared dead before it had the time to renew its leases.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import AppError, HoldfastError, InputError, NoHost, ProcessFailed
from holdfast.redis.client import DISCONNECTS, TROUBLE
from holdfast.redis.outages import redis_outages
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from holdfast.hosts.engine import HostEngine
    from holdfast.hosts.host import Host
    from holdfast.hosts.registry import AgentRegistry, Homeless

_POLL_SECONDS: Final = 1.0
_POLLS_PER_TTL: Final = 12
_AT_ONCE: Final = 8
"""How many agents one host places at a time: other hosts poll too."""

_log = get_logger(__name__)


class Rescue:
    """Places agents without a host; with ``bound_only`` it only removes agents that ended with their host."""

    def __init__(
        self, registry: AgentRegistry, engine: HostEngine, host: Host, *, bound_only: bool = False
    ) -> None:
        self._registry = registry
        self._engine = engine
        self._host = host
        self._bound_only = bound_only
        self._outages = redis_outages("placement of agents of dead hosts")

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            try:
                with self._outages:
                    stable = await self._is_stable()
                    if stable or not self._bound_only:
                        await self.run_once(free_only=not stable)
            except TROUBLE as exc:
                self._host.disturbed()  # guard: failed-look-disturbs
                if not isinstance(exc, DISCONNECTS):
                    _log.error("registry call rejected, possibly a damaged key", error=str(exc))

    async def _is_stable(self) -> bool:
        """Return whether all hosts had time to renew since an outage of Redis or a freeze of this process."""
        ttl = self._registry.ttl_seconds
        pause = min(_POLL_SECONDS, ttl / _POLLS_PER_TTL)
        before = time.time()  # the monotonic clock stops while a machine sleeps
        await asyncio.sleep(pause)
        await self._registry.answers()
        if abs(time.time() - before) > pause + ttl / 4:
            self._host.disturbed()  # guard: paused-host-disturbs
        # Renewals are a third of the ttl apart.
        return self._host.calm_seconds >= ttl / 2  # guard: calm-before-reclaim

    async def run_once(self, *, free_only: bool = False) -> int:
        """Place agents without a host, or only those for which no host is declared dead; return how many."""
        only: Final = "bound" if self._bound_only else "free" if free_only else ""
        homeless = await self._registry.reclaim(_AT_ONCE, only=only)
        await asyncio.gather(*(self._place(each) for each in homeless))
        return len(homeless)

    async def _place(self, homeless: Homeless) -> None:
        began = time.monotonic()
        try:
            placed = await self._registry.get(homeless.agent_id)
            if placed is None:
                return
            await self._engine.place(placed.agent, homeless.fence, avoid=homeless.host)
        except NoHost as exc:
            # The agent stays in the table: after the placing time another host tries again.
            self._count("no_host")
            _log.warning("no host for agent", agent_id=homeless.agent_id, error=str(exc))
        except (ProcessFailed, InputError, AppError) as exc:
            self._count("failed")
            _log.error("agent restart failed", agent_id=homeless.agent_id, error=str(exc))
        except HoldfastError as exc:
            self._count("failed")
            _log.warning("agent placement failed", agent_id=homeless.agent_id, error=str(exc))
        except (ValueError, msgspec.MsgspecError) as exc:  # guard: unreadable-agent-record
            # A record that was written by hand must not end all hosts, one after the other.
            self._count("failed")
            _log.error("agent record unreadable", agent_id=homeless.agent_id, error=str(exc))
        else:
            self._count("placed")
            _log.info(
                "agent placed on another host",
                agent_id=homeless.agent_id,
                was_on=homeless.host,
                seconds=round(time.monotonic() - began, 3),
            )

    def _count(self, status: str) -> None:
        self._host.metrics.host_rescued.labels(status).inc()
