"""From a fork of the zygote to an agent's process: shed everything that was the zygote's, then run the entry.

The contract: ``entry(payload, control)``; return is a clean end. What is raised reaches the host as text.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import random
import resource
import signal
import socket
import sys
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

from holdfast.errors import AppError, InputError, NotAllowed
from holdfast.processes import limits, procfs
from holdfast.processes.control import Control, LeaseEnd
from holdfast.processes.entries import load_entry

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONTROL: Final = 3
_TRACE_LINES: Final = 30
_TRACE_CHARACTERS: Final = 4000


@dataclass(frozen=True, slots=True)
class Birth:
    """What the zygote gives its child."""

    id: str
    entry: str
    prefixes: tuple[str, ...]
    limits: Mapping[str, Any]
    control: int
    output: int
    zygote: int
    lease_end: LeaseEnd | None


def become(birth: Birth) -> NoReturn:
    """Be the agent's process from here on; never returns into the zygote's code."""
    code = 1
    try:
        _leave_the_zygote(birth)
        code = _live(birth)
    except BaseException:
        traceback.print_exc()
    finally:
        # Not sys.exit: it would unwind into the zygote's loop.
        os._exit(code)


def _leave_the_zygote(birth: Birth) -> None:
    """A session of our own (one group to end), our own signals, descriptors and randomness."""
    os.setsid()  # guard: child-session
    procfs.die_with_parent(signal.SIGKILL)  # guard: child-dies-with-zygote
    if os.getppid() != birth.zygote:
        os._exit(1)  # it died before it could take us along
    # Orphans of ours stay ours: the zygote must know whose they are when it ends them.
    procfs.adopt_orphans()  # guard: child-adopts-orphans
    procfs.name_process(f"hf:{birth.id}")
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)  # guard: child-signal-handlers
    # As every Python program begins: a closed pipe is an exception, not the end.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _keep_only(birth.control, birth.output)
    # What the zygote wanted done at its end is not ours to do.
    atexit._clear()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    random.seed()
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()


def _keep_only(control: int, output: int) -> None:
    """Arrange 0 (nothing), 1 and 2 (the host's log), 3 (control), and close every other descriptor."""
    # High first, so that none of ours is overwritten while the others are put in their places.
    control, output = (_high(descriptor) for descriptor in (control, output))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(control, _CONTROL, inheritable=False)
    os.closerange(_CONTROL + 1, _descriptor_limit())  # guard: child-descriptors
    # New ones: what the zygote wrote to need not have been a pipe, and its objects remember that.
    sys.stdout = sys.__stdout__ = _text(1)
    sys.stderr = sys.__stderr__ = _text(2)


def _text(descriptor: int) -> TextIO:
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _high(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 16)


def _descriptor_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if soft == resource.RLIM_INFINITY else soft


def _live(birth: Birth) -> int:
    """Run the entry and return the exit code."""
    control = Control(birth.id, socket.socket(fileno=_CONTROL), birth.prefixes, birth.lease_end)
    code = 0
    try:
        limits.apply(limits.Limits.from_json(birth.limits))  # guard: child-limits
        control.begin()
        load_entry(birth.entry)(control.payload, control)
    except BaseException as error:
        code = _tell(control, error)
    atexit._run_exitfuncs()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _is_refusal(error: BaseException) -> bool:
    """Whether the request is wrong: our own code says so, and no agent's has run yet."""
    if not isinstance(error, AppError | InputError | NotAllowed):
        return False
    frames = traceback.walk_tb(error.__traceback__)
    return all(str(frame.f_globals.get("__name__")).startswith("holdfast.") for frame, _ in frames)


def _tell(control: Control, error: BaseException) -> int:
    """Tell the host what was raised; SystemExit keeps its code, though nobody asked for it."""
    limits.lift_memory()
    refused = _is_refusal(error)
    plain = refused and error.__cause__ is None  # its words say it all
    told = traceback.format_exception_only(error) if plain else traceback.format_exception(error)
    lines = "".join(told).splitlines()[-_TRACE_LINES:]
    control.failed("\n".join(lines)[-_TRACE_CHARACTERS:], type(error).__name__, refused=refused)
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 1
