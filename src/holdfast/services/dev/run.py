"""The development system: a server, workers and a janitor as real processes, kept up and reloaded.

::

    start    server ─> app checked ─> workers, janitor
    change   app checked ─> sound: workers replaced │ broken: said, the old workers go on
    stop     workers (drain; a second Ctrl-C hands back now) ─> janitor ─> server
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.config import redacted
from holdfast.errors import AppError
from holdfast.redis.nearby import embedded_server
from holdfast.services.dev.check import check_app
from holdfast.services.dev.child import Child, Recipe
from holdfast.services.dev.console import Console
from holdfast.services.dev.watch import Watch, app_folder
from holdfast.services.signals import on_signals

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.config import Settings
    from holdfast.redis.embedded import EmbeddedServer
    from holdfast.services.dev.check import Verdict

RELOAD_GRACE_SECONDS = 2.0
"""How long runs may finish on the old code before they are handed to workers with the new one."""
STOP_MARGIN_SECONDS = 2.0
SERVER_LOOK_SECONDS = 1.0


def run_dev(settings: Settings, app_path: str, *, workers: int = 2, reload: bool = True) -> int:
    """Run the whole system until Ctrl-C or SIGTERM; return the exit code."""
    return asyncio.run(Dev(settings, app_path, Console(), workers=workers, reload=reload).run())


class Dev:
    """Brings the processes up, keeps them up, and takes them down in order."""

    def __init__(
        self, settings: Settings, app_path: str, console: Console, *, workers: int, reload: bool
    ) -> None:
        self._settings = settings
        self._app_path = app_path
        self._console = console
        self._count = workers
        self._watch = Watch(app_folder(app_path)) if reload else None
        self._server: EmbeddedServer | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self) -> int:
        """Run until a signal comes."""
        on_signals(self._request_stop)
        async with self._redis() as url:
            verdict = await self._sound_app()
            if verdict is not None:
                await self._up(url, verdict)
        self._console.say("stopped")
        return 0

    def _request_stop(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    @contextlib.asynccontextmanager
    async def _redis(self) -> AsyncGenerator[str]:
        """The given Redis, else the embedded server, which outlives every process that uses it."""
        given = self._settings.redis
        if given.url:
            yield given.url
            return
        async with embedded_server(given) as self._server:
            yield self._server.url

    async def _keep_server(self) -> None:
        """Start the server again if it dies; its log has everything, and the workers wait for it."""
        while (server := self._server) is not None:
            await asyncio.sleep(SERVER_LOOK_SECONDS)
            if not _lives(server.pid):
                self._console.warn("the embedded server died; starting it again")
                await server.stop()
                await server.start()
                self._console.say("the embedded server is back")

    # -- the app

    async def _sound_app(self) -> Verdict | None:
        """Wait until the app can be loaded; None if the stop came first."""
        while (verdict := await check_app(self._app_path)).problem:
            if self._watch is None:
                raise AppError(verdict.problem)
            self._console.warn(verdict.problem)
            self._console.say("waiting for a change")
            if not await self._changed(self._watch):
                return None
        return verdict

    async def _changed(self, watch: Watch) -> bool:
        """Wait for a change; False if the stop came first."""
        waits = [asyncio.create_task(watch.changed()), asyncio.create_task(self._stop.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return not self._stop.is_set()

    async def _reload(self, workers: list[Child]) -> None:
        while (watch := self._watch) is not None:
            changed = await watch.changed()
            self._console.say(f"{_named(changed)} changed")
            verdict = await check_app(self._app_path)
            if verdict.problem:
                self._console.warn(verdict.problem)
                self._console.say("the old code goes on; waiting for the next change")
                continue
            self._console.say(f"reloading {len(workers)} workers; agents: {', '.join(verdict.agents)}")
            await asyncio.gather(*(worker.replace(RELOAD_GRACE_SECONDS, self._hurry) for worker in workers))

    # -- the processes

    async def _up(self, url: str, verdict: Verdict) -> None:
        workers = [Child(self._worker(url, number), self._console) for number in range(1, self._count + 1)]
        janitors = [Child(self._janitor(url), self._console)] if self._settings.janitor.enabled else []
        self._welcome(url, verdict)
        async with asyncio.TaskGroup() as group:
            for child in (*workers, *janitors):
                group.create_task(child.run(), name=child.name)
            rounds = [group.create_task(self._keep_server()), group.create_task(self._reload(workers))]
            await self._stop.wait()
            for task in rounds:
                task.cancel()
            await self._down(workers, janitors)

    async def _down(self, workers: list[Child], janitors: list[Child]) -> None:
        """Workers first, while Redis is there to hand runs back to."""
        self._console.say("stopping: runs may finish; Ctrl-C again hands them back now")
        grace = self._settings.worker.drain_seconds + STOP_MARGIN_SECONDS
        await asyncio.gather(*(worker.stop(grace, self._hurry) for worker in workers))
        await asyncio.gather(*(janitor.stop(STOP_MARGIN_SECONDS, self._hurry) for janitor in janitors))

    def _worker(self, url: str, number: int) -> Recipe:
        name = f"worker-{number}"

        def environment() -> dict[str, str]:
            # A new name for every start: what a dead process of this place still holds is not ours.
            return self._environment(url, number - 1) | {"WORKER_POD_NAME": f"{name}-{secrets.token_hex(2)}"}

        return Recipe(name, _holdfast("worker", "--app", self._app_path), environment)

    def _janitor(self, url: str) -> Recipe:
        return Recipe("janitor", _holdfast("janitor"), lambda: self._environment(url, self._count))

    def _environment(self, url: str, place: int) -> dict[str, str]:
        settings = self._settings
        environment = {"REDIS_URL": url, "PYTHONUNBUFFERED": "1"}
        if settings.log.format == "auto":
            environment["HOLDFAST_LOG_FORMAT"] = "console"
        if settings.metrics.port:
            environment["METRICS_PORT"] = str(settings.metrics.port + place)
        return environment

    def _welcome(self, url: str, verdict: Verdict) -> None:
        console, agents = self._console, verdict.agents
        submit = console.bold(f"holdfast submit {agents[0] if agents else 'AGENT'} JSON --follow")
        here = "" if self._settings.redis.url else f" (in {Path.cwd()}, or with REDIS_URL set)"
        console.say(
            f"Redis    {redacted(url)}\n"
            f"agents   {', '.join(agents) or 'none yet: register one with @app.agent'}\n"
            f"submit   {submit}{here}\n"
            f"reload   {self._watch.folder if self._watch else 'off'}\n"
            f"stop     Ctrl-C"
        )


def _holdfast(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "holdfast", *arguments)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _named(paths: list[Path]) -> str:
    names = ", ".join(path.name for path in paths[:3])
    return f"{names} and {len(paths) - 3} more" if len(paths) > 3 else names
