"""How a client reaches the system: over Redis or over HTTP, with the same calls.

Both transports pass one suite of tests, and raise errors of Holdfast only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from types import TracebackType

    from holdfast.client.agents import AgentTransport
    from holdfast.client.residents import ResidentTransport
    from holdfast.client.schedules import ScheduleTransport
    from holdfast.events.event import Event
    from holdfast.runs.run import Run, Submission, Ticket


class QueueClient(Protocol):
    """One queue: its runs are asked for, looked at, followed and steered here."""

    @property
    def name(self) -> str:
        """The queue's name; empty if it is the API's default one, whose name only the API knows."""
        ...

    async def submit(self, wanted: Submission) -> Ticket:
        """Submit a run."""
        ...

    async def submit_many(self, wanted: Sequence[Submission]) -> Sequence[Ticket | Exception]:
        """Ask for many; a refused one stands in the list as its error."""
        ...

    async def get(self, run_id: str) -> Run:
        """Read a run."""
        ...

    async def ended(self, run_id: str) -> Run:
        """Wait until a run has ended; what goes away after the first look is waited for."""
        ...

    def follow(self, run_id: str, after: str) -> AsyncGenerator[Event]:
        """Yield events after the given one, each once and in order, until the run has ended."""
        ...

    async def cancel(self, run_id: str, reason: str) -> str:
        """Cancel a run; the word says how far that went."""
        ...

    async def resume(self, run_id: str, answer: Any) -> None:
        """Answer an interrupted run."""
        ...

    async def retry(self, run_id: str) -> None:
        """Queue a run again that ended badly."""
        ...


class Transport(Protocol):
    """A connection to the system, open between enter and exit."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def queue(self, name: str | None) -> QueueClient:
        """The queue of that name, or the default one."""
        ...

    def schedules(self) -> ScheduleTransport:
        """The schedules."""
        ...

    def agents(self) -> AgentTransport:
        """The registered agents."""
        ...

    def residents(self) -> ResidentTransport:
        """The long-lived agents, which live on hosts."""
        ...
