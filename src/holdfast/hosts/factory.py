"""Makes the engine that the settings name, on the hosts of a cluster or inside this process."""

from __future__ import annotations

import asyncio
import importlib
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.config.checks import urlsplit_or_none
from holdfast.errors import ConfigError
from holdfast.hosts.directory import open_directory
from holdfast.hosts.engine import HostEngine
from holdfast.hosts.entries import PLAIN, RUSTIC, RUSTIC_PATH, RUSTIC_PREPARE, offers_rustic, rustic_preload
from holdfast.hosts.registry import AgentRegistry
from holdfast.leases.keeper import Keeper
from holdfast.packages import needs_extra
from holdfast.processes.options import ProcessOptions
from holdfast.processes.restarts import RestartPolicy
from holdfast.redaction import redact_url
from holdfast.redis.client import connect_for_keeper
from holdfast.redis.keys import HostKeys
from holdfast.redis.members import Members

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.config import HostSettings, Settings
    from holdfast.redis.client import Redis
    from holdfast.telemetry.metrics import Metrics


def open_engine(
    settings: Settings,
    redis: Redis,
    *,
    options: ProcessOptions | None = None,
    labels: Mapping[str, str] | None = None,
) -> HostEngine:
    """Return the engine that the settings name; the caller closes it, and the connection after it.

    A local engine (``hosts.engine``) runs its agents with ``options`` and passes them ``labels``; by default
    it has the entries of every host. The hosts of a cluster have options of their own.
    """
    if settings.hosts.engine == "local":
        from holdfast.hosts.local import RENEW_SECONDS, LocalEngine  # noqa: PLC0415  a cluster's needs no processes

        options = options or options_of(settings.hosts)
        keeper = partial(keeper_of, settings, at_least_every=RENEW_SECONDS)
        return LocalEngine(registry_of(settings, redis), settings.hosts, options, keeper, labels)
    with needs_extra("an engine of hosts (hosts.engine = cluster)", "hosts"):
        return open_cluster(settings, redis)


def open_cluster(settings: Settings, redis: Redis) -> HostEngine:
    """Return an engine for the hosts of the cluster."""
    from holdfast.hosts.remote import RemoteCalls  # noqa: PLC0415  gRPC is an extra

    url = settings.redis.url
    if urlsplit_or_none(url, "redis+cluster", "rediss+cluster") and not settings.hosts.hash_tag:
        raise ConfigError(
            f"hosts.hash_tag is empty, and redis.url = {redact_url(url)} is a cluster: a script moves an "
            "agent between several keys, which must be in one slot. Set hosts.hash_tag, to hosts for "
            "example: the keys are then agents{hosts}, agent_location{hosts}:<id>, …"
        )
    calls = RemoteCalls(settings.hosts)
    directory = open_directory(settings.hosts, calls, members_of(settings), redis)
    return HostEngine(registry_of(settings, redis), directory, calls, settings.hosts)


class LazyEngine:
    """One cluster engine for a process, opened with its first use: most processes never load gRPC."""

    def __init__(self, settings: Settings, redis: Redis) -> None:
        self._settings = settings
        self._redis = redis
        self._engine: HostEngine | None = None
        self._opening = asyncio.Lock()

    async def get(self) -> HostEngine:
        """Return the engine; ModuleNotFoundError where the extra is not installed."""
        async with self._opening:
            if self._engine is None:
                # Loaded on a thread: the event loop serves others meanwhile.
                await asyncio.to_thread(importlib.import_module, "holdfast.hosts.remote")
                self._engine = open_cluster(self._settings, self._redis)
        return self._engine

    async def require(self) -> HostEngine:
        """Return the engine; ConfigError that names the extra where it is not installed."""
        with needs_extra("starting, stopping or moving residents", "hosts"):
            return await self.get()

    async def close(self) -> None:
        """Close its channels; agents go on."""
        if self._engine is not None:
            await self._engine.close()


def options_of(
    hosts: HostSettings,
    entries: Mapping[str, str] = PLAIN,
    *,
    preload: tuple[str, ...] = (),
    prepare: tuple[tuple[str, str], ...] = (),
) -> ProcessOptions:
    """Return the settings of agents' processes, with the entry of Rustic AI where it is installed."""
    if offers_rustic(hosts):
        entries, preload = {**entries, RUSTIC: RUSTIC_PATH}, preload + rustic_preload()
        prepare = (*prepare, RUSTIC_PREPARE)
    return ProcessOptions(
        entries=entries,
        class_prefixes=hosts.allowed,
        preload=preload + hosts.preload,
        prepare=prepare,
        # The path of a console script lacks the working directory, where small programs have their modules.
        path=tuple(dict.fromkeys((*sys.path, str(Path.cwd())))),
        max_processes=hosts.max_processes,
        restarts=RestartPolicy(max_restarts=hosts.max_restarts, window_seconds=hosts.restart_window_seconds),
        ready_timeout_seconds=hosts.ready_seconds,
        stop_timeout_seconds=hosts.stop_seconds,
        # The kernel kills frozen agents halfway between the end of the trust and the end of the lease.
        freeze_seconds=(hosts.ttl_seconds - hosts.trust_seconds) / 2,  # guard: frozen-agents-end
    )


def registry_of(settings: Settings, redis: Redis, metrics: Metrics | None = None) -> AgentRegistry:
    """Return the registry that the settings name."""
    hosts = settings.hosts
    keys = HostKeys.of(prefix=settings.redis.key_prefix, hash_tag=hosts.hash_tag)
    return AgentRegistry(
        keys, redis, ttl_seconds=hosts.ttl_seconds, placing_seconds=hosts.placing_seconds, metrics=metrics
    )


def keeper_of(settings: Settings, metrics: Metrics, *, at_least_every: float) -> Keeper:
    """Return the keeper of one host's agents."""
    hosts = settings.hosts
    connecting = partial(connect_for_keeper, settings.redis, hosts.renew_every_seconds)
    return Keeper(hosts, connecting, metrics, at_least_every=at_least_every)


def members_of(settings: Settings) -> Members:
    """Return the heartbeats of hosts: at least three in a lease, since they must not outlive it."""
    beat = min(settings.worker.heartbeat_seconds, settings.hosts.ttl_seconds / 3)
    return Members(prefix=settings.redis.key_prefix, heartbeat_seconds=beat)
