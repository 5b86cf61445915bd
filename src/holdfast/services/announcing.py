"""The agents that a process with an app announces: names in its record, descriptions in the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.agents.catalogue import catalogue_of
from holdfast.redis.client import DISCONNECTS, REFUSALS
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from holdfast.agents.app import App
    from holdfast.redis.client import Redis
    from holdfast.redis.members import Members

_log = get_logger(__name__)


class AnnouncedAgents:
    """The agents of a process's app; described only if runs can be submitted to them."""

    def __init__(self, app: App | None, members: Members, *, described: bool = True) -> None:
        self._members = members
        self._catalogue = catalogue_of(app.agents) if app is not None and app.agents and described else None
        names = {"agents": ",".join(sorted(app.agents))} if app is not None else {}
        digest = {"catalogue": self._catalogue.digest} if self._catalogue is not None else {}
        self.fields = names | digest
        self._refused = False

    async def keep(self, redis: Redis) -> None:
        """Keep the catalogue in Redis; without it agents are listed by name, so an error is only logged."""
        if self._catalogue is None:
            return
        try:
            await self._members.keep_catalogue(redis, self._catalogue.digest, self._catalogue.data)
        except DISCONNECTS:
            return  # the next heartbeat tries again
        except REFUSALS as exc:  # guard: catalogue-refused
            if not self._refused:
                _log.warning(
                    "agents are listed without descriptions: the Redis user needs `~catalogue:*` in its ACL",
                    error=str(exc),
                )
            self._refused = True
