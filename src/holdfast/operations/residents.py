"""Residents: long-lived agents on hosts. A tenant's begin with its name, which the tenant never sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.errors import InputError
from holdfast.hosts.agent import AgentStatus, checked
from holdfast.hosts.mailbox import RECEIVE, mailbox_of, thread_of
from holdfast.hosts.residents import (
    ENTRY,
    checked_status,
    input_of,
    lives,
    missing,
    require_alive,
    require_movable,
    require_resident,
    require_same,
    resident_agent,
    shown_status,
)
from holdfast.operations.caller import OPERATE, READ, SUBMIT
from holdfast.operations.runs import RunOperations
from holdfast.redis.client import TROUBLE
from holdfast.runs.paging import read_cursor, write_cursor
from holdfast.runs.queue import RunQueue
from holdfast.runs.run import Submission
from holdfast.runs.scope import scoped, unscoped
from holdfast.views.residents import MailboxView, MessageView, ResidentList, ResidentRow, ResidentView

if TYPE_CHECKING:
    import asyncio

    from holdfast.hosts.agent import Needs, Placed
    from holdfast.operations.caller import Caller
    from holdfast.operations.system import System

_PAGE: Final = 200
"""How many residents are read at once where not all of them match."""
_PAGES_MOST: Final = 10
"""How many pages of the registry are read for one page of matching residents."""
_LATEST_MS: Final = 1 << 53


class ResidentFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which residents are wanted; an empty field is any."""

    status: str = ""
    host: str = ""
    name: str = ""
    guild_id: str = ""
    tenant: str = ""


