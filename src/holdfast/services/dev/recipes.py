"""The processes of a development system, and how each is started."""

from __future__ import annotations

import importlib.util
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.config import HostSettings
from holdfast.services.dev.child import Recipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.config import Settings
    from holdfast.services.dev.address import ApiAddress


SINGLE_PLACES = 5
"""The number of metrics ports for single processes: api, janitor, relay, scheduler and host."""


class Recipes:
    """The recipes of one system: all its processes have the same Redis, database and settings."""

    def __init__(
        self, settings: Settings, app_path: str, redis_url: str, *, workers: int, address: ApiAddress | None
    ) -> None:
        self._settings = settings
        self._app_path = app_path
        self._redis_url = redis_url
        self._count = workers
        self._address = address

    def workers(self) -> list[Recipe]:
        """Return the workers, numbered from 1."""
        return [self._worker(number) for number in range(1, self._count + 1)]

    def scheduler(self) -> list[Recipe]:
        """Return the scheduler, also for an app without schedules: a change or a caller may add one."""
        environment = self._environment(self._count + 3)
        return [Recipe("scheduler", _holdfast("scheduler", "--app", self._app_path), environment)]

    def host(self) -> Recipe:
        """Return the host of an app's residents."""
        common, grpc_port = self._environment(self._count + 4), self._settings.hosts.grpc_port

        def environment() -> dict[str, str]:
            # Any port unless one is configured: another system on this machine may use the default.
            port = "0" if grpc_port == HostSettings().grpc_port else str(grpc_port)
            return common() | {"GRPC_PORT": port, "HOLDFAST_HOSTS_NAME": f"host-{secrets.token_hex(2)}"}

        return Recipe("host", _holdfast("host", "--app", self._app_path), environment)

    def api(self) -> list[Recipe]:
        """Return the API, if it has an address."""
        if self._address is None:
            return []
        listener = self._address.listener
        where = ("--fd", str(listener.fileno())) if listener else ("--port", str(self._address.port))
        command = _holdfast("api", "--app", self._app_path, *where)
        return [Recipe("api", command, self._environment(self._count), listener)]

    def upkeep(self) -> list[Recipe]:
        """Return the janitor and the relay as processes, unless the API runs them."""
        settings, recipes = self._settings, list[Recipe]()
        has_api = self._address is not None
        if settings.janitor.enabled and not (has_api and settings.api.janitor):
            recipes.append(Recipe("janitor", _holdfast("janitor"), self._environment(self._count + 1)))
        if importlib.util.find_spec("aiohttp") and not (has_api and settings.api.relay):
            recipes.append(Recipe("relay", _holdfast("relay"), self._environment(self._count + 2)))
        return recipes

    def _worker(self, number: int) -> Recipe:
        name, common = f"worker-{number}", self._environment(number - 1)

        def environment() -> dict[str, str]:
            # A new name for every start: leases of the previous process are not ours.
            return common() | {"WORKER_POD_NAME": f"{name}-{secrets.token_hex(2)}"}

        return Recipe(name, _holdfast("worker", "--app", self._app_path), environment)

    def _environment(self, number: int) -> Callable[[], dict[str, str]]:
        settings = self._settings
        environment = {"REDIS_URL": self._redis_url, "PYTHONUNBUFFERED": "1"}
        environment["HOLDFAST_RELAY_PRIVATE_WEBHOOKS"] = "true"  # receivers are on this machine too
        if not settings.database.url:
            # One file for all processes: agents may change the working directory.
            environment["HOLDFAST_DATABASE_PATH"] = str(Path(settings.database.path).absolute())
        if settings.log.format == "auto":
            environment["HOLDFAST_LOG_FORMAT"] = "console"
        if settings.metrics.port:
            environment["METRICS_PORT"] = str(settings.metrics.port + number)
        return environment.copy


def _holdfast(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "holdfast", *arguments)
