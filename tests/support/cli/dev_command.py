"""``holdfast dev`` for tests: the command in a process of its own, its children, and what it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from holdfast.client import Client
from holdfast.config import RedisSettings, Settings, setting_rows
from tests.support.processes import forked
from tests.support.waiting import PATIENCE_SECONDS, wait_until

APP = """
import asyncio
from holdfast import App, Context

app = App("desk")

@app.agent
async def greet(name):
    return f"{GREETING} {name}"

@app.agent
async def slow(ctx: Context, seconds):
    await ctx.emit("working", {})
    await asyncio.sleep(seconds)
"""


def version(greeting: str) -> str:
    return APP + f"\nGREETING = {greeting!r}\n"


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class Command:
    """A command in a process of its own, and what it prints."""

    def __init__(self, folder: Path, *arguments: str, **environ: str) -> None:
        ours = {name for row in setting_rows() for name in row.env}
        clean = {k: v for k, v in os.environ.items() if k not in ours and not k.startswith("HOLDFAST_")}
        self.folder = folder
        # A forked process has imported Holdfast before a PYTHONPATH could change what it finds.
        start = subprocess.Popen if "PYTHONPATH" in environ else forked.Popen
        self.process = start(
            [sys.executable, "-m", "holdfast", *arguments],
            cwd=folder,
            env={**clean, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def says(self, text: str, times: int = 1) -> None:
        """Wait until a text has been printed so many times."""
        wait_until(
            lambda: self.text,
            lambda printed: printed.count(text) >= times,
            what=f"the command to print {text!r} {times} times",
            seconds=60,  # dev starts half a dozen interpreters at once
        )

    def family(self) -> list[int]:
        """Every process that it has started, and the server that runs for it."""
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:  # it has just ended
            children = []
        server = [p.pid for p in psutil.process_iter(["cmdline"]) if str(self.folder) in _command(p)]
        return sorted({*(child.pid for child in children), *server})

    def child(self, kind: str) -> psutil.Process:
        children = psutil.Process(self.process.pid).children(recursive=True)
        return next(child for child in children if f" holdfast {kind}" in _command(child))

    def worker(self) -> psutil.Process:
        return self.child("worker")

    def exited(self, seconds: float = 60.0) -> int:
        code = self.process.wait(seconds)
        self._reader.join(10)
        return code

    def close(self) -> None:
        family = self.family() if self.process.poll() is None else []
        self.process.kill()
        self.process.wait()
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        wait_until(lambda: all(map(gone, family)), what=f"the end of {family}")


class Dev(Command):
    """``holdfast dev``."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        app: str = "desk.py:app",
        workers: tuple[str, ...] = ("--workers", "1"),
        **environ: str,
    ) -> None:
        super().__init__(folder, "dev", app, *workers, *options, **{"HOLDFAST_API_PORT": "0", **environ})

    def ready(self, times: int = 1) -> Dev:
        self.says("worker ready", times)
        return self

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/.holdfast/redis/redis.sock"

    def settings(self) -> Settings:
        return Settings(redis=RedisSettings(url=self.url))

    @property
    def api(self) -> str:
        """Where the api is, once it is ready."""
        self.says("api ready")
        return re.search(r"api      (http://\S+)", self.text)[1]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


StartDev = Callable[..., Dev]


async def greeting(dev: Dev) -> str:
    async with Client(settings=dev.settings()) as client:
        return await (await client.submit("greet", "Ada")).result(timeout=PATIENCE_SECONDS)
