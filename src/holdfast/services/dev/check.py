"""Checks whether an app can be loaded, in a process of its own: nothing of it stays in this one."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.services.dev.leash import leashed

PATIENCE_SECONDS = 60.0
BROKEN = 1
"""The probe's exit code for code that can't be imported: the next version of it may be."""
MISNAMED = 2
"""The probe's exit code for code that can be imported but has no App of that name."""


class Example(msgspec.Struct, frozen=True):
    """An agent, and an input that it accepts."""

    agent: str
    input: Any


class Contents(msgspec.Struct, frozen=True):
    """The contents of an app, as the probe prints them."""

    agents: list[str] = []
    residents: list[str] = []
    files: list[str] = []
    example: Example | None = None
    catalogue: str = ""


@dataclass(frozen=True, slots=True)
class AppCheck:
    """The contents of a loaded app, or the problem; ``misnamed`` if only its name is wrong."""

    agents: tuple[str, ...] = ()
    residents: tuple[str, ...] = ()
    files: frozenset[str] = frozenset()
    """The Python files under the app's folder that it is made of."""
    example: Example | None = None
    """The agent and the input of the commands that are printed."""
    catalogue: str = ""
    """Digest of the agents' names, descriptions, schemas and limits."""
    problem: str = ""
    misnamed: bool = False


async def check_app(reference: str) -> AppCheck:
    """Load the app in another process; return its contents, or why it can't be loaded."""
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
        return AppCheck(problem=f"{reference} was still being imported after {PATIENCE_SECONDS:g} s")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        text = problem.decode(errors="replace").strip() or f"{reference} can't be loaded"
        return AppCheck(problem=text, misnamed=process.returncode == MISNAMED)
    # The app may print, too: the last line is the probe's.
    found = msgspec.json.decode(printed.split(b"\n")[-2], type=Contents)
    return AppCheck(
        tuple(found.agents),
        tuple(found.residents),
        frozenset(found.files),
        found.example,
        found.catalogue,
    )
