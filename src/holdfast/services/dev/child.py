"""One supervised process: started, restarted when it exits, replaced or stopped on request.

It has its own session, so a Ctrl-C in the terminal does not reach it: its parent stops it in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.reliability.backoff import backoff_seconds
from holdfast.services.dev.leash import leashed
from holdfast.services.dev.unavailable import answering_unavailable

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from holdfast.services.child_output import Voice

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 15.0
STEADY_SECONDS = 10.0
"""A process that ran this long is restarted after the first pause."""
HURRY_SECONDS = 7.0
"""How long a process that was signalled twice may take before it is killed."""
_SIGNAL_AGAIN_SECONDS = 0.25
_LAST_OUTPUT_SECONDS = 0.5
_LONGEST_LINE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to start a child; its environment is computed at every start."""

    name: str
    command: tuple[str, ...]
    environment: Callable[[], Mapping[str, str]]
    listener: socket.socket | None = None
    """The socket that the child accepts HTTP connections from; it stays open when the child ends."""


def pause_seconds(failures: int) -> float:
    """Return the pause before the next start after so many exits in a row."""
    return backoff_seconds(failures, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)


class Child:
    """Supervises one process until it is stopped."""

    def __init__(self, recipe: Recipe, console: Voice) -> None:
        self.name = recipe.name
        self._recipe = recipe
        self._console = console
        self._process: asyncio.subprocess.Process | None = None
        self._stop_requested = False
        self._stopping = False
        self._wake = asyncio.Event()
        self._started = asyncio.Event()
        self._started.set()
        console.introduce(self.name)

    @property
    def pid(self) -> int:
        """The id of the running process, else 0."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else 0

    async def run(self) -> None:
        """Run and restart the process; return once it has been stopped."""
        failures = 0
        while not self._stopping:
            started = time.monotonic()
            try:
                end = _ended(await self._live())
            except OSError as exc:  # too many processes or files, no memory: a later start may succeed
                end = f"can't be started ({exc.strerror or exc})"
            if self._stop_requested:
                self._stop_requested, failures = False, 0
                continue
            failures = 1 if time.monotonic() - started > STEADY_SECONDS else failures + 1
            await self._wait_to_restart(end, pause_seconds(failures))

    async def replace(self, grace_seconds: float, hurry: asyncio.Event) -> None:
        """Stop the current process, so that ``run`` starts the next; a pause before a restart ends too."""
        self._wake.set()
        await self._started.wait()  # a process that is being started is stopped like any other
        await self._end(grace_seconds, hurry)

    def kill(self) -> None:
        """Kill the current process and its session, as a crash: ``run`` starts the next."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    async def stop(self, grace_seconds: float, hurry: asyncio.Event) -> None:
        """Stop the process for good."""
        self._stopping = True
        await self.replace(grace_seconds, hurry)

    # -- running

    async def _live(self) -> int:
        """Start the process, forward its lines, and return its exit code."""
        listener = self._recipe.listener
        self._wake.clear()
        self._started.clear()
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *leashed(self._recipe.command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, **self._recipe.environment()},
                start_new_session=True,
                pass_fds=(listener.fileno(),) if listener else (),
                limit=_LONGEST_LINE,
            )
        finally:
            self._started.set()
        pump = asyncio.create_task(self._forward_lines(process))
        try:
            code = await process.wait()
            # Descendants of the process may keep its output open for ever.
            await asyncio.wait([pump], timeout=_LAST_OUTPUT_SECONDS)
        finally:
            pump.cancel()
        return code

    async def _forward_lines(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:
                line = f"(a line of more than {_LONGEST_LINE} bytes was left out)\n".encode()
            if not line:
                return
            self._console.line(self.name, line.decode(errors="replace").rstrip("\r\n"))

    async def _wait_to_restart(self, end: str, seconds: float) -> None:
        if self._stopping:
            return
        text = f"{self.name} {end}; starting it again in {seconds:g} s"
        self._console.warn(text)
        async with answering_unavailable(self._recipe.listener, text, seconds):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()

    # -- stopping

    async def _end(self, grace_seconds: float, hurry: asyncio.Event) -> None:
        """Send SIGTERM; after the grace, or in a hurry, send it again; then kill the whole session."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        self._stop_requested = True
        self._signal(signal.SIGTERM)
        if await _exited(process, grace_seconds, unless=hurry):
            return
        deadline = time.monotonic() + HURRY_SECONDS
        while time.monotonic() < deadline:
            # Repeated: a signal that arrives before the first one was handled is lost.
            self._signal(signal.SIGTERM)
            if await _exited(process, _SIGNAL_AGAIN_SECONDS):
                return
        self._console.warn(f"{self.name} did not stop in time: killed")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            assert self._process is not None
            self._process.send_signal(number)


async def _exited(
    process: asyncio.subprocess.Process, seconds: float, unless: asyncio.Event | None = None
) -> bool:
    """Wait for the process until the timeout, or until the event is set."""
    waits: list[asyncio.Task[Any]] = [asyncio.create_task(process.wait())]
    if unless is not None:
        waits.append(asyncio.create_task(unless.wait()))
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return process.returncode is not None
    finally:
        for wait in waits:
            wait.cancel()


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
