"""``/runs/{id}/events``: what happens to a run, as Server-Sent Events or as lines of JSON.

Invariant: whoever comes back with the last id it saw, to any replica, misses nothing and sees nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request, Response

from holdfast.api.access import access
from holdfast.api.openapi import answers
from holdfast.api.paths import OfQueue, RunId, VerbRoute
from holdfast.errors import HoldfastError
from holdfast.events.feed import checked_event_id
from holdfast.operations.caller import READ
from holdfast.redis.outages import redis_outages
from holdfast.telemetry.logs import get_logger
from holdfast.views.runs import EventLine

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from starlette.types import Receive, Scope, Send

    from holdfast.api.backend import Backend
    from holdfast.events.event import Event
    from holdfast.operations import QueueAccess

SSE: Final = "text/event-stream"
NDJSON: Final = "application/x-ndjson"
_RETRY_MS: Final = 1000
_PAGE: Final = 200

_encode = msgspec.json.Encoder().encode
_OUTAGES: Final = redis_outages("event streams of the API", "they end, and their clients ask again")

_log = get_logger(__name__)

router = APIRouter(tags=["events"], route_class=VerbRoute)

_SSE_EXAMPLE: Final = (
    "retry: 1000\n\n"
    "id: 1731000000000-0\nevent: submitted\ndata: {}\n\n"
    'id: 1731000000012-0\nevent: thinking\ndata: {"ticket":7}\n\n'
    "id: 1731000002500-0\nevent: succeeded\ndata: {}\n\n"
)
_LINE_EXAMPLE: Final = (
    '{"id":"1731000000012-0","type":"thinking","at":1731000000.012,"data":{"ticket":7},'
    '"at_iso":"2024-11-07T17:20:00.012+00:00"}\n'
)
_LAST_EVENT_ID: Final = {
    "name": "Last-Event-ID",
    "in": "header",
    "required": False,
    "description": "Begin after this event; EventSource sends it when it reconnects. Goes before `after`.",
    "schema": {"type": "string", "pattern": "^[0-9]{1,19}(-[0-9]{1,19})?$"},
}


@router.get(
    "/runs/{run_id:path}/events",
    summary="Follow a run's events until it ends",
    response_class=Response,
    responses={
        200: {
            "description": "Server-Sent Events, or lines of JSON if Accept asks for application/x-ndjson.",
            "content": {
                SSE: {"schema": {}, "example": _SSE_EXAMPLE},
                NDJSON: {"schema": {}, "example": _LINE_EXAMPLE},
            },
        },
        204: {"description": "The run has ended and there is nothing after Last-Event-ID: don't reconnect."},
        **answers(errors=(401, 403, 404, 410, 422, 503)),
    },
    openapi_extra={"parameters": [_LAST_EVENT_ID]},
)
async def get_events(
    request: Request,
    run_id: RunId,
    queue: OfQueue = "",
    after: Annotated[str, Query(description="Begin after this event's id; 0 is the first.")] = "0",
    follow: Annotated[bool, Query(description="Whether to wait for more, until the run ends.")] = True,
) -> Response:
    """Stream events in order, each once."""
    here = access(request, READ)
    last = request.headers.get("last-event-id", "")
    start = checked_event_id(last or after)
    line, run = await here.runs.with_events(run_id, queue=queue)
    backend: Backend = request.app.state.backend
    if last and run.status.ended and not await line.read(run_id, start, 1):
        return Response(status_code=204)
    lines = NDJSON in request.headers.get("accept", "")
    events = line.follow(run_id, start) if follow else _there_now(line, run_id, start)
    return EventStream(
        events,
        lines=lines,
        keep_alive_seconds=here.system.settings.api.keep_alive_seconds,
        draining=backend.draining,
        gauge=backend.streams,
    )


async def _there_now(line: QueueAccess, run_id: str, after: str) -> AsyncGenerator[Event]:
    while page := await line.read(run_id, after, _PAGE):
        for event in page:
            yield event
        after = page[-1].id


class EventStream(Response):
    """A response that goes on until the events end, the client leaves or this process stops."""

    def __init__(
        self,
        events: AsyncGenerator[Event],
        *,
        lines: bool,
        keep_alive_seconds: float,
        draining: asyncio.Event,
        gauge: Callable[[int], None],
    ) -> None:
        media_type = NDJSON if lines else SSE
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._events = events
        self._write: Callable[[Event], bytes] = _line if lines else _block
        self._lines = lines
        self._keep_alive_seconds = keep_alive_seconds
        self._draining = draining
        self._gauge = gauge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events as they come."""
        del scope
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        self._gauge(1)
        try:
            await self._say(send, "" if self._lines else f"retry: {_RETRY_MS}\n\n")
            if await self._pump(receive, send):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._gauge(-1)

    async def _pump(self, receive: Receive, send: Send) -> bool:
        """Send until one side has enough; False if the client has gone."""
        left = asyncio.ensure_future(_gone(receive))
        leaving = asyncio.ensure_future(self._draining.wait())
        coming: asyncio.Future[Event] | None = None
        try:
            while True:
                coming = coming or asyncio.ensure_future(anext(self._events))
                await asyncio.wait(
                    (coming, left, leaving),
                    timeout=self._keep_alive_seconds,  # guard: stream-keep-alive
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if left.done():  # guard: stream-client-gone
                    return False
                if coming.done():
                    if (event := await _taken(coming)) is None:
                        return True
                    coming = None
                    await send({"type": "http.response.body", "body": self._write(event), "more_body": True})
                elif leaving.done():  # guard: stream-ends-on-drain
                    # Come back soon, to another replica, with the last id.
                    await self._say(send, "" if self._lines else f": bye\nretry: {_RETRY_MS}\n\n")
                    return True
                else:
                    await self._say(send, "\n" if self._lines else ": alive\n\n")
        finally:
            tasks: list[asyncio.Future[Any]] = [left, leaving, *([coming] if coming else [])]
            for task in tasks:
                task.cancel()
            # The generator can't be closed while somebody is in it.
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._events.aclose()

    async def _say(self, send: Send, text: str) -> None:
        if text:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _taken(coming: asyncio.Future[Event]) -> Event | None:
    try:
        return coming.result()
    except StopAsyncIteration:
        return None
    except HoldfastError as exc:
        if not _OUTAGES.failed(exc):
            _log.warning("event stream ended early", error=str(exc))
        return None


async def _gone(receive: Receive) -> None:
    with contextlib.suppress(Exception):  # whatever it is, nobody reads any more
        while (await receive())["type"] != "http.disconnect":
            pass


def _block(event: Event) -> bytes:
    """One event of the stream; a type with a line break would be two fields."""
    kind = " ".join(event.type.split()) or "message"
    return f"id: {event.id}\nevent: {kind}\ndata: {_json(event.data)}\n\n".encode()


def _line(event: Event) -> bytes:
    return _encode(EventLine(event.id, event.type, event.at, event.data)) + b"\n"


def _json(value: Any) -> str:
    return _encode(value).decode()
