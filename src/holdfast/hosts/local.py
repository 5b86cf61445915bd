"""One machine, no gRPC: this process is its own only host, and its agents end with it.

::

    first use ─> zygote, upkeep ─> agents come and go as on any host ─> close: all are stopped

Invariant: all hosts share one table, so an agent still has one host at a time. But its record marks it as
bound to its process: no other host starts it when that process has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import platform
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import (
    Conflict,
    HoldfastError,
    HostUnavailable,
    InputError,
    NotAllowed,
    NotFound,
    ProcessError,
    ProcessesFull,
    ProcessFailed,
    Refused,
)
from holdfast.hosts.engine import HostEngine
from holdfast.hosts.failover import Rescue
from holdfast.hosts.host import Elsewhere, Host
from holdfast.hosts.transport import LOCAL, CallFailed, Trouble
from holdfast.processes import procfs
from holdfast.processes.processes import Processes
from holdfast.redis.client import TROUBLE
from holdfast.telemetry.logs import get_logger
from holdfast.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from holdfast.config import HostSettings
    from holdfast.hosts.agent import Agent, Placed
    from holdfast.hosts.placement import HostLoad as Seen
    from holdfast.hosts.registry import AgentRegistry
    from holdfast.leases.keeper import Keeper
    from holdfast.processes.options import ProcessOptions


TROUBLES: Final[tuple[tuple[type[HoldfastError], Trouble], ...]] = (
    (ProcessesFull, Trouble.NEXT),
    (NotAllowed, Trouble.INVALID),
    (InputError, Trouble.INVALID),
    (Elsewhere, Trouble.HELD),
    (Conflict, Trouble.STALE),
    (NotFound, Trouble.HERE),
    (Refused, Trouble.NEXT),
    (ProcessFailed, Trouble.FAILED),
    (ProcessError, Trouble.NEXT),
)
"""The meaning of a host's errors for its caller, the same as by gRPC's codes."""

RENEW_SECONDS: Final = 2.0
"""How often a local engine renews at least: another engine can stop its agents by a renewal only."""
_POLL_SECONDS: Final = 0.01

_log = get_logger(__name__)


class LocalEngine(HostEngine):
    """Runs agents as processes of this one."""

    def __init__(
        self,
        registry: AgentRegistry,
        settings: HostSettings,
        options: ProcessOptions,
        open_keeper: Callable[[Metrics], Keeper],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        here = Here(registry, settings, options, open_keeper, labels or {})
        super().__init__(registry, here, here, settings)

    async def run(self, agent: Agent) -> Placed:
        """Run an agent, here unless it runs elsewhere already; it ends with this process."""
        # A program that was killed and restarted does not wait for the end of its old leases.
        known = await self.registry.get(agent.agent_id)
        if known is not None and is_gone(known.host):  # guard: dead-program-agents
            await self._await_end_of(known)
            await self.registry.release(known.host, agent.agent_id, known.fence, "stopped")
        return await super().run(msgspec.structs.replace(agent, bound=True))

    async def _await_end_of(self, placed: Placed) -> None:
        """Wait for the end of a dead program's agent, which ends a moment after the program."""
        seconds = self._settings.stop_seconds + RENEW_SECONDS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    if not procfs.is_named(placed.pid, f"hf:{placed.agent.agent_id}"):
                        return
                    await asyncio.sleep(_POLL_SECONDS)
        raise HostUnavailable(
            f"Agent {placed.agent.agent_id} of a program that has ended still runs after {seconds:g} s "
            f"(process {placed.pid})."
        )


