"""The entries of agents' processes, for a host process and for a host inside a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.hosts.entries import PLAIN, RUSTIC, offers_rustic
from holdfast.hosts.factory import open_engine, options_of
from holdfast.services.resident import APP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.config import HostSettings, Settings
    from holdfast.hosts.engine import HostEngine
    from holdfast.processes.options import ProcessOptions
    from holdfast.redis.client import Redis

ENTRIES: Final[Mapping[str, str]] = {**PLAIN, "resident": "holdfast.services.resident:run"}


def default_entry(hosts: HostSettings) -> str:
    """Return the entry for callers that name none: with Rustic AI installed they send its specs."""
    return RUSTIC if offers_rustic(hosts) else "plain"


def process_options(settings: Settings, app: str = "", *, pass_settings: bool = False) -> ProcessOptions:
    """Return the options of a host's processes; without an app it has no residents.

    Residents read the settings where the host read them, unless ``pass_settings`` is set.
    """
    if not app:
        return options_of(settings.hosts)
    prepare = (("holdfast.services.resident:prepare", app),) if settings.hosts.preload_app else ()
    if pass_settings:
        document = msgspec.json.encode(settings).decode()
        prepare = (("holdfast.services.resident:configure", document), *prepare)
    return options_of(settings.hosts, ENTRIES, preload=("holdfast.services.resident",), prepare=prepare)


def engine_of(settings: Settings, redis: Redis, app: str = "") -> HostEngine:
    """Return the engine of the settings; a local one runs the residents of ``app``. The caller closes it."""
    # A program's settings need not be in its environment: they are passed to its agents.
    options = process_options(settings, app, pass_settings=True)
    return open_engine(settings, redis, options=options, labels={APP: app} if app else {})
