"""A run in the hands of whoever asked for it. A handle holds nothing: it can be dropped and made anew."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from holdfast.client.request import seconds_of
from holdfast.errors import ResultTimeout, RunCancelled, RunError, RunFailed, RunTimedOut
from holdfast.runs.run import Run, Status

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.client.request import Duration
    from holdfast.client.transport import QueueClient
    from holdfast.events.event import Event


class RunHandle:
    """One run: look at it, wait for its result, follow its events, answer it, cancel it.

    ``fresh`` is False if the run was there before it was asked for: same run id or idempotency key.
    ``message_id`` is the id of its message when it was submitted; empty if the handle was made by a run id.
    """

    __slots__ = ("_queue", "fresh", "message_id", "run_id")

    def __init__(self, run_id: str, queue: QueueClient, *, fresh: bool, message_id: str = "") -> None:
        self.run_id = run_id
        self.fresh = fresh
        self.message_id = message_id
        self._queue = queue

    def __repr__(self) -> str:
        return f"RunHandle({self.run_id!r}, queue={self.queue!r})"

    @property
    def queue(self) -> str:
        """The queue that the run belongs to; empty over HTTP if none was named."""
        return self._queue.name

    async def run(self) -> Run:
        """Read all details of the run."""
        return await self._queue.get(self.run_id)

    async def status(self) -> Status:
        """Read where the run is."""
        return (await self.run()).status

    async def result(self, timeout: Duration | None = None) -> Any:
        """Wait until the run has ended and return its result.

        RunFailed, RunTimedOut or RunCancelled say how it ended otherwise; ResultTimeout says that it
        goes on, as far as was seen. A Redis or an API that goes away meanwhile is waited for. With a
        ``timeout`` of 0 it is looked at once.
        """
        run = await self._waited(None if timeout is None else seconds_of("timeout", timeout))
        if run.status is Status.SUCCEEDED:
            return run.result
        raise error_of(run)

    async def _waited(self, seconds: float | None) -> Run:
        if seconds == 0:
            return await self._looked()
        scope = asyncio.timeout(seconds)
        try:
            async with scope:
                return await self._queue.ended(self.run_id)
        except TimeoutError as exc:
            if not scope.expired():
                raise
            raise ResultTimeout(
                f"run {self.run_id} has not ended within {seconds:g} s: waiting timed out, the run goes on"
            ) from exc

    async def _looked(self) -> Run:
        # A look takes a moment, too: cut off at once, it would say of every run that it goes on.
        run = await self.run()
        if not run.status.ended:
            raise ResultTimeout(f"run {self.run_id} has not ended: it is {run.status}")
        return run

    def events(self, after: str = "0") -> AsyncGenerator[Event]:
        """Follow the run's events, all of them or those after an id, until it has ended."""
        return self._queue.follow(self.run_id, after)

    async def cancel(self, reason: str = "cancelled by request") -> str:
        """Cancel the run: ``cancelled`` if it waited, ``requested`` if its worker was asked to stop it."""
        return await self._queue.cancel(self.run_id, reason)

    async def resume(self, answer: Any = None) -> None:
        """Give the run the answer it waits for, if it is interrupted."""
        await self._queue.resume(self.run_id, answer)

    async def retry(self) -> None:
        """Queue the run again, if it failed, timed out or was cancelled."""
        await self._queue.retry(self.run_id)


def error_of(run: Run) -> RunError:
    """Return the error that says how a run without a result ended."""
    tries = f"{run.attempt} attempt{'' if run.attempt == 1 else 's'}"
    why = f"{run.error.kind}: {run.error.message}" if run.error else "no reason is known"
    what = f"run {run.id} of agent {run.agent!r}"
    match run.status:
        case Status.CANCELLED:
            return RunCancelled(f"{what} was cancelled: {run.cancel or 'no reason is known'}", run_id=run.id)
        case Status.TIMED_OUT:
            return RunTimedOut(f"{what} passed its deadline: {why}", run_id=run.id)
        case _:
            return RunFailed(f"{what} failed after {tries}: {why}", run_id=run.id)
