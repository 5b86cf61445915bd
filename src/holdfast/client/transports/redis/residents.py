"""Residents over Redis: what starts, stops or moves one also calls its host, which needs gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.client.mail import letter
from holdfast.client.residents import MailboxInfo, ResidentInfo, Sent
from holdfast.hosts.agent import Status
from holdfast.hosts.factory import open_cluster, registry_of
from holdfast.hosts.mailbox import mailbox_of
from holdfast.hosts.residents import (
    ENTRY,
    input_of,
    missing,
    require_movable,
    require_resident,
    require_same,
    resident_agent,
    shown_status,
)
from holdfast.packages import needs_extra
from holdfast.redis.client import TROUBLE
from holdfast.redis.translate import translate_errors
from holdfast.runs.queue import RunQueue

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack

    from holdfast.client.residents import Wanted
    from holdfast.client.transports.redis.transport import RedisQueueClient
    from holdfast.config import Settings
    from holdfast.hosts.agent import Needs, Placed
    from holdfast.hosts.engine import Engine
    from holdfast.operations import Operations
    from holdfast.redis.client import Redis
    from holdfast.views.hosts import HostView

_PAGE = 200


class RedisResidents:
    """The residents of one registry."""

    def __init__(
        self,
        redis: Redis,
        settings: Settings,
        operations: Operations,
        queue: Callable[[str], RedisQueueClient],
        stack: AsyncExitStack,
    ) -> None:
        self._redis = redis
        self._settings = settings
        self._operations = operations
        self._url = settings.redis.url
        self._queue = queue
        self._stack = stack
        self._registry = registry_of(settings, redis)
        self._opened: Engine | None = None

    async def list(self, wanted: Wanted, limit: int) -> list[ResidentInfo]:
        """Read up to ``limit`` residents, oldest first."""
        found: list[ResidentInfo] = []
        since, after = 0, ""
        with translate_errors(self._url):
            while len(found) < limit:
                page = await self._registry.page(since, after, _PAGE)
                found += [info_of(placed) for placed in page if _fits(placed, wanted)]
                if len(page) < _PAGE:
                    break
                since, after = round(page[-1].created_at * 1000), page[-1].agent.agent_id
        return found[:limit]

    async def get(self, resident_id: str) -> ResidentInfo:
        """Read one."""
        return await self._shown(await self._find(resident_id))

    async def start(self, resident_id: str, resident: str, made_with: Any, needs: Needs) -> ResidentInfo:
        """Start a resident; one that a tenant has started stays the tenant's."""
        with translate_errors(self._url):
            there = await self._registry.get(resident_id)
            tenant = there.agent.organization_id if there and there.wanted else ""
            agent = resident_agent(resident_id, resident, made_with, needs=needs, tenant=tenant)
            placed = await self._engine().run(agent)
        require_same(placed, agent, resident_id)
        return await self._shown(placed)

    async def stop(self, resident_id: str) -> ResidentInfo:
        """Stop a resident."""
        placed, engine = await self._find(resident_id), self._engine()
        info = await self._shown(placed)
        with translate_errors(self._url):
            if not await engine.stop(resident_id):
                raise missing(resident_id)
        return msgspec.structs.replace(info, status=Status.STOPPED.value)

    async def move(self, resident_id: str, to: str) -> ResidentInfo:
        """Move a resident to another host."""
        placed, engine = await self._find(resident_id), self._engine()
        with translate_errors(self._url):
            await require_movable(engine, placed, to)
            moved = await engine.move(resident_id, to=to)
        return await self._shown(moved)

    async def send(self, resident_id: str, message: Any, key: str) -> Sent:
        """Put a message into a mailbox."""
        placed = await self._find(resident_id)
        require_resident(placed, resident_id)
        mailbox = self._queue(mailbox_of(resident_id))
        ticket = await mailbox.submit(letter(placed.agent, message, idempotency_key=key))
        return Sent(ticket.run_id, mailbox.name, ticket.fresh)

    async def hosts(self) -> list[HostView]:
        """Read every live host."""
        with translate_errors(self._url):
            return (await self._operations.hosts.list()).hosts

    async def _find(self, resident_id: str) -> Placed:
        with translate_errors(self._url):
            placed = await self._registry.get(resident_id)
        if placed is None or not (placed.wanted or placed.host):
            raise missing(resident_id)
        return placed

    async def _shown(self, placed: Placed) -> ResidentInfo:
        """One resident with its mailbox; without, if it has none or its mailbox can't be read now.

        A resident that was started or moved is one also while the server of its mailbox does not answer.
        """
        if placed.agent.entry != ENTRY:
            return info_of(placed)
        name = mailbox_of(placed.agent.agent_id)
        # Not a queue that the client keeps: it would keep one for each resident that it has ever read.
        queue = RunQueue(
            self._settings.queue_named(name), self._redis, prefix=self._settings.redis.key_prefix
        )
        try:
            depth = await queue.depth()
        except TROUBLE:
            return info_of(placed)
        waiting = depth.undelivered + depth.due
        return info_of(placed, MailboxInfo(name, waiting, depth.pending, depth.delayed, depth.dead))

    def _engine(self) -> Engine:
        if self._opened is None:
            with needs_extra("starting, stopping or moving residents", "hosts"):
                self._opened = open_cluster(self._settings, self._redis)
            self._stack.push_async_callback(self._opened.close)
        return self._opened


def info_of(placed: Placed, mailbox: MailboxInfo | None = None) -> ResidentInfo:
    """A resident as a client sees it."""
    agent = placed.agent
    status, error = shown_status(placed)
    return ResidentInfo(
        id=agent.agent_id,
        name=agent.name,
        entry=agent.entry,
        tenant=agent.organization_id,
        guild_id=agent.guild_id,
        status=status,
        host=placed.host,
        address=placed.address,
        pid=placed.pid,
        fence=placed.fence,
        restarts=placed.restarts,
        error=error,
        created_at=placed.created_at,
        started_at=placed.started_at,
        input=input_of(agent),
        needs=agent.needs,
        mailbox=mailbox,
    )


def _fits(placed: Placed, wanted: Wanted) -> bool:
    has = {"status": shown_status(placed)[0], "host": placed.host, "name": placed.agent.name}
    return all(value in {"", has[field]} for field, value in msgspec.structs.asdict(wanted).items())
