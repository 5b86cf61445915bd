"""Residents for client programs: start, stop, list, send a message, ask and wait for the reply."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.client.client import Client
from holdfast.errors import ConfigError, NotFound
from holdfast.hosts.agent import checked
from holdfast.hosts.mailbox import RECEIVE, mailbox_of, thread_of
from holdfast.hosts.residents import ENTRY, require_alive, resident_agent
from holdfast.redis.client import connect
from holdfast.redis.locate import located
from holdfast.services.entries import engine_of

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from holdfast.config import Settings
    from holdfast.hosts.agent import Needs, Placed


class Residents:
    """Used as ``async with Residents(settings) as residents``.

    With ``hosts.engine = "local"`` the residents of ``app`` (``package.module:app``) run in processes of this
    program, and end with it.
    """

    def __init__(self, settings: Settings, app: str = "") -> None:
        settings = located(settings)
        self._settings = settings
        self._lacks_app = settings.hosts.engine == "local" and not app
        self._redis = connect(settings.redis)
        self.engine = engine_of(settings, self._redis, app)
        self._client = Client(settings=msgspec.structs.replace(settings, client=_over_redis(settings)))
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._stack.push_async_callback(self._redis.aclose)
        self._stack.push_async_callback(self.engine.close)
        await self._stack.enter_async_context(self._client)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, exc, trace)

    async def start(
        self,
        resident: str,
        agent_id: str,
        input: Any = None,  # noqa: A002 - the name in the API and the CLI
        *,
        needs: Needs | None = None,
    ) -> Placed:
        """Start a resident; return when it is ready. A resident that runs already is not changed."""
        if self._lacks_app:
            raise ConfigError(
                "hosts.engine is local, so residents run in the program that starts them: pass their app, "
                "as in Residents(settings, app='package.module:app')."
            )
        return await self.engine.run(resident_agent(agent_id, resident, input, needs=needs))

    async def stop(self, agent_id: str) -> bool:
        """Stop a resident; return False if there is none. Its mailbox is kept for its next start."""
        return await self.engine.stop(agent_id)

    async def list(self) -> list[Placed]:
        """Return the residents and their hosts."""
        return [each async for each in self.engine.registry.all() if each.agent.entry == ENTRY]

    async def send(self, agent_id: str, message: Any) -> str:
        """Put a message into a resident's mailbox, also if it has crashed; return the message's id."""
        return (await self._submit(await self._known(agent_id), message)).run_id

    async def ask(self, agent_id: str, message: Any, timeout: float = 30.0) -> Any:
        """Send a message and wait for the result of ``receive``; raises at once if the agent has crashed."""
        placed = await self._known(agent_id)
        require_alive(placed.status, placed.error, agent_id)
        return await (await self._submit(placed, message)).result(timeout)

    async def _known(self, agent_id: str) -> Placed:
        placed = await self.engine.registry.get(checked(agent_id))
        if placed is None or not placed.wanted or placed.agent.entry != ENTRY:
            raise NotFound(f"There is no resident {agent_id}: start it first.")
        return placed

    async def _submit(self, placed: Placed, message: Any) -> Any:
        agent_id = placed.agent.agent_id
        return await self._client.submit(
            RECEIVE,
            message,
            queue=mailbox_of(agent_id),
            thread_id=thread_of(agent_id),
            tenant=placed.agent.organization_id,
        )


def _over_redis(settings: Settings) -> Any:
    return msgspec.structs.replace(settings.client, url="")
