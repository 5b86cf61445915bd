"""The residents as one caller may see them: a tenant's begin with its name, which the tenant never sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from starlette.exceptions import HTTPException

from holdfast.api.residentshapes import MailboxView, NeedsRequest, ResidentList, ResidentRow, ResidentView
from holdfast.errors import InputError
from holdfast.hosts.agent import Needs, checked
from holdfast.hosts.mailbox import mailbox_of
from holdfast.hosts.residents import (
    ENTRY,
    input_of,
    lives,
    missing,
    require_same,
    resident_agent,
    shown_status,
)
from holdfast.packages import missing_extra
from holdfast.runs.paging import read_cursor, write_cursor
from holdfast.runs.scope import scoped, unscoped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.api.residentshapes import ResidentRequest
    from holdfast.hosts.agent import Placed
    from holdfast.hosts.engine import Engine
    from holdfast.operations import Operations

_LOOKS: Final = 10
_LATEST: Final = 1 << 53


class Roster:
    """The residents of one caller."""

    def __init__(self, here: Operations) -> None:
        self.here = here
        self._registry = here.system.registry()

    async def find(self, resident_id: str) -> Placed:
        """The resident of that id, if the caller may see it; one that is being stopped is still there."""
        placed = await self._registry.get(checked(self._stored(resident_id)))
        # The same words whether it does not exist or belongs to another tenant.
        if placed is None or not (placed.wanted or placed.host) or not self._sees(placed):
            raise missing(resident_id)
        return placed

    async def list(self, wanted: Mapping[str, str], *, limit: int, cursor: str) -> ResidentList:
        """Read one page, oldest first; it may be short and yet not the last."""
        since, after = _place(cursor)
        rows: list[ResidentRow] = []
        for _ in range(_LOOKS):
            page = await self._registry.page(since, after, limit)
            for placed in page:
                since, after = round(placed.created_at * 1000), placed.agent.agent_id
                if self._fits(placed, wanted):
                    rows.append(ResidentRow(**self._fields(placed)))
                if len(rows) == limit:
                    return ResidentList(rows, write_cursor({"since": str(since), "after": after}))
            if len(page) < limit:
                return ResidentList(rows)
        return ResidentList(rows, write_cursor({"since": str(since), "after": after}))

    async def engine(self) -> Engine:
        """What starts, stops and moves residents; where the API lacks a part for that, it says so."""
        try:
            return await self.here.system.engine()
        except ModuleNotFoundError as exc:
            missing = missing_extra("this", exc.name or "grpc", "hosts")
            raise HTTPException(501, f"{missing} where the API runs") from exc

    async def start(self, wanted: ResidentRequest) -> tuple[Placed, bool]:
        """Start a resident; also returns whether it was not running before."""
        tenant = self.here.caller.tenant_for(wanted.tenant or "")
        needs = msgspec.convert(msgspec.to_builtins(wanted.needs), Needs)
        agent = resident_agent(
            scoped(tenant, wanted.id), wanted.resident, wanted.input, needs=needs, tenant=tenant
        )
        known = await self._registry.get(agent.agent_id)
        if known is not None and lives(known):
            require_same(known, agent, wanted.id)
        placed = await (await self.engine()).run(agent)
        require_same(placed, agent, wanted.id)
        return placed, not lives(known)

    async def view(self, placed: Placed) -> ResidentView:
        """Everything known of a resident."""
        agent = placed.agent
        mailbox = await self._mailbox(agent.agent_id) if agent.entry == ENTRY else None
        needs = msgspec.convert(msgspec.to_builtins(agent.needs), NeedsRequest)
        return ResidentView(**self._fields(placed), needs=needs, input=input_of(agent), mailbox=mailbox)

    def shown(self, placed: Placed) -> str:
        """The id of a resident for the caller."""
        return unscoped(self.here.caller.tenant, placed.agent.agent_id)

    def _stored(self, resident_id: str) -> str:
        return scoped(self.here.caller.tenant, resident_id)

    def _sees(self, placed: Placed) -> bool:
        return self.here.caller.sees(placed.agent.organization_id)

    def _fits(self, placed: Placed, wanted: Mapping[str, str]) -> bool:
        agent = placed.agent
        has = {
            "status": shown_status(placed)[0],
            "host": placed.host,
            "name": agent.name,
            "guild_id": agent.guild_id,
            "tenant": agent.organization_id,
        }
        fits = all(not wanted[field] or wanted[field] == value for field, value in has.items())
        return fits and self._sees(placed)

    def _fields(self, placed: Placed) -> dict[str, Any]:
        agent, operates = placed.agent, self.here.caller.operates
        status, error = shown_status(placed)
        return {
            "id": self.shown(placed),
            "name": agent.name,
            "entry": agent.entry,
            "tenant": agent.organization_id,
            "guild_id": agent.guild_id,
            "status": status,
            "host": placed.host,
            "address": placed.address if operates else "",
            "pid": placed.pid,
            "fence": placed.fence,
            "restarts": placed.restarts,
            # A traceback is of the operator's paths and code, and for them; its last line says what.
            "error": error if operates else error.strip().rpartition("\n")[2],
            "created_at": placed.created_at,
            "started_at": placed.started_at,
        }

    async def _mailbox(self, resident_id: str) -> MailboxView:
        queue = mailbox_of(resident_id)
        depth = await self.here.system.unlisted(queue).queue.depth()
        return MailboxView(queue, depth.undelivered + depth.due, depth.pending, depth.delayed, depth.dead)


def _place(cursor: str) -> tuple[int, str]:
    places = read_cursor(cursor, ("since", "after")) if cursor else {"since": "0"}
    since = places.get("since", "")
    if not (since.isascii() and since.isdigit() and int(since) < _LATEST):
        raise InputError(f"cursor {cursor[:80]!r} was not given out by a previous page of this list")
    return int(since), places.get("after", "")
