"""The system as one caller may see it: what belongs to another tenant does not exist here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.config.names import checked_queue, unknown_queue
from holdfast.config.queues import MAILBOX
from holdfast.errors import NotFound, StoreUnavailable
from holdfast.redis.command import command
from holdfast.runs.past import UNASKED, run_of, unasked, unchangeable
from holdfast.runs.run import Run, checked_id
from holdfast.telemetry.logs import get_logger
from holdfast.views.runs import ErrorView, RunRow, RunView

if TYPE_CHECKING:
    from starlette.requests import Request

    from holdfast.api.auth import Caller
    from holdfast.api.backend import Backend, Line
    from holdfast.runs.past import Change
    from holdfast.runs.queue import RunQueue
    from holdfast.runs.run import RunFault
    from holdfast.store.archive import ArchivedRun

_log = get_logger(__name__)


def access(request: Request, role: str) -> Access:
    """Return what the request's caller may see, if it has the role."""
    caller: Caller = request.scope["caller"]
    caller.require(role)
    return Access(request.app.state.backend, caller)


@dataclass(frozen=True, slots=True)
class Access:
    """Finds queues and runs for one caller."""

    backend: Backend
    caller: Caller

    def line(self, name: str | None) -> Line:
        """The configured queue of that name, or the default one."""
        lines = self.backend.lines
        if not name:
            return next(iter(lines.values()))
        line = lines.get(name)
        if line is None:
            raise unknown_queue(name, tuple(lines))
        return line

    def lines(self, name: str) -> list[Line]:
        """The queue that was named, or all configured ones; a mailbox too, for looking at what is there."""
        if name.startswith(MAILBOX):
            return [self.backend.mailbox(checked_queue(name))]
        return [self.line(checked_queue(name))] if name else list(self.backend.lines.values())

    async def changing(self, run_id: str, queue: str, change: Change) -> tuple[Line, Run]:
        """A run that is about to be changed, and its queue; Conflict if only the archive has it."""
        found = await self.live(run_id, queue)
        if found is None:
            raise unchangeable(await self.past(run_id, queue), change)  # guard: archived-run-unchangeable
        return found

    async def past(self, run_id: str, queue: str = "") -> Run:
        """A run that only the archive knows."""
        try:
            archived = await (await self.backend.store.get()).archived(run_id, self.caller.tenant, queue)
        except UNASKED as exc:  # guard: archive-unavailable-api
            if not isinstance(exc, StoreUnavailable):  # that is logged as an outage
                _log.warning("the archive can't be asked", run_id=run_id, error=str(exc))
            raise unasked(run_id) from exc
        if archived is None or not self.caller.sees(archived.tenant):
            raise self._missing(run_id, queue)
        return run_of(archived)

    async def view(self, run_id: str, queue: str = "") -> RunView:
        """Everything known of a run, live or archived."""
        found = await self.live(run_id, queue)
        return (
            self._view(await self.past(run_id, queue), archived=True)
            if found is None
            else self._view(found[1])
        )

    def row(self, run: Run, *, archived: bool = False) -> RunRow:
        """A run as a list shows it."""
        return RunRow(
            id=run.id,
            queue=run.queue,
            status=run.status.value,
            agent=run.agent,
            thread_id=run.thread_id,
            tenant=run.tenant,
            attempt=run.attempt,
            fence=run.fence,
            owner=run.owner,
            submitted_at=run.submitted_at,
            started_at=run.started_at,
            finished_at=run.finished_at,
            due_at=run.due_at,
            cancel=run.cancel,
            parked=run.parked,
            parent=run.parent,
            error=self.error(run.error),
            archived=archived,
        )

    def error(self, fault: RunFault | None) -> ErrorView | None:
        """Why a run ended badly, if it did; a traceback is of the operator's paths and code, and for them."""
        if fault is None:
            return None
        # guard: traceback-for-operators
        return ErrorView(fault.kind, fault.message, fault.traceback if self.caller.operates else "")

    def _view(self, run: Run, *, archived: bool = False) -> RunView:
        row = self.row(run, archived=archived)
        fields = {name: getattr(row, name) for name in RunRow.__struct_fields__}
        return RunView(
            **fields,
            input=run.input,
            metadata=run.metadata,
            result=run.result,
            interrupt=run.interrupt,
        )

    async def live(self, run_id: str, queue: str = "") -> tuple[Line, Run] | None:
        """A run that Redis still knows, and its queue: the first that has it, if none was named."""
        checked_id(run_id, "run_id")
        for line in self.lines(queue):
            try:
                run = await line.queue.get(run_id)
            except NotFound:
                continue
            if self.caller.sees(run.tenant):
                return line, run
        return None

    def _missing(self, run_id: str, queue: str) -> NotFound:
        # The same words whether it does not exist or belongs to another tenant.
        where = f"in queue {queue!r}" if queue else "here"
        return NotFound(f"no run {run_id!r} is known {where}: check the id; GET /runs lists what there is")


async def in_redis(queue: RunQueue, run: ArchivedRun) -> bool:
    """Whether a run is still there, so that the archive's copy of it is not the only one."""
    record = (await queue.home(run.id)).keys.run(run.id)
    reply = await command(queue.redis, "HMGET", record, "submitted_at", "tenant")
    submitted_ms, tenant = ((value or b"").decode(errors="replace") for value in reply)
    # Another run may have the id by now, even one of another tenant: that one hides nothing.
    # guard: archived-run-same-id
    return (submitted_ms, tenant) == (f"{run.submitted_at * 1000:.0f}", run.tenant)
