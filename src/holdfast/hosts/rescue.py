"""Agents whose host is gone find another: every host looks, and each agent goes to one of them.

Invariant: after Redis was away, nobody is declared dead before it had the time to say that it lives.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from holdfast.errors import AppError, HoldfastError, InputError, NoHost, ProcessFailed
from holdfast.redis.client import TROUBLE
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from holdfast.hosts.engine import Engine
    from holdfast.hosts.host import Host
    from holdfast.hosts.registry import Homeless, Registry

_LOOK_SECONDS: Final = 1.0
_AT_ONCE: Final = 8
"""How many one host places at a time: others look too."""

_log = get_logger(__name__)


class Rescue:
    """Places what has no host."""

    def __init__(self, registry: Registry, engine: Engine, host: Host) -> None:
        self._registry = registry
        self._engine = engine
        self._host = host

    async def run(self) -> None:
        """Look again and again until cancelled."""
        pause = min(_LOOK_SECONDS, self._registry.ttl_seconds / 4)
        while True:
            await asyncio.sleep(pause)
            try:
                if self._host.calm_seconds >= self._registry.ttl_seconds / 3:
                    await self.run_once()
            except TROUBLE as exc:
                _log.warning("the registry does not answer", error=str(exc))

    async def run_once(self) -> int:
        """Place what has no host now; return how many were taken."""
        homeless = await self._registry.reclaim(_AT_ONCE)
        await asyncio.gather(*(self._place(each) for each in homeless))
        return len(homeless)

    async def _place(self, homeless: Homeless) -> None:
        placed = await self._registry.get(homeless.agent_id)
        if placed is None:
            return
        began = time.monotonic()
        try:
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
