"""What one agent's process may use. The limits are set in the child itself, before any agent code runs."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_SLACK_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one process; None leaves the host's limit.

    ``memory_bytes`` is private memory (RLIMIT_DATA: heap, anonymous maps, stacks), of this process and of
    each that it forks; file pages that it shares with the zygote do not count. In a ``cgroup``, which the
    host may make for it, it is all memory that they use together. ``processes`` needs a cgroup.
    """

    memory_bytes: int | None = None
    nice: int | None = None
    open_files: int | None = None
    processes: int | None = None
    cgroup: str | None = None

    def __post_init__(self) -> None:
        for name in ("memory_bytes", "open_files", "processes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}: give a positive number, or None for no limit")

    def as_json(self) -> dict[str, int | str]:
        """Return the limits that are set."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if value is not None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Limits:
        """Read the JSON of ``as_json``."""
        return cls(**data)


def apply(limits: Limits) -> None:
    """Set the limits on this process."""
    if limits.cgroup is not None:
        Path(limits.cgroup, "cgroup.procs").write_text("0", encoding="ascii")  # guard: child-cgroup
    if limits.nice is not None:
        os.setpriority(os.PRIO_PROCESS, 0, limits.nice)
    if limits.open_files is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = limits.open_files if hard == resource.RLIM_INFINITY else min(limits.open_files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if limits.memory_bytes is not None and limits.cgroup is None:
        _limit_memory(limits.memory_bytes)


def lift_memory() -> None:
    """Remove the memory limit, so that a process at its limit can still report its error."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _limit_memory(wanted: int) -> None:
    used = private_bytes()
    if wanted < used + _SLACK_BYTES:
        raise ValueError(
            f"memory_bytes is {wanted}, but a process of this zygote begins with {used}: "
            f"give at least {used + _SLACK_BYTES}, or preload less"
        )
    # RLIMIT_DATA, not RLIMIT_AS: malloc reserves 64 MiB of addresses for each thread that it never touches.
    # Only the soft limit: lift_memory needs a way back.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))


def private_bytes() -> int:
    """Return the memory of this process that counts towards RLIMIT_DATA."""
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0
