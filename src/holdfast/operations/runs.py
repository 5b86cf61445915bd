"""Runs: submit, find, wait, explain and steer them, whether Redis or only the archive still has them."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from typing import TYPE_CHECKING, Any

from holdfast.errors import ConfigError, Conflict, NotFound, StoreUnavailable
from holdfast.events.feed import NOW
from holdfast.operations.caller import READ, SUBMIT
from holdfast.operations.run_list import RunFilter, read_page
from holdfast.runs.explain import explain, explain_past, lease_age, parents_of_waiting_runs
from holdfast.runs.past import UNASKED, expired, run_of, unasked, unchangeable
from holdfast.runs.run import Status, checked_id
from holdfast.schedules.schedule import schedule_of_turn
from holdfast.telemetry.logs import get_logger
from holdfast.views.runs import Accepted, Changed, ErrorView, Explained, ResultView, RunList, RunRow, RunView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.operations.caller import Caller
    from holdfast.operations.system import QueueAccess, System
    from holdfast.runs.past import Change
    from holdfast.runs.run import Run, RunFault, Submission, Ticket

_log = get_logger(__name__)

_DATABASE_SECONDS = 2.0
"""How long an explanation waits for the database."""


class RunOperations:
    """What one caller can ask of runs."""

    def __init__(self, system: System, caller: Caller) -> None:
        self._system = system
        self._caller = caller

    # -- submitting

    async def submit(self, queue: str | None, submission: Submission) -> tuple[Accepted, bool]:
        """Submit a run; return its receipt, and False if the run was known before."""
        self._caller.require(SUBMIT)
        access = self._system.queue(queue)
        ticket = await access.sender.submit(submission)
        return await self._receipt(access, ticket, submission), ticket.fresh

    async def submit_many(
        self, queue: str | None, submissions: Sequence[Submission]
    ) -> list[tuple[Accepted, bool] | Exception]:
        """Submit runs to one queue with few calls; return for each its receipt or why it was refused."""
        self._caller.require(SUBMIT)
        access = self._system.queue(queue)
        tickets = await access.sender.submit_many(submissions)
        return [await self._answer(access, *each) for each in zip(tickets, submissions, strict=True)]

    async def _answer(
        self, access: QueueAccess, ticket: Ticket | Exception, submission: Submission
    ) -> tuple[Accepted, bool] | Exception:
        if isinstance(ticket, Exception):
            return ticket
        try:
            return await self._receipt(access, ticket, submission), ticket.fresh
        except Conflict as exc:
            return exc

    async def _receipt(self, access: QueueAccess, ticket: Ticket, submission: Submission) -> Accepted:
        """Describe the run that was made or was known; a run of another tenant is a conflict."""
        if ticket.fresh:
            _log.info(
                "run submitted",
                run_id=ticket.run_id,
                message_id=ticket.message_id,
                agent=submission.agent,
                queue=access.queue.name,
            )
            return _accepted(ticket, submission.thread_id)
        try:
            run = await access.queue.get(ticket.run_id)
        except NotFound:  # it has just left Redis
            return _accepted(ticket, submission.thread_id)
        if not self._caller.sees(run.tenant):  # guard: batch-run-of-tenant
            raise Conflict(f"correlation_id {ticket.run_id!r} is taken: choose another, or leave it out")
        return _accepted(ticket, run.thread_id)

    # -- reading

    async def list(self, wanted: RunFilter, *, limit: int = 50, cursor: str = "") -> RunList:
        """Read a page of runs, newest first, the archived ones last."""
        self._caller.require(READ)
        return await read_page(self._system, self._caller, wanted, self.row, limit=limit, cursor=cursor)

    async def get(self, run_id: str, *, queue: str = "") -> RunView:
        """Read everything known of a run, live or archived."""
        self._caller.require(READ)
        found = await self.find(run_id, queue)
        if found is None:
            return self._view(await self.archived(run_id, queue), archived=True)
        return self._view(found[1])

    async def result(
        self, run_id: str, *, queue: str = "", wait_seconds: float = 0, stopping: asyncio.Event | None = None
    ) -> ResultView:
        """Read how a run ended or where it is; wait for its end, but not longer than this process stays."""
        self._caller.require(READ)
        found = await self.find(run_id, queue)
        if found is None:
            return self.result_of(await self.archived(run_id, queue))
        access, run = found
        if wait_seconds and not run.status.ended:
            run = await self.wait(access, run, wait_seconds, stopping)
        return self.result_of(run)

    async def explain(self, run_id: str, *, queue: str = "") -> Explained:
        """Explain why a run waits, what it does or how it ended, by its record, its queue and the workers."""
        self._caller.require(READ)
        found = await self.find(run_id, queue)
        if found is None:
            run = await self.archived(run_id, queue)
            return Explained(run.id, run.status.value, explain_past(run))
        access, run = found
        gate, depth = await access.queue.gate(), await access.queue.depth()
        members = await self._system.members.all(self._system.redis)
        parents = await parents_of_waiting_runs(run, access.queue, depth)
        lease = await lease_age(run, access.queue, self._system.settings.lease.ttl_seconds)
        because = explain(run, gate, depth, members, parents=parents, lease=lease)
        if run.status is Status.RUNNING:
            because += await self._explain_database()
        return Explained(run.id, run.status.value, because)

    async def _explain_database(self) -> list[str]:
        """Report a database that does not answer this process: it may not answer the run's worker either."""
        try:
            async with asyncio.timeout(_DATABASE_SECONDS):
                store = await self._system.archive()
                if store is not None:
                    await store.ping()
        except TimeoutError:
            reason = f"no answer within {_DATABASE_SECONDS:g} s"
        except (StoreUnavailable, ConfigError) as exc:
            reason = str(exc)
        else:
            return []
        return [
            f"the database can't be used from here ({reason}): until it answers, steps and state of runs wait"
        ]

    async def with_events(self, run_id: str, *, queue: str = "") -> tuple[QueueAccess, Run]:
        """Return a run whose events are still kept, and its queue, whose feed has them."""
        self._caller.require(READ)
        found = await self.find(run_id, queue)
        if found is None:
            raise expired(await self.archived(run_id, queue))  # guard: expired-events
        return found

    # -- steering

    async def cancel(self, run_id: str, *, queue: str = "", reason: str = "") -> Changed:
        """Cancel a run: ``cancelled`` if it waited, ``requested`` if its worker was asked to stop it."""
        access, run = await self.changeable(run_id, queue, "cancel")
        word = await access.queue.cancel(run.id, reason or f"cancelled by {self._caller.name or 'request'}")
        return Changed(run.id, word)

    async def resume(self, run_id: str, answer: Any = None, *, queue: str = "") -> Changed:
        """Give an interrupted run its answer."""
        access, run = await self.changeable(run_id, queue, "resume")
        await access.queue.resume_run(run.id, answer)
        return Changed(run.id, Status.QUEUED.value)

    async def retry(self, run_id: str, *, queue: str = "") -> Changed:
        """Queue a run again that failed, timed out or was cancelled, from its first attempt."""
        access, run = await self.changeable(run_id, queue, "retry")
        await access.queue.replay(run.id)
        return Changed(run.id, Status.QUEUED.value)

    async def changeable(self, run_id: str, queue: str, change: Change) -> tuple[QueueAccess, Run]:
        """Return a run that can be changed, and its queue; Conflict if only the archive has the run."""
        self._caller.require(SUBMIT)
        found = await self.find(run_id, queue)
        if found is None:
            raise unchangeable(await self.archived(run_id, queue), change)  # guard: archived-run-unchangeable
        return found

    # -- where a run is

    async def find(self, run_id: str, queue: str = "") -> tuple[QueueAccess, Run] | None:
        """Return a run that Redis has, and its queue: the first that has it, if none was named."""
        checked_id(run_id, "run_id")
        for access in self._system.selected(queue):
            try:
                run = await access.queue.get(run_id)
            except NotFound:
                continue
            if self._caller.sees(run.tenant):
                return access, run
        return None

    async def archived(self, run_id: str, queue: str = "") -> Run:
        """Return a run that only the archive has."""
        try:
            archive = await self._system.archive()
            archived = await archive.archived(run_id, self._caller.tenant, queue) if archive else None
        except UNASKED as exc:  # guard: archive-unavailable-api
            if not isinstance(exc, StoreUnavailable):  # that is logged as an outage
                _log.warning("the archive can't be read", run_id=run_id, error=str(exc))
            raise unasked(run_id, str(exc) if self._caller.operates else "") from exc
        if archived is None or not self._caller.sees(archived.tenant):
            raise _missing(run_id, queue)
        return run_of(archived)

    async def wait(
        self, access: QueueAccess, run: Run, seconds: float, stopping: asyncio.Event | None = None
    ) -> Run:
        """Return a run once it has ended, the time is over or ``stopping`` is set."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        leaving = asyncio.ensure_future((stopping or asyncio.Event()).wait())
        try:
            while not run.status.ended and (left := deadline - loop.time()) > 0 and not leaving.done():
                ending = asyncio.ensure_future(_final_event(access, run.id))
                await asyncio.wait((ending, leaving), timeout=left, return_when=asyncio.FIRST_COMPLETED)
                ending.cancel()
                await asyncio.gather(ending, return_exceptions=True)
                found = await self.find(run.id, run.queue)
                # guard: awaited-run-archived-api
                run = found[1] if found is not None else await self.archived(run.id, run.queue)
        finally:
            leaving.cancel()
        return run

    # -- views

    def row(self, run: Run, *, archived: bool = False) -> RunRow:
        """Show a run as lists do."""
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
            error=error_view(self._caller, run.error),
            archived=archived,
        )

    def result_of(self, run: Run) -> ResultView:
        """Show how a run ended, or where it is."""
        status = run.status.value
        if run.status is Status.SUCCEEDED:
            return ResultView(run.id, status, result=run.result)
        if run.status is Status.INTERRUPTED:
            return ResultView(run.id, status, interrupt=run.interrupt)
        if run.status is Status.CANCELLED:
            return ResultView(run.id, status, error=ErrorView("Cancelled", run.cancel))
        if not run.status.ended:
            return ResultView(run.id, status)
        return ResultView(run.id, status, error=error_view(self._caller, run.error) or ErrorView(status))

    def _view(self, run: Run, *, archived: bool = False) -> RunView:
        row = self.row(run, archived=archived)
        return RunView(
            **{name: getattr(row, name) for name in RunRow.__struct_fields__},
            lane=run.lane,
            entry=run.entry,
            input=run.input,
            metadata=run.metadata,
            result=run.result,
            interrupt=run.interrupt,
        )


def error_view(caller: Caller, fault: RunFault | None) -> ErrorView | None:
    """Show an error; its traceback, which has the operator's paths and code, to operators only."""
    if fault is None:
        return None
    # guard: traceback-for-operators
    return ErrorView(fault.kind, fault.message, fault.traceback if caller.operates else "")


async def _final_event(access: QueueAccess, run_id: str) -> None:
    """Wait for an event that may be the last; one before the feed is followed ends it at once."""
    async with contextlib.aclosing(access.follow(run_id, NOW)) as events:
        async for event in events:
            if event.final:
                return


def _accepted(ticket: Ticket, thread_id: str) -> Accepted:
    return Accepted(ticket.status.value, ticket.run_id, ticket.run_id, ticket.message_id, thread_id)


def _missing(run_id: str, queue: str) -> NotFound:
    # The same words whether it does not exist or belongs to another tenant.
    where = f"in queue {queue!r}" if queue else "here"
    if schedule := schedule_of_turn(run_id):
        turns = f"`holdfast schedules turns {shlex.quote(schedule)}`"
        return NotFound(
            f"no run {run_id!r} is known {where}: this is the id of a schedule's turn, see {turns}"
        )
    return NotFound(f"no run {run_id!r} is known {where}: check the id; ended runs are kept for a while only")
