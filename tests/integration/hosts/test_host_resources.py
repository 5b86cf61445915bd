"""One host in this process with real agents: what it counts as its own, and what its agents have used."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.config import HostSettings
from holdfast.hosts.host import Host
from holdfast.hosts.measuring import measure
from holdfast.hosts.registry import Registry
from holdfast.processes.options import ProcessOptions
from holdfast.processes.processes import Processes
from holdfast.redis.keys import HostKeys
from holdfast.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = str(Path(__file__).parents[2])


@pytest.fixture
def processes() -> Iterator[Processes]:
    options = ProcessOptions(
        entries={"plain": "holdfast.processes.plain:run"},
        class_prefixes=("hosting", "hostfaults"),
        path=(TESTS, *sys.path),
        stop_timeout_seconds=5.0,
    )
    with Processes(options) as processes:
        yield processes


@pytest.fixture
def host(redis, processes) -> Host:
    registry = Registry(HostKeys.of(), redis, ttl_seconds=30, placing_seconds=10)
    return Host("a", "127.0.0.1:1", registry, processes, HostSettings(), Metrics())


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
