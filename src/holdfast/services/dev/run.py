"""The development system: a server, workers, a scheduler and the API as supervised, reloaded processes.

::

    start    server ─> app checked ─> workers, scheduler, api (with janitor and relay, or beside them)
                                      (workers: a fixed number, or an autoscaler)
                                      and a host, once there are residents
    change   of a file that the app imports
             app checked ─> loaded: workers, scheduler and host replaced; the api if its catalogue changed
                         ─> broken: the old processes keep running
    stop     workers, scheduler (drain; a second Ctrl-C hands back now) ─> api and the others ─> server
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.errors import AppError
from holdfast.packages import missing_extra
from holdfast.redaction import redact_url
from holdfast.redis.locate import embedded_server
from holdfast.services.autoscaler import STOP_MARGIN_SECONDS, Autoscaler
from holdfast.services.child_output import Spoken
from holdfast.services.connections import Connections
from holdfast.services.dev.address import curl_line, missing_packages, opened, submit_line
from holdfast.services.dev.check import Example, check_app
from holdfast.services.dev.child import Child
from holdfast.services.dev.console import Console, JsonConsole
from holdfast.services.dev.recipes import SINGLE_PLACES, Recipes
from holdfast.services.dev.watch import FileWatch, app_folder
from holdfast.services.signals import on_signals
from holdfast.services.store_registration import StoreRegistration
from holdfast.telemetry import logs

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Sequence

    from holdfast.config import QueueSettings, Settings
    from holdfast.redis.embedded import EmbeddedServer
    from holdfast.services.dev.address import ApiAddress
    from holdfast.services.dev.check import AppCheck

RELOAD_GRACE_SECONDS = 2.0
"""How long runs may finish on the old code before they are handed to workers with the new one."""
API_GRACE_SECONDS = 2.0
"""How long open requests may finish before the api ends; new ones wait for the next api meanwhile."""
SERVER_LOOK_SECONDS = 1.0


def run_dev(
    settings: Settings,
    app_path: str,
    *,
    workers: int = 2,
    autoscaled: Sequence[QueueSettings] = (),
    reload: bool = True,
    port_asked: bool = False,
) -> int:
    """Run the whole system until Ctrl-C or SIGTERM; return the exit code.

    Queues that are ``autoscaled`` have as many workers as they need, instead of ``workers`` for all of them.
    """
    as_json = settings.log.format == "json"
    if as_json:
        logs.configure(settings.log)
    dev = Dev(
        *(settings, app_path, JsonConsole() if as_json else Console()),
        workers=workers,
        autoscaled=autoscaled,
        reload=reload,
        port_asked=port_asked,
    )
    return asyncio.run(dev.run())


class Dev:
    """Starts the processes, supervises them, and stops them in order."""

    def __init__(
        self,
        settings: Settings,
        app_path: str,
        console: Console,
        *,
        workers: int,
        autoscaled: Sequence[QueueSettings],
        reload: bool,
        port_asked: bool,
    ) -> None:
        self._settings = settings
        self._app_path = app_path
        self._console = console
        self._count = 0 if autoscaled else workers
        self._autoscaled = autoscaled
        self._port_asked = port_asked
        self._watch = FileWatch(app_folder(app_path)) if reload else None
        self._server: EmbeddedServer | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self) -> int:
        """Run until a signal comes."""
        on_signals(self._request_stop)
        async with self._redis() as url:
            verdict = await self._loadable_app()
            await self._check_store(url)
            if verdict is not None:
                await self._run_processes(url, verdict)
        self._console.say("stopped")
        return 0

    async def _check_store(self, url: str) -> None:
        """Reject a store that every process would reject: they would be restarted for ever."""
        redis = msgspec.structs.replace(self._settings.redis, url=url)
        settings = msgspec.structs.replace(self._settings, redis=redis)
        async with Connections(settings) as connections:
            await StoreRegistration(connections, "dev", str(Path.cwd())).check()

    def _request_stop(self) -> None:
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    @contextlib.asynccontextmanager
    async def _redis(self) -> AsyncGenerator[str]:
        """Yield the URL of the given Redis, else of the embedded server, which outlives its clients."""
        given = self._settings.redis
        if given.url:
            yield given.url
            return
        async with embedded_server(given) as self._server:
            yield self._server.url

    async def _keep_server(self) -> None:
        """Restart the server if it exits; its data is on disk, and the workers wait for it."""
        while (server := self._server) is not None:
            await asyncio.sleep(SERVER_LOOK_SECONDS)
            if not _lives(server.pid):
                self._console.warn("the embedded server died; starting it again")
                await server.stop()
                await server.start()
                self._console.say("the embedded server is back")

    # -- the app

    async def _loadable_app(self) -> AppCheck | None:
        """Wait until the app can be loaded; None if the stop came first."""
        while (verdict := await self._check_app()).problem:
            # A change of the code may repair broken code, but not a wrong name on the command line.
            if self._watch is None or verdict.misnamed:
                raise AppError(verdict.problem)
            self._console.warn(verdict.problem)
            self._console.say("waiting for a change")
            if not await self._changed(self._watch):
                return None
        return verdict

    async def _check_app(self) -> AppCheck:
        """Load the app in another process, and watch its files from now on."""
        verdict = await check_app(self._app_path)
        if self._watch is not None:
            self._watch.files = None if verdict.problem else verdict.files
        return verdict

    async def _changed(self, watch: FileWatch) -> bool:
        """Wait for a change; False if the stop came first."""
        waits = [asyncio.create_task(watch.changed()), asyncio.create_task(self._stop.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return not self._stop.is_set()

    async def _reload(
        self,
        workers: list[Child],
        scaler: Autoscaler | None,
        api: list[Child],
        first: AppCheck,
        start_host: Callable[[AppCheck], None],
    ) -> None:
        catalogue = first.catalogue
        while (watch := self._watch) is not None:
            changes = await watch.changed()
            if changes.app:
                self._console.say(f"{_named(changes.app)} changed")
            verdict = await self._check_app()
            if not changes.app:
                imported = watch.of_app(changes.new)
                if not imported and not verdict.problem:
                    continue  # a script, a test: the app does not import it
                self._console.say(f"{_named(imported or changes.new)} added")
            if verdict.problem:
                self._console.warn(verdict.problem)
                self._console.say("the old code keeps running; waiting for the next change")
                continue
            # The api validates agents' names and announces their descriptions and schemas: while those
            # are the same, it need not be replaced.
            reloaded_api = api if verdict.catalogue != catalogue else []
            catalogue = verdict.catalogue
            count = f"{self._count} workers" if scaler is None else "the workers"
            names = f"{count}, the scheduler{' and the api' if reloaded_api else ''}"
            self._console.say(f"reloading {names}; agents: {', '.join(verdict.agents)}")
            replaced = [each.replace(RELOAD_GRACE_SECONDS, self._hurry) for each in workers]
            replaced += [each.replace(API_GRACE_SECONDS, self._hurry) for each in reloaded_api]
            if scaler is not None:
                replaced.append(scaler.replace(RELOAD_GRACE_SECONDS, self._hurry))
            await asyncio.gather(*replaced)
            start_host(verdict)

    # -- the processes

    async def _run_processes(self, url: str, verdict: AppCheck) -> None:
        with self._address() as address:
            recipes = Recipes(self._settings, self._app_path, url, workers=self._count, address=address)
            running = (*recipes.workers(), *recipes.scheduler())  # these run the app's code
            workers = [Child(recipe, self._console) for recipe in running]
            api = [Child(recipe, self._console) for recipe in recipes.api()]
            upkeep = [Child(recipe, self._console) for recipe in recipes.upkeep()]
            scaler = self._autoscaler(url) if self._autoscaled else None
            self._print_overview(url, verdict, address)
            async with asyncio.TaskGroup() as group:
                for child in (*workers, *api, *upkeep):
                    group.create_task(child.run(), name=child.name)

                def start_host(verdict: AppCheck) -> None:
                    """Start a host with the first resident."""
                    if self._needs_host(verdict) and all(child.name != "host" for child in workers):
                        workers.append(Child(recipes.host(), self._console))
                        group.create_task(workers[-1].run(), name="host")

                start_host(verdict)
                if scaler is not None:
                    group.create_task(scaler.run(), name="autoscaler")
                rounds = (self._keep_server(), self._reload(workers, scaler, api, verdict, start_host))
                tasks = [group.create_task(each) for each in rounds]
                await self._stop.wait()
                for task in tasks:
                    task.cancel()
                await self._stop_processes(workers, scaler, api, upkeep)

    def _needs_host(self, verdict: AppCheck) -> bool:
        if verdict.residents and not importlib.util.find_spec("grpc"):
            self._console.warn(
                f"no host for {', '.join(verdict.residents)}: {missing_extra('it', 'grpc', 'hosts')}"
            )
            return False
        return bool(verdict.residents)

    def _autoscaler(self, url: str) -> Autoscaler:
        settings = self._settings
        found = msgspec.structs.replace(settings, redis=msgspec.structs.replace(settings.redis, url=url))
        return Autoscaler(
            found,
            self._app_path,
            Spoken(self._console),
            queues=self._autoscaled,
            log_format="console" if settings.log.format == "auto" else settings.log.format,
            first_port=settings.metrics.port + SINGLE_PLACES,
            hurry=self._hurry,
        )

    @contextlib.contextmanager
    def _address(self) -> Generator[ApiAddress | None]:
        """Yield the address of the API; None, with a message, without its packages."""
        missing = missing_packages()
        if missing:
            self._console.say(
                f"no api: {missing_extra('it', ', '.join(missing), 'api')}; everything else runs without it"
            )
            yield None
            return
        with opened(self._settings.api, asked=self._port_asked) as address:
            if address.refused:
                self._console.warn(
                    f"port {self._settings.api.port} can't be opened ({address.refused}): the api is on "
                    f"{address.port} instead; --port or api.port (HOLDFAST_API_PORT) chooses another"
                )
            yield address

    async def _stop_processes(
        self, workers: list[Child], scaler: Autoscaler | None, api: list[Child], upkeep: list[Child]
    ) -> None:
        """Stop the workers first, while Redis can take runs back and the API can show them."""
        self._console.say("stopping: runs may finish; Ctrl-C again hands them back now")
        grace = self._settings.worker.drain_seconds + STOP_MARGIN_SECONDS
        working = [worker.stop(grace, self._hurry) for worker in workers]
        if scaler is not None:
            working.append(scaler.stop())
        await asyncio.gather(*working)
        stops = [each.stop(API_GRACE_SECONDS, self._hurry) for each in api]
        stops += [each.stop(STOP_MARGIN_SECONDS, self._hurry) for each in upkeep]
        await asyncio.gather(*stops)

    def _print_overview(self, url: str, verdict: AppCheck, address: ApiAddress | None) -> None:
        console, agents, residents = self._console, verdict.agents, verdict.residents
        runs = bool(agents) or not residents  # with residents only there is nothing to submit
        example = verdict.example or Example(agents[0] if agents else "AGENT", {})
        here = "" if self._settings.redis.url else f" (in {Path.cwd()}, or with REDIS_URL set)"
        lines = [f"Redis    {redact_url(url)}"]
        if runs:
            lines.append(f"agents   {', '.join(agents) or 'none yet: register one with @app.agent'}")
        if residents:
            start = console.bold(f"holdfast residents start {residents[0]} ID")
            lines.append(f"resident {', '.join(residents)}: {start}{'' if runs else here}")
        if runs:
            lines.append(f"submit   {console.bold(submit_line(example.agent, example.input))}{here}")
        if address is not None:
            lines.append(f"api      {address.url}")
            if runs:
                keyed = bool(self._settings.api.keys)
                curl = curl_line(address, example.agent, example.input, keyed=keyed)
                lines.append(f"http     {console.bold(curl)}")
        lines += [f"reload   {self._watch.folder if self._watch else 'off'}", "stop     Ctrl-C"]
        console.say("\n".join(lines))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _named(paths: list[Path]) -> str:
    names = ", ".join(path.name for path in paths[:3])
    return f"{names} and {len(paths) - 3} more" if len(paths) > 3 else names
