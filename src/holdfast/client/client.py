"""The client: submits runs and hands out handles on them. Only errors of ours leave it, not redis-py's."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import msgspec

from holdfast.client.handle import RunHandle
from holdfast.client.request import submission
from holdfast.config import Settings, load
from holdfast.config.names import checked_queue
from holdfast.errors import HoldfastError
from holdfast.events.feed import Feed
from holdfast.redis.breaker import Breaker
from holdfast.redis.client import connect
from holdfast.redis.edge import answering
from holdfast.redis.nearby import nearby
from holdfast.runs.queue import RunQueue
from holdfast.runs.run import checked_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType
    from typing import Unpack

    from holdfast.client.request import SubmitOptions, SubmitRequest
    from holdfast.redis.client import Redis
    from holdfast.runs.run import Submission, Ticket


@dataclass(frozen=True, slots=True)
class _Line:
    """One queue, as the client uses it; a flood of reads can't delay ``sender``, which has its own pool."""

    sender: RunQueue
    reader: RunQueue
    feed: Feed


@dataclass(frozen=True, slots=True)
class _Open:
    """What an entered client holds."""

    settings: Settings
    reading: Redis
    sending: Redis
    breaker: Breaker
    lines: dict[str, _Line]


class Client:
    """A connection to the system, used as ``async with Client() as client``.

    Settings are those of the environment and ``holdfast.yaml`` unless they are given, so that a
    client agrees with its workers; ``redis_url`` overrides where Redis is. With no Redis configured,
    the embedded server of this directory is used, if one runs.
    """

    def __init__(self, redis_url: str = "", *, settings: Settings | None = None) -> None:
        given = load().settings if settings is None else settings
        if redis_url:
            redis = msgspec.structs.replace(given.redis, url=redis_url)
            given = msgspec.structs.replace(given, redis=redis)
        self._settings = given
        self._stack = contextlib.AsyncExitStack()
        self._opened: _Open | None = None

    async def __aenter__(self) -> Self:
        redis = nearby(self._settings.redis)
        settings = msgspec.structs.replace(self._settings, redis=redis)
        reading, sending = connect(redis), connect(redis)
        for connection in (reading, sending):
            self._stack.push_async_callback(connection.aclose)
        self._opened = _Open(settings, reading, sending, Breaker(redis.breaker), {})
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened = None
        await self._stack.__aexit__(kind, exc, trace)

    # -- submitting

    async def submit(
        self,
        agent: str,
        input: Any = None,  # noqa: A002 - the public name of what an agent is given
        **options: Unpack[SubmitOptions],
    ) -> RunHandle:
        """Ask for a run. The same run id or idempotency key again gives the same run."""
        line = self._line(options.pop("queue", None))
        wanted = submission(agent, input, **options)
        with answering(self._url):
            ticket = await line.sender.submit(wanted)
        return self._handle(ticket, line)

    @overload
    async def submit_many(self, requests: Iterable[SubmitRequest]) -> list[RunHandle]: ...
    @overload
    async def submit_many(
        self, requests: Iterable[SubmitRequest], *, return_errors: Literal[True]
    ) -> list[RunHandle | HoldfastError]: ...
    async def submit_many(
        self, requests: Iterable[SubmitRequest], *, return_errors: bool = False
    ) -> Sequence[RunHandle | HoldfastError]:
        """Ask for many runs, with as few calls as possible, and return their handles in the same order.

        Each request has the words of ``submit``. If some are refused the others are accepted all the
        same: with ``return_errors`` a refusal stands in its place in the list, else the first is raised.
        """
        by_queue: dict[str | None, list[tuple[int, Submission]]] = {}
        count = 0
        for at, request in enumerate(requests):
            options: dict[str, Any] = dict(request)
            queue = options.pop("queue", None)
            by_queue.setdefault(queue, []).append((at, submission(**options)))
            count = at + 1
        answers: list[RunHandle | HoldfastError | None] = [None] * count
        for queue, items in by_queue.items():
            for (at, _), answer in zip(items, await self._send_all(queue, items), strict=True):
                answers[at] = answer
        return _checked([answer for answer in answers if answer is not None], return_errors=return_errors)

    async def _send_all(
        self, queue: str | None, items: list[tuple[int, Submission]]
    ) -> list[RunHandle | HoldfastError]:
        line = self._line(queue)
        with answering(self._url):
            tickets = await line.sender.submit_many([wanted for _, wanted in items])
        return [self._answer(ticket, line) for ticket in tickets]

    def _answer(self, ticket: Ticket | Exception, line: _Line) -> RunHandle | HoldfastError:
        if isinstance(ticket, HoldfastError):
            return ticket
        if isinstance(ticket, Exception):
            raise ticket
        return self._handle(ticket, line)

    # -- runs that are there

    def handle(self, run_id: str, *, queue: str | None = None) -> RunHandle:
        """Return a handle on a run that was submitted before, here or elsewhere; it is not looked up yet."""
        line = self._line(queue)
        return RunHandle(checked_id(run_id, "run_id"), line.reader, line.feed, url=self._url, fresh=False)

    async def cancel(
        self, run_id: str, *, queue: str | None = None, reason: str = "cancelled by request"
    ) -> str:
        """Cancel a run: ``cancelled`` if it waited, ``requested`` if its worker was asked to stop it."""
        return await self.handle(run_id, queue=queue).cancel(reason)

    async def retry(self, run_id: str, *, queue: str | None = None) -> RunHandle:
        """Queue a run that failed, timed out or was cancelled again, from its first attempt."""
        handle = self.handle(run_id, queue=queue)
        await handle.retry()
        return handle

    def _handle(self, ticket: Ticket, line: _Line) -> RunHandle:
        return RunHandle(ticket.run_id, line.reader, line.feed, url=self._url, fresh=ticket.fresh)

    # -- connections

    @property
    def _url(self) -> str:
        return self._open.settings.redis.url

    @property
    def _open(self) -> _Open:
        if self._opened is None:
            raise HoldfastError("the client is not open: use it inside `async with Client(...) as client:`")
        return self._opened

    def _line(self, queue: str | None) -> _Line:
        opened = self._open
        name = queue or opened.settings.messaging.queue
        if name not in opened.lines:
            opened.lines[name] = self._connect_line(opened, checked_queue(name))
        return opened.lines[name]

    def _connect_line(self, opened: _Open, name: str) -> _Line:
        settings, prefix = opened.settings.queue_named(name), opened.settings.redis.key_prefix
        sender = RunQueue(
            settings, opened.sending, prefix=prefix, sender=opened.settings.sender, breaker=opened.breaker
        )
        self._stack.push_async_callback(sender.aclose)
        reader = RunQueue(settings, opened.reading, prefix=prefix)
        return _Line(sender, reader, Feed(reader.keys, opened.reading, opened.settings.redis))


def _checked(
    answers: list[RunHandle | HoldfastError], *, return_errors: bool
) -> Sequence[RunHandle | HoldfastError]:
    refusals = [answer for answer in answers if isinstance(answer, HoldfastError)]
    if refusals and not return_errors:
        refusals[0].add_note(f"{len(answers) - len(refusals)} of {len(answers)} runs were accepted")
        raise refusals[0]
    return answers
