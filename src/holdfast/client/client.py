"""The client: submits runs and hands out handles on them, over Redis or over the HTTP API."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, overload

import msgspec

from holdfast.client.handle import RunHandle
from holdfast.client.request import requested, submission
from holdfast.client.transports.redis.transport import RedisTransport
from holdfast.config import Settings, load
from holdfast.errors import ConfigError, HoldfastError, InputError
from holdfast.packages import needs_extra
from holdfast.runs.run import checked_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType
    from typing import Unpack

    from holdfast.client.agents import Agents
    from holdfast.client.request import SubmitOptions, SubmitRequest
    from holdfast.client.residents import ClientResidents
    from holdfast.client.schedules import Schedules
    from holdfast.client.transport import QueueClient, Transport
    from holdfast.runs.run import Submission, Ticket


class Client:
    """A connection to the system, used as ``async with Client() as client``.

    It goes over Redis (``Client("redis://…")``) or over the HTTP API (``Client(api_url="https://…",
    api_key="…")``). What is not given comes from the settings, which are those of the environment and
    ``holdfast.yaml`` unless they are given, so that a client agrees with its workers: ``client.url``
    (HOLDFAST_API_URL) if it is set, else ``redis.url``, else the embedded server of this directory.
    """

    def __init__(
        self, redis_url: str = "", *, api_url: str = "", api_key: str = "", settings: Settings | None = None
    ) -> None:
        given = load().settings if settings is None else settings
        self._settings = _aimed(given, redis_url, api_url, api_key)
        self._stack = contextlib.AsyncExitStack()
        self._transport: Transport | None = None

    async def __aenter__(self) -> Self:
        self._transport = await self._stack.enter_async_context(_transport(self._settings))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transport = None
        await self._stack.__aexit__(kind, exc, trace)

    # -- submitting

    async def submit(
        self,
        agent: str,
        input: Any = None,  # noqa: A002 - the public name of what an agent is given
        **options: Unpack[SubmitOptions],
    ) -> RunHandle:
        """Submit a run. The same run id or idempotency key again gives the same run."""
        queue = self._queue(options.pop("queue", None))
        wanted = submission(agent, input, **options)
        return _handle(await queue.submit(wanted), queue)

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
        same: with ``return_errors`` every refusal stands in its place in the list, else the first is
        raised. Without it nothing is sent if one of the requests can't be one.
        """
        self._open()
        asked = [self._asked(request) for request in requests]
        if not return_errors:
            _require_all(asked)
        answers = dict[int, RunHandle | HoldfastError]()
        answers.update((at, each) for at, each in enumerate(asked) if isinstance(each, HoldfastError))
        for queue_client, items in _by_queue(asked):
            answers.update(zip(items, await _send_all(queue_client, list(items.values())), strict=True))
        return _checked([answers[at] for at in range(len(asked))], return_errors=return_errors)

    def _asked(self, request: object) -> _Asked:
        try:
            queue, wanted = requested(request)
            return self._queue(queue), wanted
        except HoldfastError as exc:
            return exc

    # -- schedules

    @property
    def schedules(self) -> Schedules:
        """The schedules: create, list, get, trigger, pause, resume, next, turns, remove."""
        from holdfast.client.schedules import Schedules  # noqa: PLC0415 - most clients need none

        return Schedules(lambda: self._open().schedules())

    # -- agents

    @property
    def agents(self) -> Agents:
        """The registered agents: list, get."""
        from holdfast.client.agents import Agents  # noqa: PLC0415 - most clients need none

        return Agents(lambda: self._open().agents())

    @property
    def residents(self) -> ClientResidents:
        """The long-lived agents: start, stop, move, list, get, send, ask, hosts."""
        from holdfast.client.residents import ClientResidents  # noqa: PLC0415 - most clients need none

        return ClientResidents(self._open)

    # -- runs that are there

    def handle(self, run_id: str, *, queue: str | None = None) -> RunHandle:
        """Return a handle on a run that was submitted before, here or elsewhere; it is not looked up yet."""
        return RunHandle(checked_id(run_id, "run_id"), self._queue(queue), fresh=False)

    async def cancel(
        self, run_id: str, *, queue: str | None = None, reason: str = "cancelled by request"
    ) -> str:
        """Cancel a run: ``cancelled`` if it waited, ``requested`` if its worker was asked to stop it."""
        return await self.handle(run_id, queue=queue).cancel(reason)

    async def resume(self, run_id: str, answer: Any = None, *, queue: str | None = None) -> RunHandle:
        """Give an interrupted run the answer it waits for."""
        handle = self.handle(run_id, queue=queue)
        await handle.resume(answer)
        return handle

    async def retry(self, run_id: str, *, queue: str | None = None) -> RunHandle:
        """Queue a run that failed, timed out or was cancelled again, from its first attempt."""
        handle = self.handle(run_id, queue=queue)
        await handle.retry()
        return handle

    def _queue(self, queue: str | None) -> QueueClient:
        if queue is not None and not isinstance(queue, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
            raise InputError(f"queue must be text, got {queue!r:.60}")
        return self._open().queue(queue)

    def _open(self) -> Transport:
        if self._transport is None:
            raise HoldfastError("the client is not open: use it inside `async with Client(...) as client:`")
        return self._transport


def _aimed(settings: Settings, redis_url: str, api_url: str, api_key: str) -> Settings:
    """Return the settings of a client with what its caller said about where the system is."""
    if redis_url and api_url:
        raise ConfigError("a client goes over Redis or over HTTP: give redis_url or api_url, not both")
    if redis_url.startswith(("http://", "https://")):
        raise ConfigError("redis_url is the URL of an API: write Client(api_url=...)")
    redis, client = settings.redis, settings.client
    if redis_url:
        redis = msgspec.structs.replace(redis, url=redis_url)
        client = msgspec.structs.replace(client, url="")
    if api_url:
        # A key is shown to the API it was meant for, not to whichever one is named here.
        same = client.url.rstrip("/") in {"", api_url.rstrip("/")}
        key = api_key or (client.key if same else "")
        client = msgspec.structs.replace(client, url=api_url, key=key)
    elif api_key and client.url:
        client = msgspec.structs.replace(client, key=api_key)
    elif api_key:
        raise ConfigError("api_key is for an API, and none is named: give api_url too")
    return msgspec.structs.replace(settings, redis=redis, client=client)


def _transport(settings: Settings) -> Transport:
    if not settings.client.url:
        return RedisTransport(settings)
    with needs_extra("a client over HTTP (api_url, client.url, HOLDFAST_API_URL)", "http"):
        from holdfast.client.transports.http.transport import HttpTransport  # noqa: PLC0415  over Redis it is not needed
    return HttpTransport(settings.client)


_Asked: TypeAlias = "tuple[QueueClient, Submission] | HoldfastError"


def _require_all(asked: Sequence[_Asked]) -> None:
    """Raise the first of those that can't be asked for, before any other is."""
    for at, each in enumerate(asked):
        if isinstance(each, HoldfastError):
            each.add_note(f"it is number {at + 1} of {len(asked)} requests; nothing was sent")
            raise each


def _by_queue(asked: Sequence[_Asked]) -> Iterable[tuple[QueueClient, dict[int, Submission]]]:
    """Put together what goes to one queue, each with its place."""
    queues: dict[str, tuple[QueueClient, dict[int, Submission]]] = {}
    for at, each in enumerate(asked):
        if not isinstance(each, HoldfastError):
            queue_client, wanted = each
            queues.setdefault(queue_client.name, (queue_client, {}))[1][at] = wanted
    return queues.values()


async def _send_all(
    queue_client: QueueClient, wanted: Sequence[Submission]
) -> list[RunHandle | HoldfastError]:
    """Send what goes to one queue; if it can't be reached, that is the answer to all of it."""
    try:
        tickets = await queue_client.submit_many(wanted)
    except HoldfastError as exc:
        return [exc] * len(wanted)
    return [_answer(ticket, queue_client) for ticket in tickets]


def _answer(ticket: Ticket | Exception, queue_client: QueueClient) -> RunHandle | HoldfastError:
    if isinstance(ticket, HoldfastError):
        return ticket
    if isinstance(ticket, Exception):
        raise ticket
    return _handle(ticket, queue_client)


def _handle(ticket: Ticket, queue_client: QueueClient) -> RunHandle:
    return RunHandle(ticket.run_id, queue_client, fresh=ticket.fresh, message_id=ticket.message_id)


def _checked(
    answers: list[RunHandle | HoldfastError], *, return_errors: bool
) -> Sequence[RunHandle | HoldfastError]:
    refusals = [answer for answer in answers if isinstance(answer, HoldfastError)]
    if refusals and not return_errors:
        refusals[0].add_note(f"{len(answers) - len(refusals)} of {len(answers)} runs were accepted")
        raise refusals[0]
    return answers
