"""Services as real processes of the command line, each in a folder of its own, as on machines of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.processes import forked
from tests.support.redis.valkey_process import free_port
from tests.support.waiting import wait_until

APP = """
import asyncio
import pathlib

from holdfast import App, Context

app = App("orders")


@app.agent
async def order(ctx: Context, ledger: str) -> str:
    def charge() -> str:
        with pathlib.Path(ledger).open("a") as file:
            file.write("charged\\n")
        return "charged"

    done = await ctx.step("charge", charge)
    await ctx.interrupt({"question": "ship it?"})
    return done
"""


class Service:
    """One ``holdfast <command>`` in a folder; its log is read at any time."""

    def __init__(self, command: str, folder: Path, redis_url: str, *options: str, **environ: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "orders.py").write_text(APP)
        variables = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        variables.pop("DATABASE_URL", None)
        variables |= {
            "REDIS_URL": redis_url,
            "HOLDFAST_LOG_FORMAT": "json",
            "HOLDFAST_DRAIN_SECONDS": "0",
            "HEARTBEAT_INTERVAL": "1",
            **environ,
        }
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it ends with the process
        self.process = forked.Popen(
            [sys.executable, "-m", "holdfast", *arguments(command), *options],
            env=variables,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
        )

    def logged(self) -> str:
        """What it has written to stderr so far."""
        # The process shares the offset of the file: reading must not move it.
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    @property
    def ready(self) -> bool:
        return " ready" in self.logged()

    def started(self) -> Service:
        """Wait until it is ready."""
        wait_until(lambda: self.ready or self.process.poll() is not None, what=self.logged())
        assert self.ready, self.logged()
        return self

    def refused(self) -> str:
        """Wait until it has ended without having been ready, and return its only complaint."""
        wait_until(lambda: self.process.poll() is not None or self.ready, what="its end")
        assert not self.ready, self.logged()
        assert self.process.wait() == 1, self.logged()
        [line] = [line for line in self.logged().splitlines() if line.startswith("holdfast: ")]
        assert "Traceback" not in self.logged()
        return line

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.thaw()
        self.process.wait()
        self._log.close()


def arguments(command: str) -> list[str]:
    """How a service is started: those that run agents need an app, those that listen any free port."""
    app = [] if command in {"janitor", "relay"} else ["--app", "orders.py:app"]
    return {
        "api": [command, *app, "--port", "0"],
        "dev": [command, "orders.py:app", "--no-reload", "--port", str(free_port())],
    }.get(command, [command, *app])
