"""The agents of schedules that are measured, and as many schedules in code as ``TURNS_IN_CODE`` says."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import signal
import time
from pathlib import Path

from holdfast import App, Context

app = App("bench-turns")
_late: list[float] = []


@app.agent
async def noop() -> None:
    """Do nothing: what is left is what a turn costs."""


@app.agent
async def late(ctx: Context) -> None:
    """Note how long after its turn it began; the name of a turn ends with when it was due."""
    _late.append(time.time() - float(ctx.run_id.rpartition("@")[2]))


@app.agent
async def begin() -> None:
    """Write down when it began, and stay."""
    _note(f"{time.monotonic()}\n")
    await asyncio.sleep(3600)


def _note(line: str) -> None:
    with Path(os.environ["TURNS_FILE"]).open("a") as file:
        file.write(line)


for _number in range(int(os.environ.get("TURNS_IN_CODE", "0"))):
    app.schedule(every=3600, name=f"code-{_number}", starts_at=time.time() + 1800)(noop)


# What came before is not measured.
signal.signal(signal.SIGUSR1, lambda *_: _late.clear())


@atexit.register
def _tell() -> None:
    if _late:
        Path(os.environ["TURNS_FILE"]).write_text(json.dumps(_late))
