"""The engine: agents run, stop, move and are found, on whatever hosts there are.

::

    run   want (Redis) ─> hosts, best first ─> CreateAgent ─> running
                              │ full, away, too slow: the next one
    stop  unwant (Redis): found by nobody from here on ─> StopAgent at its host

Invariant: what is wanted is written before a host is asked. An engine that dies in between is no loss:
whoever reclaims places the agent. And a host is asked under the fence that was read, so no answer that got
lost starts a second copy.
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
from holdfast.hosts.agent import Status
from holdfast.hosts.placement import order, strategy_named, why_not
from holdfast.hosts.transport import CallFailed, Trouble
from holdfast.processes.wire import MAX_PAYLOAD_BYTES
from holdfast.telemetry.logs import get_logger  # guard: engine-imports-no-grpc

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.config import HostSettings
    from holdfast.hosts.agent import Agent, Placed
    from holdfast.hosts.directory import Directory
    from holdfast.hosts.placement import Host
    from holdfast.hosts.registry import Registry, Wanted
    from holdfast.hosts.transport import Calls

MAX_AGENT_BYTES: Final = MAX_PAYLOAD_BYTES // 2
"""What a host's processes take."""
_GIVE_BACK_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.05
"""How often somebody looks whether another's placing has succeeded."""

_log = get_logger(__name__)


class Engine:
    """Runs agents on hosts."""

    def __init__(
        self, registry: Registry, directory: Directory, calls: Calls, settings: HostSettings
    ) -> None:
        self.registry = registry
        self._directory = directory
        self._calls = calls
        self._settings = settings
        self._strategy = strategy_named(settings.placement)

    async def run(self, agent: Agent) -> Placed:
        """Have an agent run; returns when it can receive. One that runs already is left as it is."""
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
                await self.registry.unwant(agent.agent_id)  # nobody waits for it: its caller is told
                raise
        return await self._running(agent.agent_id)

    async def place(self, agent: Agent, fence: int, *, avoid: str = "") -> None:
        """Find a host for an agent that is wanted, under the fence that was read of it."""
        hosts = await self._directory.hosts()
        candidates = order(self._strategy, hosts, agent.needs, await self.registry.turn())
        # The host it just left is better than none.
        candidates.sort(key=lambda host: host.name == avoid)
        refusals: list[str] = []
        for host in candidates:
            try:
                await self._calls.create(host.address, agent, fence)
            except CallFailed as exc:
                self._judge(agent, exc)
                if exc.trouble is Trouble.HELD:
                    return
                refusals.append(str(exc))
                # A host that gave it back has raised the fence; if somebody has it by now, the search ends.
                known = await self._after(host, agent.agent_id)
                if known is None or not known.wanted or known.host:
                    return
                fence = known.fence  # guard: next-host-fence
            else:
                return
        raise NoHost(f"No host takes agent {agent.agent_id}: {_reasons(refusals, hosts, agent)}.")

    async def stop(self, agent_id: str, *, timeout_seconds: float | None = None) -> bool:
        """Stop an agent; False if there is none. Nobody finds it from the moment this begins."""
        stopping = await self.registry.unwant(agent_id)
        if stopping.word != "stopping":
            return stopping.word == "stopped"
        wait = self._settings.stop_seconds if timeout_seconds is None else timeout_seconds
        try:
            await self._calls.stop(stopping.address, agent_id, timeout_seconds=wait)
        except CallFailed as exc:
            if exc.trouble is not Trouble.HERE:
                # Its host stops it with its next renewal, or has died and it with it.
                _log.warning("an agent's host did not answer", agent_id=agent_id, error=str(exc))
        return True

    async def move(self, agent_id: str, *, to: str = "") -> Placed:
        """Have an agent run on another host: stopped there first, so that there are never two."""
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
        """Where an agent runs."""
        return await self.registry.location(agent_id)

    async def hosts(self) -> list[Host]:
        """Every host that lives."""
        return await self._directory.hosts()

    async def close(self) -> None:
        """Close the channels; agents go on, but for those of a local engine, which end."""
        await self._directory.close()
        await self._calls.close()

    async def _place_at(self, placed: Placed, name: str) -> None:
        host = next((host for host in await self._directory.hosts() if host.name == name), None)
        if host is None:
            await self.place(placed.agent, placed.fence)  # it must not stay without a host for a wrong name
            raise NoHost(f"There is no live host {name!r}; agent {placed.agent.agent_id} runs elsewhere.")
        try:
            await self._calls.create(host.address, placed.agent, placed.fence)
        except CallFailed as exc:
            self._judge(placed.agent, exc)
            again = await self._known(placed.agent.agent_id)  # a host that gave it back has raised the fence
            await self.place(again.agent, again.fence)
            raise NoHost(f"{exc}; agent {placed.agent.agent_id} runs elsewhere.") from exc

    def _judge(self, agent: Agent, failed: CallFailed) -> None:
        """Raise what no other host would cure."""
        match failed.trouble:
            case Trouble.INVALID:
                raise AgentRefused(f"agent {agent.agent_id}: {failed.detail}") from failed
            case Trouble.FAILED:
                raise ProcessFailed(failed.detail) from failed  # it names the agent
            case _:
                _log.info("a host does not take an agent", agent_id=agent.agent_id, error=str(failed))

    async def _after(self, host: Host, agent_id: str) -> Placed | None:
        """Look what became of an agent that a host did not take: to give it back may need a moment."""
        known = await self.registry.get(agent_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.stop_seconds + _GIVE_BACK_SECONDS):
                # guard: starting-agent-awaited
                while known and known.host == host.name and known.status is Status.STARTING:
                    await asyncio.sleep(_LOOK_SECONDS)
                    known = await self.registry.get(agent_id)
        return known

    async def _wanted(self, agent: Agent) -> Wanted:
        """Say that an agent should run; one that is just being stopped must have ended before."""
        async with self._patience(agent.agent_id):
            while True:
                wanted = await self.registry.want(agent)
                if wanted.status is not Status.STOPPING:
                    return wanted
                await asyncio.sleep(_LOOK_SECONDS)

    async def _running(self, agent_id: str) -> Placed:
        """Wait until an agent runs, whoever places it."""
        async with self._patience(agent_id):
            while True:
                placed = await self.registry.get(agent_id)
                if placed is None or not placed.wanted:
                    raise Conflict(f"Agent {agent_id} was stopped before it ran.")
                if placed.status is Status.RUNNING:
                    return placed
                if placed.status is Status.CRASHED:
                    raise ProcessFailed(f"agent {agent_id} crashed: {placed.error}")
                await asyncio.sleep(_LOOK_SECONDS)

    @contextlib.asynccontextmanager
    async def _patience(self, agent_id: str) -> AsyncGenerator[None]:
        seconds = self._settings.ready_seconds + self._settings.placing_seconds
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as exc:
            placed = await self.registry.get(agent_id)
            what = f"is still {placed.status}" if placed else "is not there"
            raise HostUnavailable(f"Agent {agent_id} {what} after {seconds:g} s.") from exc

    async def _known(self, agent_id: str) -> Placed:
        placed = await self.registry.get(agent_id)
        if placed is None or not placed.wanted:
            raise InputError(f"There is no agent {agent_id}.")
        return placed


def _reasons(refusals: list[str], hosts: list[Host], agent: Agent) -> str:
    return "; ".join(refusals) if refusals else why_not(hosts, agent.needs)
