"""A resident's process: the entry that a host forks, which joins a resident's class and its mailbox.

::

    make ─> start ─> worker of the mailbox ─> control.ready ─> receive …
                                            ─> asked to stop, or disowned ─> drain ─> stop
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.agents.app import App
from holdfast.agents.loader import load_app
from holdfast.config import Settings, load
from holdfast.errors import AppError, InputError
from holdfast.hosts.factory import registry_of
from holdfast.hosts.mailbox import RECEIVE, copy_of, mailbox_of, mailbox_settings, reader_name
from holdfast.processes import procfs
from holdfast.redis.client import TROUBLE, connect
from holdfast.runs.execution.worker import WorkerTuning
from holdfast.services.resident_counters import CounterDeltas
from holdfast.services.worker import WorkerProcess
from holdfast.telemetry import logs, traces
from holdfast.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from holdfast.agents.resident import ResidentSpec
    from holdfast.processes.control import ChildControl

APP: Final = "app"
"""The label by which a host sends its children the path of its app."""

_POLL_SECONDS: Final = 5.0
"""How often, at least, a resident checks that no later copy was placed."""

_log = logs.get_logger(__name__)
_loaded: dict[str, App] = {}
_settings: list[Settings] = []
_metrics: list[Metrics] = []


class Spec(msgspec.Struct, frozen=True):
    """The agent_spec of a resident."""

    id: str
    resident: str
    input: Any = None
    name: str = ""


def prepare(reference: str) -> None:
    """In the zygote: load the app that all residents share, so that none loads it again."""
    _loaded[reference] = load_app(reference)
    if procfs.thread_count() != 1:
        raise AppError(
            f"{reference} starts a thread when it is imported, and a process with threads can't be forked "
            "safely: start it later, or set hosts.preload_app to false, and every resident imports it itself"
        )
    _settings.append(load().settings)
    _metrics.append(Metrics((RECEIVE,)))
    traces.import_sdk()


def configure(document: str) -> None:
    """In the zygote: set the settings of the program that owns these residents."""
    _settings[:] = [msgspec.json.decode(document, type=Settings)]


def run(payload: dict[str, Any], control: ChildControl) -> None:
    """Run a resident until it is asked to stop."""
    settings = _settings[0] if _settings else load().settings
    logs.configure(msgspec.structs.replace(settings.log, format="json"))
    try:
        spec = msgspec.convert(payload["agent_spec"], Spec)
    except msgspec.ValidationError as exc:
        raise InputError(f"agent_spec: {exc}") from None  # the caller gets the message without a traceback
    known = _known(spec.resident, control.labels[APP])
    # Before any code of the resident runs: an invalid input is rejected, and is no crash to retry.
    arguments = known.arguments(spec.input)
    traces.start("resident")
    try:
        asyncio.run(_live(settings, known, arguments, control))
    finally:
        traces.finish()


def _known(name: str, reference: str) -> ResidentSpec:
    app = _loaded.get(reference) or load_app(reference)
    try:
        return app.residents[name]
    except KeyError:
        known = ", ".join(sorted(app.residents)) or "none: declare one with @app.resident"
        raise AppError(f"app {app.name!r} has no resident {name!r}; its residents: {known}") from None


async def _live(
    settings: Settings, known: ResidentSpec, arguments: tuple[Any, ...], control: ChildControl
) -> None:
    resident: Any = known.make(*arguments)
    await _maybe(resident, "start")
    app = App("resident")
    app.register(RECEIVE, resident.receive, **known.options)
    agent_id = control.agent_id
    joined = asyncio.Event()

    def join() -> None:
        control.ready(mailbox=mailbox_of(agent_id))
        if settings.hosts.health_seconds > 0:
            # Before its first message can block it: an agent that never reported is not restarted.
            control.report("health", well=True, error="")  # guard: resident-health-reported
        joined.set()

    worker = WorkerProcess(
        _own(settings, agent_id, control.fence),
        app,
        tuning=_tuning(agent_id, control),
        metrics=_metrics[0] if _metrics else None,
        on_joined=join,  # a callback: waiting for it would come after the start of the worker
    )
    counters = CounterDeltas(worker.metrics, control)
    async with asyncio.TaskGroup() as group:
        working = group.create_task(worker.run())
        joining = group.create_task(joined.wait())
        stopped = group.create_task(control.stopped())
        # guard: resident-stop-while-joining
        await asyncio.wait((working, joining, stopped), return_when=asyncio.FIRST_COMPLETED)
        reporting = group.create_task(counters.run())
        health = group.create_task(_report_health(resident, settings.hosts.health_seconds, control))
        disowned = group.create_task(_disowned(settings, control))
        await asyncio.wait((stopped, disowned), return_when=asyncio.FIRST_COMPLETED)
        for task in (joining, health, reporting, stopped, disowned):
            task.cancel()
        # A disowned copy also finishes its message: the next copy waits for the thread of that message.
        worker.request_stop()  # guard: disowned-resident-stops-once
    counters.tell()
    await _maybe(resident, "stop")


async def _disowned(settings: Settings, control: ChildControl) -> None:
    """Return when a later copy of this resident was placed: a hung host would never report it."""
    every = min(settings.hosts.ttl_seconds / 6, _POLL_SECONDS)
    async with contextlib.aclosing(connect(settings.redis)) as redis:
        registry = registry_of(settings, redis)
        while True:
            await asyncio.sleep(every)
            with contextlib.suppress(*TROUBLE):
                # guard: resident-newer-fence
                if (fence := await registry.fence(control.agent_id)) > control.fence:
                    _log.warning("disowned: a later copy was placed", agent_id=control.agent_id, fence=fence)
                    return


def _tuning(agent_id: str, control: ChildControl) -> WorkerTuning:
    """Return the tuning for a mailbox: it needs little upkeep, and earlier copies are dead or disowned.

    The reader may act only while its host keeps its lease: the next copy takes over its messages at once.
    """
    fence = control.fence

    def earlier(consumer: str) -> bool:
        copy = copy_of(agent_id, consumer)
        return copy is not None and copy != (fence, os.getpid()) and copy[0] <= fence

    return WorkerTuning(
        recovery_seconds=5.0,
        promotion_seconds=2.0,
        expiry_seconds=30.0,
        archive_seconds=30.0,
        inherits=earlier,  # guard: resident-inherits-messages
        trusted_until=control.trusted_until,  # guard: resident-trusts-hosts-lease
        registers_store=False,  # its host does
    )


def _own(settings: Settings, agent_id: str, fence: int) -> Settings:
    """Return the settings of a worker that serves one mailbox, with a name that only this copy has."""
    mailbox = mailbox_settings(settings, agent_id)
    name = reader_name(agent_id, fence, os.getpid())
    worker = msgspec.structs.replace(settings.worker, name=name, queues=(mailbox.name,))
    metrics = msgspec.structs.replace(settings.metrics, port=0)
    queues = {**settings.queues, mailbox.name: mailbox}
    return msgspec.structs.replace(settings, worker=worker, metrics=metrics, queues=queues)


async def _report_health(resident: Any, every: float, control: ChildControl) -> None:
    """Report the health of the resident to the host; without health() it is well while it runs."""
    while every > 0:
        try:
            healthy = await _maybe(resident, "health")
            control.report("health", well=healthy is None or bool(healthy), error="")
        except Exception as exc:
            control.report("health", well=False, error=f"{type(exc).__name__}: {exc}"[:1000])
        await asyncio.sleep(every)


async def _maybe(resident: Any, method: str) -> Any:
    call = getattr(resident, method, None)
    if call is None:
        return None
    result = call() if inspect.iscoroutinefunction(call) else await asyncio.to_thread(call)
    return await result if inspect.isawaitable(result) else result
