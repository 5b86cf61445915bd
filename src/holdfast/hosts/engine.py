"""The engine: runs, stops, moves and locates agents on the live hosts.

::

    run   want (Redis) ─> hosts, best first ─> CreateAgent ─> running
                              │ full, unavailable, too slow: the next host
    stop  unwant (Redis): no location from here on ─> StopAgent at its host

Invariant: the agent is recorded as wanted before a host is called. If the engine dies in between, the host
that reclaims the agent places it. A host is called under the fence that was read, so that a call whose reply
was lost can be repeated without starting a second copy.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from holdfast.errors import (
    AgentRefused,
    AppError,
    Conflict,
    HostUnavailable,
    InputError,
    NoHost,
    PayloadTooLarge,
    ProcessFailed,
)
from holdfast.hosts.agent import AgentStatus
from holdfast.hosts.placement import order, strategy_named, why_not
from holdfast.hosts.transport import CallFailed, Trouble
from holdfast.processes.wire import MAX_PAYLOAD_BYTES
from holdfast.telemetry.logs import get_logger  # guard: engine-imports-no-grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.config import HostSettings
    from holdfast.hosts.agent import Agent, Placed
    from holdfast.hosts.directory import Directory
    from holdfast.hosts.placement import HostLoad
    from holdfast.hosts.registry import AgentRegistry, WantReply
    from holdfast.hosts.transport import HostCalls

MAX_AGENT_BYTES: Final = MAX_PAYLOAD_BYTES // 2
"""The largest payload that a host accepts."""
_RELEASE_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.05
"""How often the registry is polled while another caller places the agent."""

_log = get_logger(__name__)


class HostEngine:
    """Runs agents on hosts."""

    def __init__(
        self, registry: AgentRegistry, directory: Directory, calls: HostCalls, settings: HostSettings
    ) -> None:
        self.registry = registry
        self._directory = directory
        self._calls = calls
        self._settings = settings
        self._strategy = strategy_named(settings.placement)

    async def run(self, agent: Agent) -> Placed:
        """Run an agent; return when it is ready. An agent that runs already is not changed."""
        if len(agent.payload) > MAX_AGENT_BYTES:  # guard: agent-payload-limit
            raise PayloadTooLarge(
                f"agent {agent.agent_id} has {len(agent.payload)} bytes: {MAX_AGENT_BYTES} at most"
            )
        wanted = await self._wanted(agent)
        if wanted.new:
            try:
                await self.place(agent, wanted.fence)
            except (InputError, AppError, ProcessFailed, NoHost):
                # guard: unplaced-agent-unwanted
                await self.registry.unwant(
                    agent.agent_id
                )  # the caller gets the error, and no host should try again
                raise
        return await self._running(agent.agent_id)

    async def place(self, agent: Agent, fence: int, *, avoid: str = "") -> None:
        """Find a host for a wanted agent, under the fence that was read from its record."""
        hosts = await self._directory.hosts()
        candidates = order(self._strategy, hosts, agent.needs, await self.registry.turn())
        # The host that it just left is the last resort.
        candidates.sort(key=lambda host: host.name == avoid)
        refusals: list[str] = []
        for host in candidates:
            try:
                await self._calls.create(host.address, agent, fence)
            except CallFailed as exc:
                self._raise_if_final(agent, exc)
                if exc.trouble is Trouble.HELD:
                    return
                refusals.append(str(exc))
                # A host that released the agent has raised the fence; if another has it, the search ends.
                known = await self._after_release(host, agent.agent_id)
                if known is None or not known.wanted or known.host:
                    return
                fence = known.fence  # guard: next-host-fence
            else:
                return
        raise NoHost(f"No host takes agent {agent.agent_id}: {_reasons(refusals, hosts, agent)}.")

    async def stop(self, agent_id: str, *, timeout_seconds: float | None = None) -> bool:
        """Stop an agent; return False if there is none. It has no location from the start of this call."""
        stopping = await self.registry.unwant(agent_id)
        if stopping.word != "stopping":
            return stopping.word == "stopped"
        wait = self._settings.stop_seconds if timeout_seconds is None else timeout_seconds
        try:
            await self._calls.stop(stopping.address, agent_id, timeout_seconds=wait)
        except CallFailed as exc:
            if exc.trouble is not Trouble.HERE:
                # The host stops the agent with its next renewal, or has died together with the agent.
                _log.warning("stop call to host failed", agent_id=agent_id, error=str(exc))
        return True

    async def move(self, agent_id: str, *, to: str = "") -> Placed:
        """Move an agent to another host; it is stopped first, so that there are never two copies."""
        placed = await self._known(agent_id)
        if placed.host:  # guard: move-stops-old-copy
            try:
                await self._calls.stop(placed.address, agent_id, moving=True)
            except CallFailed as exc:
                if exc.trouble is not Trouble.HERE:
                    raise HostUnavailable(str(exc)) from exc
        left = await self._known(agent_id)
        if to:
            await self._place_at(left, to)
        else:
            await self.place(left.agent, left.fence, avoid=placed.host)
        return await self._running(agent_id)

    async def location(self, agent_id: str) -> str | None:
        """Return the address of the host that runs an agent."""
        return await self.registry.location(agent_id)

    async def hosts(self) -> list[HostLoad]:
        """Return every live host."""
        return await self._directory.hosts()

    async def close(self) -> None:
        """Close the channels; agents continue, except those of a local engine, which are stopped."""
        await self._directory.close()
        await self._calls.close()

    async def _place_at(self, placed: Placed, name: str) -> None:
        host = next((host for host in await self._directory.hosts() if host.name == name), None)
        if host is None:
            await self.place(
                placed.agent, placed.fence
            )  # a wrong name must not leave the agent without a host
            raise NoHost(f"There is no live host {name!r}; agent {placed.agent.agent_id} runs elsewhere.")
        try:
            await self._calls.create(host.address, placed.agent, placed.fence)
        except CallFailed as exc:
            self._raise_if_final(placed.agent, exc)
            again = await self._known(placed.agent.agent_id)  # a host that released it has raised the fence
            await self.place(again.agent, again.fence)
            raise NoHost(f"{exc}; agent {placed.agent.agent_id} runs elsewhere.") from exc

    def _raise_if_final(self, agent: Agent, failed: CallFailed) -> None:
        """Raise an error that every other host would return too."""
        match failed.trouble:
            case Trouble.INVALID:
                raise AgentRefused(f"agent {agent.agent_id}: {failed.detail}") from failed
            case Trouble.FAILED:
                raise ProcessFailed(failed.detail) from failed  # it names the agent
            case _:
                _log.info("placement refused by host", agent_id=agent.agent_id, error=str(failed))

    async def _after_release(self, host: HostLoad, agent_id: str) -> Placed | None:
        """Return the record of an agent that a host refused, once the host has released it."""
        known = await self.registry.get(agent_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.stop_seconds + _RELEASE_SECONDS):
                # guard: starting-agent-awaited
                while known and known.host == host.name and known.status is AgentStatus.STARTING:
                    await asyncio.sleep(_POLL_SECONDS)
                    known = await self.registry.get(agent_id)
        return known

    async def _wanted(self, agent: Agent) -> WantReply:
        """Record that an agent should run; an agent that is being stopped must have ended before."""
        async with self._timeout(agent.agent_id):
            while True:
                wanted = await self.registry.want(agent)
                if wanted.status is not AgentStatus.STOPPING:
                    return wanted
                await asyncio.sleep(_POLL_SECONDS)

    async def _running(self, agent_id: str) -> Placed:
        """Wait until an agent runs, placed by this engine or another."""
        async with self._timeout(agent_id):
            while True:
                placed = await self.registry.get(agent_id)
                if placed is None or not placed.wanted:
                    raise Conflict(f"Agent {agent_id} was stopped before it ran.")
                if placed.status is AgentStatus.RUNNING:
                    return placed
                if placed.status is AgentStatus.CRASHED:
                    raise ProcessFailed(f"agent {agent_id} crashed: {placed.error}")
                await asyncio.sleep(_POLL_SECONDS)

    @contextlib.asynccontextmanager
    async def _timeout(self, agent_id: str) -> AsyncGenerator[None]:
        seconds = self._settings.ready_seconds + self._settings.placing_seconds
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as exc:
            placed = await self.registry.get(agent_id)
            what = f"is still {placed.status}" if placed else "does not exist"
            raise HostUnavailable(f"Agent {agent_id} {what} after {seconds:g} s.") from exc

    async def _known(self, agent_id: str) -> Placed:
        placed = await self.registry.get(agent_id)
        if placed is None or not placed.wanted:
            raise InputError(f"There is no agent {agent_id}.")
        return placed


def _reasons(refusals: list[str], hosts: list[HostLoad], agent: Agent) -> str:
    return "; ".join(refusals) if refusals else why_not(hosts, agent.needs)
