"""One machine, no gRPC: this process is its own only host, and its agents end with it.

::

    first use ─> zygote, upkeep ─> agents come and go as on any host ─> close: all are stopped

Invariant: the table is the one that all hosts share, so an agent still has one host at a time. But its record
says that it is bound to its process: nobody else starts it when that is gone.
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
from holdfast.hosts.engine import Engine
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
    from holdfast.hosts.placement import Host as Seen
    from holdfast.hosts.registry import Registry
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
"""What a host raises, and what it means for its caller; by way of gRPC's codes it means the same."""

RENEW_SECONDS: Final = 2.0
"""How often a local engine renews at least: an engine elsewhere can stop its agents by a renewal only."""
_LOOK_SECONDS: Final = 0.01

_log = get_logger(__name__)


class LocalEngine(Engine):
    """Runs agents as processes of this one."""

    def __init__(
        self,
        registry: Registry,
        settings: HostSettings,
        options: ProcessOptions,
        open_keeper: Callable[[Metrics], Keeper],
        labels: Mapping[str, str] | None = None,
    ) -> None:
        here = Here(registry, settings, options, open_keeper, labels or {})
        super().__init__(registry, here, here, settings)

    async def run(self, agent: Agent) -> Placed:
        """Have an agent run, here if it does not run elsewhere already; it ends with this process."""
        # A program that was killed and is started again need not wait until its leases are over.
        known = await self.registry.get(agent.agent_id)
        if known is not None and is_gone(known.host):  # guard: dead-program-agents
            await self._outlive(known)
            await self.registry.release(known.host, agent.agent_id, known.fence, "stopped")
        return await super().run(msgspec.structs.replace(agent, bound=True))

    async def _outlive(self, placed: Placed) -> None:
        """Wait for a dead program's agent, which ends a moment after it."""
        seconds = self._settings.stop_seconds + RENEW_SECONDS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while True:
                    if not procfs.is_named(placed.pid, f"hf:{placed.agent.agent_id}"):
                        return
                    await asyncio.sleep(_LOOK_SECONDS)
        raise HostUnavailable(
            f"Agent {placed.agent.agent_id} of a program that is gone has not ended after {seconds:g} s "
            f"(process {placed.pid})."
        )


class Here:
    """The host inside this process, begun by its first use: how an engine finds it, and how it calls it."""

    def __init__(
        self,
        registry: Registry,
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
        """Only this one."""
        return [self._begun().seen()]

    async def create(self, address: str, agent: Agent, fence: int) -> None:
        """Start an agent."""
        with self._told(address):
            async with asyncio.timeout(self._settings.create_seconds):
                await self._begun().create(agent, seen=fence)

    async def stop(
        self, address: str, agent_id: str, *, timeout_seconds: float | None = None, moving: bool = False
    ) -> None:
        """Stop an agent."""
        with self._told(address):
            await self._begun().stop(agent_id, timeout_seconds=timeout_seconds, moving=moving)

    async def close(self) -> None:
        """End all agents, and what was begun for them; the next use begins anew."""
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

    def _begun(self) -> Host:
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
            self._upkeep.result()  # leases that nobody renews: whoever uses this is told why
        return self._host

    async def _live(self, host: Host) -> None:
        # What other local engines left behind is forgotten; what real hosts left is for them to place.
        engine = Engine(self._registry, self, self, self._settings)
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
            _log.warning("an agent's end could not be told", agent_id=agent_id, error=str(exc))

    @contextlib.contextmanager
    def _told(self, address: str) -> Generator[None]:
        """Say what goes wrong as a call of any host says it."""
        if address != self._name:
            raise CallFailed(address, Trouble.NEXT, "it is not in this process (hosts.engine is local)")
        try:
            yield
        except TimeoutError as exc:
            raise CallFailed(address, Trouble.NEXT, "it took too long (hosts.ready_seconds)") from exc
        except TROUBLE as exc:
            raise CallFailed(address, Trouble.NEXT, f"Redis does not answer this host: {exc}") from exc
        except HoldfastError as exc:
            raise CallFailed(address, trouble_of(exc), str(exc)) from exc


def trouble_of(error: HoldfastError) -> Trouble:
    """What an error of a host means for its caller."""
    return next((trouble for kind, trouble in TROUBLES if isinstance(error, kind)), Trouble.FAILED)


# -- a name that tells, on the same machine, whether its process is gone

_NAME: Final = re.compile(re.escape(LOCAL) + r".*\.([0-9a-f]{8}):(\d+)\.(\d+):[0-9a-f]+")


def own_name() -> str:
    """A name for one engine of this process, which nobody else has or will have."""
    pid = os.getpid()
    return f"{LOCAL}{platform.node()}.{_machine()}:{pid}.{procfs.start_time(pid) or 0}:{secrets.token_hex(3)}"


def is_gone(name: str) -> bool:
    """Whether a local engine's process is known to have ended: only those of this machine are known."""
    found = _NAME.fullmatch(name)
    if found is None or found[1] != _machine():
        return False
    return procfs.start_time(int(found[2])) != int(found[3])


def _machine() -> str:
    """Name this boot of this machine, and whose process numbers are ours: containers have their own."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
    numbers = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - it leads to no file
    return hashlib.sha256(f"{boot} {numbers}".encode()).hexdigest()[:8]
