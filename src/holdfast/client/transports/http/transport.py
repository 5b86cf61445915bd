"""The transport over HTTP: the API finds a run in whichever of its queues has it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from holdfast.client.transports.http.address import run_path
from holdfast.client.transports.http.calls import Calls
from holdfast.client.transports.http.follow import follow
from holdfast.client.transports.http.problems import read
from holdfast.client.transports.http.submit import submit, submit_many
from holdfast.config.names import checked_queue
from holdfast.errors import Refused
from holdfast.runs.message import encode_value
from holdfast.runs.run import Run

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from types import TracebackType

    from holdfast.client.transports.http.agents import HttpAgents
    from holdfast.client.transports.http.residents import HttpResidents
    from holdfast.client.transports.http.schedules import HttpSchedules
    from holdfast.config import ClientSettings
    from holdfast.events.event import Event
    from holdfast.runs.run import Submission, Ticket

_WAIT_SECONDS: Final = 20.0
"""How long the API is asked to wait for an end: less than what proxies take for a dead connection."""
_CROWDED_WAIT_SECONDS: Final = 1.0
_WAITS_AT_ONCE: Final = 200
_LOOK_SECONDS: Final = (1.0, 5.0)


class _Changed(msgspec.Struct):
    """What became of a run that was steered."""

    status: str


_run = msgspec.json.Decoder(Run)
_changed = msgspec.json.Decoder(_Changed)


class HttpQueueClient:
    """One queue of the API, or all of them if none was named: then new runs go to its default one."""

    def __init__(self, calls: Calls, queue: str, waits: asyncio.Semaphore) -> None:
        self._calls = calls
        self._queue = queue
        self._waits = waits

    @property
    def name(self) -> str:
        """The queue's name; empty if none was named."""
        return self._queue

    async def submit(self, wanted: Submission) -> Ticket:
        """Submit a run."""
        return await submit(self._calls, self._queue, wanted)

    async def submit_many(self, wanted: Sequence[Submission]) -> Sequence[Ticket | Exception]:
        """Ask for many in as few requests as possible."""
        return await submit_many(self._calls, self._queue, wanted)

    async def get(self, run_id: str) -> Run:
        """Read a run."""
        answer = await self._calls.call("GET", run_path(run_id, queue=self._queue))
        return read(self._calls.url, answer.body, _run)

    async def ended(self, run_id: str) -> Run:
        """Wait until a run has ended; an API that goes away after the first look is waited for."""
        run = await self.get(run_id)
        shortest, longest = _LOOK_SECONDS
        pause = shortest
        while not run.status.ended:
            try:
                early = await self._waited(run_id)
                run = await self.get(run_id)
            except Refused as exc:
                await asyncio.sleep(min(exc.retry_after, longest))
                continue
            if early and not run.status.ended:
                await asyncio.sleep(pause)
            pause = min(pause * 1.5, longest) if early else shortest
        return run

    def follow(self, run_id: str, after: str) -> AsyncGenerator[Event]:
        """Yield events until the run has ended."""
        return follow(self._calls, run_id, after, self._queue)

    async def cancel(self, run_id: str, reason: str) -> str:
        """Cancel a run."""
        answer = await self._steer(run_id, "cancel", {"reason": reason}, repeatable=True)
        return read(self._calls.url, answer, _changed).status

    async def resume(self, run_id: str, answer: Any) -> None:
        """Answer an interrupted run."""
        # Twice is not once: the second would answer the run's next question.
        await self._steer(run_id, "resume", {"value": answer}, repeatable=False)

    async def retry(self, run_id: str) -> None:
        """Queue a run again that ended badly."""
        await self._steer(run_id, "retry", {}, repeatable=False)

    async def _steer(self, run_id: str, verb: str, said: dict[str, Any], *, repeatable: bool) -> bytes:
        body = encode_value(said, f"what {verb} of run {run_id} says")
        path = run_path(run_id, verb, queue=self._queue)
        return (await self._calls.call("POST", path, body, repeatable=repeatable)).body

    async def _waited(self, run_id: str) -> bool:
        """Wait for the end for a while; True if that was cut short, by whatever else there is to know."""
        loop = asyncio.get_running_loop()
        seconds = _CROWDED_WAIT_SECONDS if self._waits.locked() else _WAIT_SECONDS
        async with self._waits:
            begun = loop.time()
            path = run_path(run_id, "result", queue=self._queue, wait=f"{seconds:g}")
            answer = await self._calls.call("GET", path, wait_seconds=seconds)
        # The replica leaves: asked at once again, it would say the same.
        return answer.status != 200 and loop.time() - begun < seconds / 2


class HttpTransport:
    """Connections to the API."""

    def __init__(self, settings: ClientSettings) -> None:
        self._calls = Calls(settings)
        self._waits = asyncio.Semaphore(_WAITS_AT_ONCE)

    async def __aenter__(self) -> Self:
        await self._calls.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._calls.__aexit__(kind, exc, trace)

    def queue(self, name: str | None) -> HttpQueueClient:
        """The queue of that name, or the API's default one; the API checks whether there is one."""
        return HttpQueueClient(self._calls, checked_queue(name) if name else "", self._waits)

    def schedules(self) -> HttpSchedules:
        """The schedules that the API shows to this key."""
        from holdfast.client.transports.http.schedules import HttpSchedules  # noqa: PLC0415 - most clients need none

        return HttpSchedules(self._calls)

    def agents(self) -> HttpAgents:
        """The registered agents that the API shows to this key."""
        from holdfast.client.transports.http.agents import HttpAgents  # noqa: PLC0415 - most clients need none

        return HttpAgents(self._calls)

    def residents(self) -> HttpResidents:
        """The residents that the API shows to this key."""
        from holdfast.client.transports.http.residents import HttpResidents  # noqa: PLC0415 - most clients need none

        return HttpResidents(self._calls)