class ResidentOperations:
    """What one caller can ask of residents."""

    def __init__(self, system: System, caller: Caller) -> None:
        self._system = system
        self._caller = caller
        self._registry = system.registry()

    # -- reading

    async def list(self, wanted: ResidentFilter, *, limit: int = 50, cursor: str = "") -> ResidentList:
        """Read a page of residents, oldest first; it may be short and yet not the last."""
        self._caller.require(READ)
        checked_status(wanted.status)
        since_ms, after = _position(cursor)
        every = not self._caller.tenant and wanted == ResidentFilter()
        size = min(limit, _PAGE) if every else _PAGE
        rows: list[ResidentRow] = []
        for _ in range(_PAGES_MOST):
            page = await self._registry.page(since_ms, after, size)
            for placed in page:
                since_ms, after = round(placed.created_at * 1000), placed.agent.agent_id
                if self._sees(placed) and _matches(placed, wanted):
                    rows.append(self._row(placed))
                if len(rows) == limit:
                    return ResidentList(rows, _cursor(since_ms, after))
            if len(page) < size:
                return ResidentList(rows)
        return ResidentList(rows, _cursor(since_ms, after))

    async def first(self, wanted: ResidentFilter, limit: int) -> ResidentList:
        """Read the first ``limit`` residents that match, however many pages that takes."""
        page = await self.list(wanted, limit=limit)
        rows, cursor = page.residents, page.cursor
        while cursor and len(rows) < limit:
            page = await self.list(wanted, limit=limit - len(rows), cursor=cursor)
            rows, cursor = [*rows, *page.residents], page.cursor
        return ResidentList(rows, cursor)

    async def get(self, resident_id: str) -> ResidentView:
        """Read a resident: its host, what it was made with, and how full its mailbox is."""
        self._caller.require(READ)
        return await self._view(await self._find(resident_id))

    # -- starting, moving and stopping

    async def start(
        self, resident_id: str, resident: str, made_with: Any, *, needs: Needs, tenant: str = ""
    ) -> tuple[ResidentView, bool]:
        """Start a resident; return it, and False if the same one was running already."""
        self._caller.require(OPERATE)
        tenant = self._caller.tenant_for(tenant)
        agent_id = checked(scoped(tenant, resident_id))
        known = await self._registry.get(agent_id)
        if not tenant and known is not None and known.wanted:
            tenant = known.agent.organization_id  # one that a tenant has started stays the tenant's
        agent = resident_agent(agent_id, resident, made_with, needs=needs, tenant=tenant)
        if known is not None and lives(known):
            require_same(known, agent, resident_id)
        placed = await (await self._system.engine()).run(agent)
        require_same(placed, agent, resident_id)
        return await self._view(placed), not lives(known)

    async def move(self, resident_id: str, to: str = "") -> ResidentView:
        """Move a resident to another host: it stops, then starts there, so that there are never two."""
        self._caller.require(OPERATE)
        if to:
            self._caller.require_every_tenant()  # which hosts there are is no tenant's business
        placed = await self._find(resident_id)
        engine = await self._system.engine()
        await require_movable(engine, placed, to)
        return await self._view(await engine.move(placed.agent.agent_id, to=to))

    async def stop(self, resident_id: str) -> ResidentView:
        """Stop a resident; return it as ``stopped``, with the host it ran on. Its mailbox and state stay."""
        self._caller.require(OPERATE)
        placed = await self._find(resident_id)
        view = await self._view(placed)
        if not await (await self._system.engine()).stop(placed.agent.agent_id):
            raise missing(resident_id)
        return msgspec.structs.replace(view, status=AgentStatus.STOPPED.value)

    # -- messages

    async def send(
        self, resident_id: str, message: Any, *, expects_reply: bool = False, **options: Any
    ) -> tuple[MessageView, bool]:
        """Put a message into a mailbox; return it, and False if its idempotency key was used before.

        A crashed resident takes messages, but no one that ``expects_reply``. ``options`` are those of a
        Submission. The run belongs to the resident's tenant, whoever sends it.
        """
        self._caller.require(SUBMIT)
        placed = await self._find(resident_id)
        require_resident(placed, resident_id)
        if expects_reply:
            require_alive(placed.status, placed.error, resident_id)
        agent = placed.agent
        mailbox = self._system.unlisted(mailbox_of(agent.agent_id))
        submission = Submission(
            agent=RECEIVE,
            input=message,
            thread_id=thread_of(agent.agent_id),
            tenant=agent.organization_id,
            **options,
        )
        ticket = await mailbox.sender.submit(submission)
        sent = MessageView(resident_id, ticket.run_id, mailbox.queue.name, ticket.status.value)
        return sent, ticket.fresh

    async def reply(
        self, sent: MessageView, *, wait_seconds: float = 0, stopping: asyncio.Event | None = None
    ) -> MessageView:
        """Read what became of a message; wait for its reply, but not longer than this process stays."""
        self._caller.require(SUBMIT)
        runs = RunOperations(self._system, self._caller)
        found = await runs.find(sent.run_id, sent.queue)
        # A message that was sent before under its key may be in the archive only.
        run = found[1] if found else await runs.archived(sent.run_id, sent.queue)
        if found and wait_seconds and not run.status.ended:
            run = await runs.wait(*found, wait_seconds, stopping)
        done = runs.result_of(run)
        return msgspec.structs.replace(sent, status=done.status, result=done.result, error=done.error)

    # -- where a resident is

    async def _find(self, resident_id: str) -> Placed:
        """Return a resident that the caller sees; one that is being stopped is still there."""
        placed = await self._registry.get(checked(scoped(self._caller.tenant, resident_id)))
        # The same words whether it does not exist or belongs to another tenant.
        if placed is None or not (placed.wanted or placed.host) or not self._sees(placed):
            raise missing(resident_id)
        return placed

    def _sees(self, placed: Placed) -> bool:
        return self._caller.sees(placed.agent.organization_id)

    # -- views

    def _row(self, placed: Placed) -> ResidentRow:
        agent, operates = placed.agent, self._caller.operates
        status, error = shown_status(placed)
        return ResidentRow(
            id=unscoped(self._caller.tenant, agent.agent_id),
            name=agent.name,
            entry=agent.entry,
            tenant=agent.organization_id,
            guild_id=agent.guild_id,
            status=status,
            host=placed.host,
            address=placed.address if operates else "",
            pid=placed.pid,
            fence=placed.fence,
            restarts=placed.restarts,
            # A traceback has the operator's paths and code: others read its last line, the error itself.
            error=error if operates else error.strip().rpartition("\n")[2],
            created_at=placed.created_at,
            started_at=placed.started_at,
        )

    async def _view(self, placed: Placed) -> ResidentView:
        agent = placed.agent
        return ResidentView(
            **msgspec.structs.asdict(self._row(placed)),
            needs=agent.needs,
            input=input_of(agent),
            mailbox=await self._mailbox(agent.agent_id) if agent.entry == ENTRY else None,
        )

    async def _mailbox(self, agent_id: str) -> MailboxView | None:
        """Read how full a mailbox is; in a cluster its server may fail while the registry's answers."""
        settings, name = self._system.settings, mailbox_of(agent_id)
        # Not from the system, which may keep each queue that it opens: there is one for each resident.
        queue = RunQueue(settings.queue_named(name), self._system.redis, prefix=settings.redis.key_prefix)
        try:
            depth = await queue.depth()
        except TROUBLE:
            return None
        return MailboxView(name, depth.undelivered + depth.due, depth.pending, depth.delayed, depth.dead)


def _matches(placed: Placed, wanted: ResidentFilter) -> bool:
    agent = placed.agent
    has = ResidentFilter(
        status=shown_status(placed)[0],
        host=placed.host,
        name=agent.name,
        guild_id=agent.guild_id,
        tenant=agent.organization_id,
    )
    fields = ResidentFilter.__struct_fields__
    return all(getattr(wanted, field) in {"", getattr(has, field)} for field in fields)


def _cursor(since_ms: int, after: str) -> str:
    return write_cursor({"since": str(since_ms), "after": after})


def _position(cursor: str) -> tuple[int, str]:
    places = read_cursor(cursor, ("since", "after")) if cursor else {"since": "0"}
    since = places.get("since", "")
    if not (since.isascii() and since.isdigit() and int(since) < _LATEST_MS):
        raise InputError(f"cursor {cursor[:80]!r} was not given out by a previous page of this list")
    return int(since), places.get("after", "")
