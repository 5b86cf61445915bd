"""Tells whether an app can be loaded, by loading it in a process of its own: nothing of it stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import dataclass

from holdfast.services.dev.leash import leashed

PATIENCE_SECONDS = 60.0
BROKEN = 1
"""The probe's exit code for code that can't be imported: the next version of it may be."""
MISNAMED = 2
"""Its exit code for code that is sound but holds nothing, or no App, of that name."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is in an app that can be loaded, or why it can't; ``misnamed`` if only its name is wrong."""

    agents: tuple[str, ...] = ()
    residents: tuple[str, ...] = ()
    problem: str = ""
    misnamed: bool = False


async def check_app(reference: str) -> Verdict:
    """Load the app elsewhere and say how that went."""
    command = [sys.executable, "-m", "holdfast.services.dev.probe", reference]
    process = await asyncio.create_subprocess_exec(
        *leashed(command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            printed, problem = await process.communicate()
    except TimeoutError:
        return Verdict(problem=f"{reference} was still being imported after {PATIENCE_SECONDS:g} s")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        told = problem.decode(errors="replace").strip() or f"{reference} can't be loaded"
        return Verdict(problem=told, misnamed=process.returncode == MISNAMED)
    # The app may print, too: ours are the last two lines.
    agents, residents = printed.decode(errors="replace").split("\n")[-3:-1]
    return Verdict(tuple(agents.split()), tuple(residents.split()))
