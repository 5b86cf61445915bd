"""The options of agents' processes: one frozen value, passed to the supervisor once."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.processes.restarts import RestartPolicy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.processes.cgroups import Cgroups


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """``entries`` (name to ``module:function``) and ``class_prefixes`` are all that a child may run.

    ``preload``: the modules that the zygote imports for every child. ``prepare``: functions
    (``module:function``), each with one argument, that the zygote calls for every child. ``zygote_restarts``:
    how often the zygote may fail to start before no agent is started any more; a zygote that was ready is
    always replaced. ``once``: each agent has one process and is never restarted. ``freeze_seconds``: how long
    after the end of a lease the kernel kills a zygote that is frozen and has not killed that agent; None is
    never.
    """

    entries: Mapping[str, str]
    class_prefixes: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    prepare: tuple[tuple[str, str], ...] = ()
    path: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    max_processes: int = 100
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    zygote_restarts: RestartPolicy = field(default_factory=lambda: RestartPolicy(base_seconds=0.2))
    ready_timeout_seconds: float = 30.0
    stop_timeout_seconds: float = 10.0
    preload_timeout_seconds: float = 120.0
    zygote_timeout_seconds: float = 15.0
    output_bytes_per_second: int = 512 * 1024
    output_lines_per_second: int = 200
    output_tail_lines: int = 5
    control_bytes_per_second: int = 1024 * 1024
    once: bool = False
    keep_seconds: float = 0.0
    freeze_seconds: float | None = None
    cgroups: Cgroups | None = None
    output_line_bytes: int = 32 * 1024
