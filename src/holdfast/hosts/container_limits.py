"""The memory and cores that a host may use: those of the machine, or the limits of its container.

Read at each call: a container's limits may change while it runs. Both versions of cgroups are supported.
"""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOUNT: Final = Path("/sys/fs/cgroup")
_MEMBERSHIP: Final = Path("/proc/self/cgroup")
_COUNTED: Final = frozenset({"memory", "cpu"})


@dataclass(frozen=True, slots=True)
class ContainerLimits:
    """Memory and cores; a fraction of a core is possible."""

    memory_bytes: int
    cpus: float


def allotted(mount: Path = _MOUNT, membership: Path = _MEMBERSHIP) -> ContainerLimits:
    """Return the machine's memory and cores, or the lower limits of this process's cgroup or one above it."""
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    cpus = float(len(os.sched_getaffinity(0)))  # guard: host-cpu-affinity
    for cgroup in _cgroups(mount, membership):
        memory = min(memory, _number(cgroup / "memory.max"), _number(cgroup / "memory.limit_in_bytes"))
        cpus = min(cpus, _quota(cgroup))
    return ContainerLimits(int(memory), cpus)


def _cgroups(mount: Path, membership: Path) -> Iterator[Path]:
    """Yield the cgroups of this process and all above them: a limit holds for everything below it."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = membership.read_text().splitlines()
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers and not _COUNTED & set(controllers.split(",")):
            continue
        root = mount / controllers  # v1; the root of v2 has no controllers in its name
        path = root / name.lstrip("/")
        # A container may see the names of its machine, but only its own cgroups, which are at the root then.
        yield from (each for each in (path, *path.parents) if ".." not in each.parts and root in each.parents)
        yield root


def _quota(cgroup: Path) -> float:
    """Return the cores that a cgroup allows: CPU time of each period."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (cgroup / "cpu.max").read_text().split()
        return float(quota) / float(period) if quota != "max" else math.inf
    quota, period = _number(cgroup / "cpu.cfs_quota_us"), _number(cgroup / "cpu.cfs_period_us")
    return quota / period if quota > 0 and 0 < period < math.inf else math.inf


def _number(file: Path) -> float:
    """Return the number in a file; infinity without one."""
    try:
        return float(file.read_text())
    except (OSError, ValueError):  # no such limit, or "max"
        return math.inf