class Here:
    """The host inside this process, started by its first use: its engine's directory and transport."""

    def __init__(
        self,
        registry: AgentRegistry,
        settings: HostSettings,
        options: ProcessOptions,
        open_keeper: Callable[[Metrics], Keeper],
        labels: Mapping[str, str],
    ) -> None:
        self._registry = registry
        self._settings = settings
        self._options = options
        self._open_keeper = open_keeper
        self._labels = labels
        self._name = own_name()
        self._host: Host | None = None
        self._upkeep: asyncio.Task[None] | None = None

    async def hosts(self) -> list[Seen]:
        """Return only this host."""
        return [self._started().seen()]

    async def create(self, address: str, agent: Agent, fence: int) -> None:
        """Start an agent."""
        with self._translate_errors(address):
            async with asyncio.timeout(self._settings.create_seconds):
                await self._started().create(agent, seen=fence)

    async def stop(
        self, address: str, agent_id: str, *, timeout_seconds: float | None = None, moving: bool = False
    ) -> None:
        """Stop an agent."""
        with self._translate_errors(address):
            await self._started().stop(agent_id, timeout_seconds=timeout_seconds, moving=moving)

    async def close(self) -> None:
        """Stop all agents and the host; the next use starts them anew."""
        host, upkeep = self._host, self._upkeep
        if host is None or upkeep is None:
            return
        self._host = self._upkeep = None
        host.draining = True
        try:
            # guard: engine-close-ends-agents
            await asyncio.gather(*(self._end(host, agent_id) for agent_id in tuple(host.copies)))
        finally:
            await asyncio.to_thread(host.processes.shutdown)
            upkeep.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await upkeep

    def _started(self) -> Host:
        if self._host is None or self._upkeep is None:
            processes = Processes(self._options)
            processes.warm_up()
            metrics = Metrics()
            keeper = self._open_keeper(metrics)
            self._host = Host(
                self._name,
                self._name,
                self._registry,
                processes,
                keeper,
                self._settings,
                metrics,
                self._labels,
            )
            self._upkeep = asyncio.create_task(self._live(self._host), name="holdfast-local-host")
        if self._upkeep.done():
            self._upkeep.result()  # no lease is renewed any more: raise the reason to the caller
        return self._host

    async def _live(self, host: Host) -> None:
        # Agents of dead local engines are removed; agents of dead hosts are placed by other hosts.
        engine = HostEngine(self._registry, self, self, self._settings)
        rescue = Rescue(self._registry, engine, host, bound_only=True)
        async with asyncio.TaskGroup() as group:
            for each in (host.watch(), host.renew(), host.nurse(), rescue.run()):
                group.create_task(each)

    async def _end(self, host: Host, agent_id: str) -> None:
        try:
            await host.stop(agent_id)
        except NotFound:
            pass  # it ended by itself meanwhile
        except TROUBLE as exc:
            _log.warning("agent release failed", agent_id=agent_id, error=str(exc))

    @contextlib.contextmanager
    def _translate_errors(self, address: str) -> Generator[None]:
        """Translate errors to those of a call to any host."""
        if address != self._name:
            raise CallFailed(address, Trouble.NEXT, "it is not in this process (hosts.engine is local)")
        try:
            yield
        except TimeoutError as exc:
            raise CallFailed(address, Trouble.NEXT, "timed out (hosts.ready_seconds)") from exc
        except TROUBLE as exc:
            raise CallFailed(address, Trouble.NEXT, f"Redis does not respond to this host: {exc}") from exc
        except HoldfastError as exc:
            raise CallFailed(address, trouble_of(exc), str(exc)) from exc


def trouble_of(error: HoldfastError) -> Trouble:
    """Return the meaning of a host's error for its caller."""
    return next((trouble for kind, trouble in TROUBLES if isinstance(error, kind)), Trouble.FAILED)


# -- a name by which an engine on the same machine finds out whether its process has ended

_NAME: Final = re.compile(re.escape(LOCAL) + r".*\.([0-9a-f]{8}):(\d+)\.(\d+):[0-9a-f]+")


def own_name() -> str:
    """Return a unique name for one engine of this process."""
    pid = os.getpid()
    return f"{LOCAL}{platform.node()}.{_machine()}:{pid}.{procfs.start_time(pid) or 0}:{secrets.token_hex(3)}"


def is_gone(name: str) -> bool:
    """Return whether a local engine's process has ended; False if it is on another machine."""
    found = _NAME.fullmatch(name)
    if found is None or found[1] != _machine():
        return False
    return procfs.start_time(int(found[2])) != int(found[3])


def _machine() -> str:
    """Return a name for this boot of this machine and this PID namespace, as containers have their own."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
    numbers = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - it leads to no file
    return hashlib.sha256(f"{boot} {numbers}".encode()).hexdigest()[:8]
