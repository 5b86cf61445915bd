"""A cgroup (v2) for each agent with limits, if the host's own is delegated: descendants count too.

::

    <the host's own>        its processes move one level down: with limited children it must be empty
      ├── host              the host, its zygote, and agents without limits
      └── agent-<n>         one agent: memory.max, pids.max

Where that is not allowed, limits apply to each process (``limits.py``), and the reason is logged once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from holdfast.processes.limits import Limits

_MOUNT: Final = Path("/sys/fs/cgroup")
_MEMBERSHIP: Final = Path("/proc/self/cgroup")
_CONTROLLERS: Final = ("memory", "pids")
_PASSES: Final = 10
"""How often processes that started meanwhile are moved."""

_log = get_logger(__name__)


class _Unavailable(Exception):
    """Cgroups can't be used; the message is the reason."""


class Cgroups:
    """The cgroups of one host's agents; used on one thread. Nothing is written before the first limit."""

    def __init__(self, mount: Path = _MOUNT, membership: Path = _MEMBERSHIP) -> None:
        self._mount, self._membership = mount, membership
        self._root: Path | None = None
        self._arranged = False
        self._numbers = itertools.count(1)
        self._left: list[Path] = []

    def make(self, limits: Limits) -> str | None:
        """Make a cgroup with these limits; None if no limit needs one or cgroups are unavailable."""
        if limits.memory_bytes is None and limits.processes is None:
            return None
        root = self._own()
        if root is None:
            return None
        self._sweep()
        made = root / f"agent-{os.getpid()}-{next(self._numbers)}"
        try:
            made.mkdir()
            _limit(made, limits)
        except OSError as error:
            _log.warning("cgroup creation failed", path=str(made), error=str(error))
            self._left.append(made)
            return None
        return str(made)

    def end(self, path: str) -> bool:
        """Remove the cgroup of an ended agent; return whether the kernel killed the agent for its memory."""
        cgroup, killed = Path(path), False
        with contextlib.suppress(OSError, ValueError):
            counts = dict(line.split() for line in (cgroup / "memory.events").read_text().splitlines())
            killed = int(counts.get("oom_kill", 0)) > 0
        self._left.append(cgroup)
        self._sweep()
        return killed

    def _sweep(self) -> None:
        """Remove the cgroups that are empty by now: a dying process stays in its cgroup for a moment."""
        for cgroup in self._left[:]:
            with contextlib.suppress(OSError):
                cgroup.rmdir()
            if not cgroup.exists():
                self._left.remove(cgroup)

    def _own(self) -> Path | None:
        """Return the cgroup in which others are made; the first call prepares it."""
        if not self._arranged:
            self._arranged = True
            try:
                self._root = _arranged(self._mount, self._membership)
            except (_Unavailable, OSError) as why:
                _log.info("cgroups unavailable, limits apply per process", why=str(why))
        return self._root


def _arranged(mount: Path, membership: Path) -> Path:
    name = _own_name(membership)
    own = mount / name.lstrip("/")
    _check(mount, own, name)
    host = own / "host"
    host.mkdir(exist_ok=True)
    for _ in range(_PASSES):
        pids = (own / "cgroup.procs").read_text().split()
        if not pids:
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                (host / "cgroup.procs").write_text(pid)
    else:
        raise _Unavailable(f"{own} still has processes after {_PASSES} passes")
    offered = (own / "cgroup.controllers").read_text().split()
    wanted = " ".join(f"+{each}" for each in _CONTROLLERS if each in offered)
    (own / "cgroup.subtree_control").write_text(wanted)
    for old in own.glob("agent-*"):
        with contextlib.suppress(OSError):  # of a host that died, or of another one that lives
            old.rmdir()
    return own


def _own_name(membership: Path) -> str:
    for line in membership.read_text().splitlines():
        if line.startswith("0::/"):
            return line.removeprefix("0::")
    raise _Unavailable("this process is in no v2 cgroup")


def _check(mount: Path, own: Path, name: str) -> None:
    """Raise unless the host may divide its cgroup: write permission alone is not enough."""
    if not (mount / "cgroup.controllers").exists():
        raise _Unavailable(f"{mount} is not a mount of cgroup v2")
    if ".." in own.parts or not own.is_dir():
        raise _Unavailable(f"{name} is not visible under {mount}")
    if not (own / "cgroup.type").exists():
        raise _Unavailable(f"{name} is the root cgroup of the machine")
    if "memory" not in (own / "cgroup.controllers").read_text().split():
        raise _Unavailable(f"{name} has no memory controller")
    # The root of a container's own view is the container's; elsewhere systemd marks it (Delegate=yes).
    if name != "/" and not _is_delegated(own):  # guard: cgroup-delegated
        raise _Unavailable(f"{name} is not delegated to this host (systemd: Delegate=yes)")
    for path in (own, own / "cgroup.procs", own / "cgroup.subtree_control"):
        if not os.access(path, os.W_OK):
            raise _Unavailable(f"{path} is not writable")


def _is_delegated(own: Path) -> bool:
    for attribute in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(own, attribute) == b"1":
                return True
    return False


def _limit(cgroup: Path, limits: Limits) -> None:
    if limits.memory_bytes is not None:
        (cgroup / "memory.max").write_text(str(limits.memory_bytes))
        # Without these an agent over its limit is swapped, or loses one process instead of all.
        for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
            if (cgroup / name).exists():
                (cgroup / name).write_text(value)
    if limits.processes is not None and (cgroup / "pids.max").exists():
        (cgroup / "pids.max").write_text(str(limits.processes))
