"""From a fork of the zygote to an agent's process: drop everything of the zygote, then run the entry.

The contract: ``entry(payload, control)``; return is a clean end. An exception is sent to the host as text.
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
from holdfast.processes.control import ChildControl, LeaseEnd
from holdfast.processes.entries import load_entry

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONTROL: Final = 3
_TRACE_LINES: Final = 30
_TRACE_CHARACTERS: Final = 4000


@dataclass(frozen=True, slots=True)
class Birth:
    """The arguments of a child, from its zygote."""

    id: str
    entry: str
    prefixes: tuple[str, ...]
    limits: Mapping[str, Any]
    control: int
    output: int
    zygote: int
    lease_end: LeaseEnd | None


def become(birth: Birth) -> NoReturn:
    """Run as the agent's process from here on; never returns into the zygote's code."""
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
    """Begin a session of our own (one group to kill), with our own signals, descriptors and random seed."""
    os.setsid()  # guard: child-session
    procfs.die_with_parent(signal.SIGKILL)  # guard: child-dies-with-zygote
    if os.getppid() != birth.zygote:
        os._exit(1)  # the zygote died before the kernel was asked to kill us with it
    # Our orphans become our children: the zygote could not assign them to an agent when it kills them.
    procfs.adopt_orphans()  # guard: child-adopts-orphans
    procfs.name_process(f"hf:{birth.id}")
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)  # guard: child-signal-handlers
    # As every Python program begins: a closed pipe is an exception, not the end.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _keep_only(birth.control, birth.output)
    # The exit handlers of the zygote must not run at the end of its child.
    atexit._clear()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    random.seed()
    if numpy := sys.modules.get("numpy.random"):
        numpy.seed()


def _keep_only(control: int, output: int) -> None:
    """Set descriptors 0 (/dev/null), 1 and 2 (the host's log) and 3 (control), and close every other one."""
    # High numbers first, so that no dup2 overwrites a descriptor that is still needed.
    control, output = (_high(descriptor) for descriptor in (control, output))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(control, _CONTROL, inheritable=False)
    os.closerange(_CONTROL + 1, _descriptor_limit())  # guard: child-descriptors
    # New objects: those of the zygote keep the buffering of its own output, which need not be a pipe.
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
    control = ChildControl(birth.id, socket.socket(fileno=_CONTROL), birth.prefixes, birth.lease_end)
    code = 0
    try:
        limits.apply(limits.Limits.from_json(birth.limits))  # guard: child-limits
        control.begin()
        load_entry(birth.entry)(control.payload, control)
    except BaseException as error:
        code = _report_failure(control, error)
    atexit._run_exitfuncs()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _is_refusal(error: BaseException) -> bool:
    """Whether the request is wrong: our own code raised, and no code of the agent has run yet."""
    if not isinstance(error, AppError | InputError | NotAllowed):
        return False
    frames = traceback.walk_tb(error.__traceback__)
    return all(str(frame.f_globals.get("__name__")).startswith("holdfast.") for frame, _ in frames)


def _report_failure(control: ChildControl, error: BaseException) -> int:
    """Report an exception to the host and return the exit code; SystemExit keeps its own."""
    limits.lift_memory()
    refused = _is_refusal(error)
    plain = refused and error.__cause__ is None  # the message is enough
    formatted = traceback.format_exception_only(error) if plain else traceback.format_exception(error)
    lines = "".join(formatted).splitlines()[-_TRACE_LINES:]
    control.failed("\n".join(lines)[-_TRACE_CHARACTERS:], type(error).__name__, refused=refused)
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return 1
