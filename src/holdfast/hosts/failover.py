"""Agents whose host is gone find another: every host looks, and each agent goes to one of them.

Invariant: after Redis was away, nobody is declared dead before it had the time to say that it lives.
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
    from holdfast.hosts.engine import Engine
    from holdfast.hosts.host import Host
    from holdfast.hosts.registry import Homeless, Registry

_LOOK_SECONDS: Final = 1.0
_LOOKS_PER_TTL: Final = 12
_AT_ONCE: Final = 8
"""How many one host places at a time: others look too."""

_log = get_logger(__name__)


class Rescue:
    """Place what has no host; with ``bound_only`` it only forgets what has ended with its own."""

    def __init__(self, registry: Registry, engine: Engine, host: Host, *, bound_only: bool = False) -> None:
        self._registry = registry
        self._engine = engine
        self._host = host
        self._bound_only = bound_only
        self._outages = redis_outages("placing of agents whose hosts have died")

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            try:
                with self._outages:
                    calm = await self._is_calm()
                    if calm or not self._bound_only:
                        await self.run_once(free_only=not calm)
            except TROUBLE as exc:
                self._host.disturbed()  # guard: failed-look-disturbs
                if not isinstance(exc, DISCONNECTS):
                    _log.error("the registry refuses a call: is a key of it damaged?", error=str(exc))

    async def _is_calm(self) -> bool:
        """Look whether everybody else had the time to renew since Redis was away, or since we stood still."""
        ttl = self._registry.ttl_seconds
        pause = min(_LOOK_SECONDS, ttl / _LOOKS_PER_TTL)
        before = time.time()  # not the monotonic clock: it stands still while a machine sleeps
        await asyncio.sleep(pause)
        await self._registry.answers()
        if abs(time.time() - before) > pause + ttl / 4:
            self._host.disturbed()  # guard: paused-host-disturbs
        # Renewals are a third of the ttl apart.
        return self._host.calm_seconds >= ttl / 2  # guard: calm-before-reclaim

    async def run_once(self, *, free_only: bool = False) -> int:
        """Place what has no host now, or only what nobody has to be declared dead for; return how many."""
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
            # It stays in the table: whoever looks when this try's time is over tries again.
            self._count("no_host")
            _log.warning("an agent has no host", agent_id=homeless.agent_id, error=str(exc))
        except (ProcessFailed, InputError, AppError) as exc:
            self._count("failed")
            _log.error("an agent can't be started again", agent_id=homeless.agent_id, error=str(exc))
        except HoldfastError as exc:
            self._count("failed")
            _log.warning("an agent could not be placed", agent_id=homeless.agent_id, error=str(exc))
        except (ValueError, msgspec.MsgspecError) as exc:  # guard: unreadable-agent-record
            # Somebody wrote it by hand: that must not end all hosts, one after the other.
            self._count("failed")
            _log.error("an agent's record can't be read", agent_id=homeless.agent_id, error=str(exc))
        else:
            self._count("placed")
            _log.info(
                "an agent was placed again",
                agent_id=homeless.agent_id,
                was_on=homeless.host,
                seconds=round(time.monotonic() - began, 3),
            )

    def _count(self, status: str) -> None:
        self._host.metrics.host_rescued.labels(status).inc()
