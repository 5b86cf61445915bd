"""The command itself: finds the module of the command that was asked for, and says every error in a sentence.

Only that module is imported. Workers and janitors are many and live long, so theirs don't load typer either.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

from holdfast.cli.formatting import compact, printable
from holdfast.errors import HoldfastError, InputError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130

COMMANDS: Final = {
    "dev": "Run a whole system here: server, workers, API, with reload.",
    "demo": "Watch a system survive crashes, with a proof at the end.",
    "worker": "Run a worker until it is stopped.",
    "scheduler": "Run schedules until it is stopped.",
    "api": "Run the HTTP API until it is stopped, or make a key.",
    "janitor": "Run the janitor until it is stopped.",
    "relay": "Deliver events to receivers until it is stopped.",
    "host": "Run long-lived agents until it is stopped.",
    "scaler": "Report to KEDA how many workers each queue needs.",
    "agents": "List the registered agents and who serves them.",
    "residents": "Start, stop, move and message long-lived agents.",
    "hosts": "List the hosts of long-lived agents.",
    "submit": "Submit a run, and follow its events with --follow.",
    "runs": "List, show, cancel, resume and retry runs.",
    "schedules": "Create, list, trigger, pause and remove schedules.",
    "queues": "List, pause, drain and resume queues.",
    "dead": "List, replay and drop dead letters: runs that were given up.",
    "rollout": "Move a producer's tenants to a queue step by step.",
    "members": "List every live process.",
    "cleanup": "Run one pass of the janitor now.",
    "simulate": "Try a scaling policy on a trace of runs.",
    "migrate": "Apply the migrations of the database.",
    "store": "Show which store the system uses, or register another one.",
    "render": "Write the Kubernetes manifests, from the chart.",
    "config": "Show or check the settings.",
    "completion": "Print a completion script for a shell.",
}
SERVICES: Final = frozenset({"api", "worker", "scheduler", "janitor", "relay", "host", "scaler"})
_LONG: Final = SERVICES | {"dev"}
_SHORT: Final = frozenset({("api", "new-key"), ("relay", "undelivered")})
"""Commands of a service that do one thing: a signal ends them half-way, which is no success."""


class Service(Protocol):
    """A module whose command runs for long."""

    def run(self, arguments: list[str]) -> int:
        """Parse the arguments, serve, and return the exit code."""
        ...


class Menu(Protocol):
    """The module that knows all other commands."""

    def run(self, wanted: str, arguments: list[str]) -> int:
        """Parse the arguments, call the command, and return the exit code."""
        ...


class Terminated(BaseException):
    """SIGTERM came while a service was loading: it has begun nothing, so there is nothing to drain."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if cast("object", sys.stdout) is None:  # closed by whoever called us: the answer is not wanted
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  for as long as we live
    try:
        with _leaving_on_sigterm() if _runs_for_long(given) else contextlib.nullcontext():
            code = _call(given)
        sys.stdout.flush()
    except Terminated:
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        silence_stdout()
        return FAILED
    except OSError as exc:
        complain(str(unwritable(exc)), given)
        return FAILED
    except HoldfastError as exc:
        complain(str(exc), given)
        return USAGE if isinstance(exc, InputError) else FAILED
    return code


def _runs_for_long(given: Sequence[str]) -> bool:
    return bool(given) and given[0] in _LONG and tuple(given[:2]) not in _SHORT


@contextlib.contextmanager
def _leaving_on_sigterm() -> Generator[None]:
    """Leave with 0 on a SIGTERM that comes before the service has set its own handler."""

    def leave(_number: int, _frame: object) -> None:
        raise Terminated  # not SystemExit: an app that is being imported may end with that by mistake

    try:
        before = signal.signal(signal.SIGTERM, leave)  # guard: sigterm-while-loading
    except ValueError:  # not the main thread: whoever has that decides
        yield
        return
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is leave:
            signal.signal(signal.SIGTERM, before)


def _call(given: list[str]) -> int:
    if given and given[0] in SERVICES:
        return cast("Service", importlib.import_module(f"holdfast.cli.{given[0]}")).run(given[1:])
    wanted = next((word for word in given if not word.startswith("-")), "")
    return cast("Menu", importlib.import_module("holdfast.cli.dispatch")).run(wanted, given)


def complain(text: str, given: Sequence[str]) -> None:
    """Say what is wrong on stderr: in a sentence or, if ``given`` asks for JSON, as a line of that."""
    options = given[: given.index("--")] if "--" in given else given
    say(compact({"error": text}) if "--json" in options else f"holdfast: {text}")


def say(text: str) -> None:
    """Write to stderr, if anybody listens."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"{printable(text, lines=True)}\n")


def unwritable(exc: OSError) -> HoldfastError:
    """Say that only the answer is lost: whoever believes that the command failed would call it again."""
    silence_stdout()
    return HoldfastError(f"what was asked for is done, but its answer can't be written to stdout: {exc}")


def silence_stdout() -> None:
    """Send what is still to be written nowhere: whoever read us has gone, and that is fine."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
