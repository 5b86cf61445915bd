"""Residents, which are long-lived agents, as a client sees them: start, read, message, move and stop them."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast.client.handle import RunHandle
from holdfast.client.request import seconds_of
from holdfast.errors import InputError
from holdfast.hosts.agent import checked
from holdfast.hosts.residents import checked_status, require_alive
from holdfast.views.residents import Needs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.client.request import Duration
    from holdfast.client.transport import Transport
    from holdfast.views.hosts import HostView
    from holdfast.views.residents import ResidentRow, ResidentView


class SentMessage(msgspec.Struct, frozen=True):
    """A message that is in a mailbox: a run of that queue."""

    run_id: str
    queue: str
    fresh: bool = True


class ResidentTransport(Protocol):
    """What a transport can do with residents."""

    async def list(self, filters: Mapping[str, str], limit: int) -> list[ResidentRow]:
        """Read up to ``limit`` residents, oldest first; filters that are empty match any."""
        ...

    async def get(self, resident_id: str) -> ResidentView:
        """Read one."""
        ...

    async def start(self, resident_id: str, resident: str, made_with: Any, needs: Needs) -> ResidentView:
        """Start a resident."""
        ...

    async def stop(self, resident_id: str) -> ResidentView:
        """Stop a resident; return it as ``stopped``, with the host it ran on."""
        ...

    async def move(self, resident_id: str, to: str) -> ResidentView:
        """Move a resident to another host."""
        ...

    async def send(self, resident_id: str, message: Any, key: str) -> SentMessage:
        """Put a message into a mailbox; the same key again is the same message."""
        ...

    async def hosts(self) -> list[HostView]:
        """Read every live host."""
        ...


class ClientResidents:
    """``client.residents``: the long-lived agents of the system, which live on hosts."""

    def __init__(self, transport: Callable[[], Transport]) -> None:
        self._transport = transport

    async def start(
        self,
        resident: str,
        resident_id: str,
        input: Any = None,  # noqa: A002 - it is called so everywhere else
        *,
        needs: Needs | None = None,
    ) -> ResidentView:
        """Start a resident; returns when it can receive. The same again is the same resident."""
        return await self._residents().start(checked(resident_id), resident, input, needs or Needs())

    async def stop(self, resident_id: str) -> ResidentView:
        """Stop a resident; return it as ``stopped``, with the host it ran on. Its mailbox and state stay."""
        return await self._residents().stop(checked(resident_id))

    async def move(self, resident_id: str, *, to: str = "") -> ResidentView:
        """Move a resident to another host: the one that is named, or the best one."""
        return await self._residents().move(checked(resident_id), to)

    async def get(self, resident_id: str) -> ResidentView:
        """Read where a resident is."""
        return await self._residents().get(checked(resident_id))

    async def send(self, resident_id: str, message: Any, *, idempotency_key: str = "") -> RunHandle:
        """Put a message into a resident's mailbox; the handle's result is what ``receive`` returns."""
        sent = await self._residents().send(
            checked(resident_id), message, idempotency_key or uuid.uuid4().hex
        )
        return RunHandle(sent.run_id, self._transport().queue(sent.queue), fresh=sent.fresh)

    async def ask(self, resident_id: str, message: Any, timeout: Duration | None = 30.0) -> Any:
        """Send a message and wait for what ``receive`` returns; raises at once if it has crashed."""
        patience = None if timeout is None else seconds_of("timeout", timeout)
        known = await self.get(resident_id)
        require_alive(known.status, known.error, resident_id)
        return await (await self.send(resident_id, message)).result(patience)

    async def hosts(self) -> list[HostView]:
        """Read every live host, by name."""
        return await self._residents().hosts()

    async def list(
        self, *, status: str = "", host: str = "", name: str = "", limit: int = 100
    ) -> list[ResidentRow]:
        """Read up to ``limit`` residents, oldest first: those in a status, on a host or of a name."""
        if limit < 1:
            raise InputError(f"limit must be at least 1, got {limit}")
        filters = {"status": checked_status(status), "host": host, "name": name}
        return await self._residents().list(filters, limit)

    def _residents(self) -> ResidentTransport:
        return self._transport().residents()
