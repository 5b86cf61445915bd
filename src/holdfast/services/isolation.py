"""Processes for agents with ``isolation="process"``: started before the first run, stopped at the end."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.agents.loader import reference_of
from holdfast.errors import AppError, ConfigError, ProcessError
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.agents.app import App
    from holdfast.config import Settings
    from holdfast.processes.attempts import Attempts
    from holdfast.processes.processes import Processes
    from holdfast.telemetry.metrics import Metrics

_CHILD: Final = "holdfast.services.attempt"  # by name: only children need what it imports
_PROBE: Final = "probe"
_SPARE: Final = 4

_log = get_logger(__name__)


@contextlib.asynccontextmanager
async def isolation(
    settings: Settings, app: App, metrics: Metrics, slots: int
) -> AsyncGenerator[Attempts | None]:
    """Yield the processes of an app's isolated agents; None if it has no such agent."""
    isolated = [name for name, spec in app.agents.items() if spec.isolation == "process"]
    if not isolated:
        yield None
        return
    from holdfast.processes.attempts import Attempts  # noqa: PLC0415 - most workers start no process

    reference = reference_of(app)
    if not reference:
        raise AppError(
            f"agent {isolated[0]!r} has isolation='process', but no other process can find its app "
            f"{app.name!r}: make the App a variable of a module or file, and its agents too"
        )
    _check_payloads(settings, isolated[0])
    processes = await _started(settings, reference, slots)
    lease = settings.lease
    try:
        yield Attempts(
            processes,
            metrics,
            slack_seconds=(lease.ttl_seconds - lease.trust_seconds) / 2,
        )
    finally:
        await asyncio.to_thread(processes.shutdown, 0)


def _check_payloads(settings: Settings, agent: str) -> None:
    """Reject queues with a payload limit above that of a process: such a run would fail."""
    from holdfast.processes.processes import LARGEST_PAYLOAD_BYTES  # noqa: PLC0415 - as above

    for queue in settings.worker_queues():
        if queue.max_payload_bytes > LARGEST_PAYLOAD_BYTES:
            raise ConfigError(
                f"queue {queue.name!r} takes max_payload_bytes = {queue.max_payload_bytes} "
                f"(HOLDFAST_MAX_PAYLOAD_BYTES), but agent {agent!r} has isolation='process', and the "
                f"payload of a process has at most {LARGEST_PAYLOAD_BYTES} bytes: lower that, or drop this"
            )


async def _started(settings: Settings, reference: str, slots: int) -> Processes:
    """Return tested processes, with the app preloaded in their zygote if possible."""
    try:
        return await _tested(settings, reference, slots, ahead=True)
    except ProcessError as exc:
        _log.warning(
            "app preload failed, each attempt loads the app itself",
            app=reference,
            error=str(exc),
        )
        return await _tested(settings, reference, slots, ahead=False)


def _with_file(settings: Settings) -> Settings:
    """Return the settings with the full path of the SQLite file: an import may change the directory."""
    database = settings.database
    path = str(Path(database.path).absolute())
    return msgspec.structs.replace(settings, database=msgspec.structs.replace(database, path=path))


async def _tested(settings: Settings, reference: str, slots: int, *, ahead: bool) -> Processes:
    from holdfast.processes.attempts import ENTRY  # noqa: PLC0415 - as above
    from holdfast.processes.options import ProcessOptions  # noqa: PLC0415 - as above
    from holdfast.processes.processes import Processes  # noqa: PLC0415 - as above

    surroundings = {"app": reference, "settings": _with_file(settings), "ahead": ahead}
    processes = Processes(
        ProcessOptions(
            entries={ENTRY: f"{_CHILD}:run", _PROBE: f"{_CHILD}:probe"},
            preload=(_CHILD,),
            prepare=((f"{_CHILD}:prepare", msgspec.json.encode(surroundings).decode()),),
            max_processes=slots + _SPARE,
            ready_timeout_seconds=120.0,
            output_lines_per_second=2000,
            output_bytes_per_second=8 * 1024 * 1024,
            output_tail_lines=30,
            control_bytes_per_second=64 * 1024 * 1024,
            once=True,
            keep_seconds=settings.lease.renew_every_seconds / 2,
        )
    )
    try:
        await processes.create(_PROBE, _PROBE)
        # The probe exits before Attempts subscribes, so nothing else would remove it.
        await processes.end(_PROBE)
        await asyncio.wrap_future(processes.forget(_PROBE))  # guard: ended-probe-forgotten
    except BaseException:
        await asyncio.to_thread(processes.shutdown, 0)
        raise
    return processes
