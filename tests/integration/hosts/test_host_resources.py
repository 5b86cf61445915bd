"""One host in this process with real agents: what it counts as its own, and what its agents have used."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from holdfast.config import HostSettings
from holdfast.hosts.host import Host
from holdfast.hosts.host_metrics import measure
from holdfast.hosts.registry import AgentRegistry
from holdfast.leases.keeper import Keeper
from holdfast.processes.options import ProcessOptions
from holdfast.processes.processes import Processes
from holdfast.redis.keys import HostKeys
from holdfast.telemetry.metrics import Metrics
from tests.support.hosts.host_processes import agent
from tests.support.paths import ROOT
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def processes() -> Iterator[Processes]:
    options = ProcessOptions(
        entries={"plain": "holdfast.processes.plain:run"},
        class_prefixes=("tests.support.hosts",),
        path=(str(ROOT), *sys.path),
        stop_timeout_seconds=5.0,
    )
    with Processes(options) as processes:
        yield processes


@pytest.fixture
def host(redis, processes) -> Host:
    registry = AgentRegistry(HostKeys.of(), redis, ttl_seconds=30, placing_seconds=10)
    settings, metrics = HostSettings(), Metrics()
    keeper = Keeper(settings, lambda: redis, metrics)
    return Host("a", "127.0.0.1:1", registry, processes, keeper, settings, metrics)


def measured(host: Host, name: str) -> float:
    """A metric of the host, as it is now."""
    measure(host, host.seen())
    return host.metrics.registry.get_sample_value(f"holdfast_host_{name}") or 0.0


async def test_placement_and_metrics_count_with_the_cores_that_the_host_may_use(host):
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert (host.seen().cpu, measured(host, "cpus")) == (1.0, 1.0)
    finally:
        os.sched_setaffinity(0, allowed)


async def test_agents_give_way_as_much_as_the_host_says(host):
    process, _ = await host.create(agent("plain"))
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0)
    host.settings = HostSettings(nice=7)
    process, _ = await host.create(agent("nice"))
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == 7


async def test_the_cpu_time_of_agents_that_have_ended_stays_counted(host):
    """Fails if only those are summed that live: the sum falls, which looks like a host that began anew."""
    await host.create(agent("seen", burns=0.3))
    first = measured(host, "cpu_seconds_total")
    assert first >= 0.25
    await host.create(agent("unseen", burns=0.3))
    await host.stop("unseen")
    second = measured(host, "cpu_seconds_total")
    assert second >= first + 0.25
    await host.stop("seen")
    assert second <= measured(host, "cpu_seconds_total") < second + 0.25


async def test_the_cpu_time_of_agents_whose_zygote_died_stays_counted(host, processes):
    await host.create(agent("x", burns=0.3))
    first = measured(host, "cpu_seconds_total")
    before = processes.get("x").pid
    os.kill(processes.zygote_pid, signal.SIGKILL)
    await until(lambda: processes.get("x").pid not in {0, before} and processes.get("x").status == "running")
    assert measured(host, "cpu_seconds_total") >= first + 0.25
