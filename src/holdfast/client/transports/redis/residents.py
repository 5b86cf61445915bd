"""Residents over Redis: what starts, stops or moves one also calls its host, which needs gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.client.residents import SentMessage
from holdfast.operations.residents import ResidentFilter
from holdfast.redis.translate import translate_errors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.operations import Operations
    from holdfast.views.hosts import HostView
    from holdfast.views.residents import Needs, ResidentRow, ResidentView


class RedisResidents:
    """The residents of one registry."""

    def __init__(self, operations: Operations, url: str) -> None:
        self._residents = operations.residents
        self._hosts = operations.hosts
        self._url = url

    async def list(self, filters: Mapping[str, str], limit: int) -> list[ResidentRow]:
        """Read up to ``limit`` residents, oldest first."""
        with translate_errors(self._url):
            return (await self._residents.first(ResidentFilter(**filters), limit)).residents

    async def get(self, resident_id: str) -> ResidentView:
        """Read one."""
        with translate_errors(self._url):
            return await self._residents.get(resident_id)

    async def start(self, resident_id: str, resident: str, made_with: Any, needs: Needs) -> ResidentView:
        """Start a resident; one that a tenant has started stays the tenant's."""
        with translate_errors(self._url):
            started, _ = await self._residents.start(resident_id, resident, made_with, needs=needs)
        return started

    async def stop(self, resident_id: str) -> ResidentView:
        """Stop a resident."""
        with translate_errors(self._url):
            return await self._residents.stop(resident_id)

    async def move(self, resident_id: str, to: str) -> ResidentView:
        """Move a resident to another host."""
        with translate_errors(self._url):
            return await self._residents.move(resident_id, to)

    async def send(self, resident_id: str, message: Any, key: str) -> SentMessage:
        """Put a message into a mailbox."""
        with translate_errors(self._url):
            sent, fresh = await self._residents.send(resident_id, message, idempotency_key=key)
        return SentMessage(sent.run_id, sent.queue, fresh)

    async def hosts(self) -> list[HostView]:
        """Read every live host."""
        with translate_errors(self._url):
            return (await self._hosts.list()).hosts
