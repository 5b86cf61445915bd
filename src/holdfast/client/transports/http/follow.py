"""Following a run's events over HTTP.

Invariant: every event after the one it starts at, once and in order, whatever becomes of the API's replicas
meanwhile. That a stream ends says nothing, a replica may have left: only the API's "nothing more" ends it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.client.transports.http.address import run_path
from holdfast.client.transports.http.calls import pause_seconds
from holdfast.client.transports.http.problems import not_ours, read
from holdfast.client.transports.http.sse import Blocks
from holdfast.errors import ApiUnavailable, InputError, NotFound, Refused
from holdfast.events.event import Event, order
from holdfast.events.feed import checked_event_id
from holdfast.outages import Outage, OutageReporter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from holdfast.client.transports.http.calls import Calls
    from holdfast.client.transports.http.sse import Block

_json = msgspec.json.Decoder()
_API: Final = Outage("HTTP API")


def _is_outage(exc: BaseException) -> bool:
    return isinstance(exc, Refused)


async def follow(calls: Calls, run_id: str, after: str, queue: str = "") -> AsyncGenerator[Event]:
    """Yield events until the run has ended; an API that is away is waited for once it has been reached."""
    path, last, ended = run_path(run_id, "events", queue=queue), checked_event_id(after), False
    reached, failures = False, 0
    outages = OutageReporter(_API, "events for followers", is_outage=_is_outage)
    while True:
        try:
            async with calls.stream(path, last) as pieces:
                reached = True
                outages.answered()
                if pieces is None:
                    return
                blocks = Blocks()
                while piece := await pieces.read():
                    for event in _after(last, calls, blocks.feed(piece)):
                        failures, last, ended = 0, event.id, event.final
                        yield event
            failures += 1
            if ended and failures == 1:
                continue
        except Refused as exc:
            failures += 1
            if not reached and (failures >= calls.tries or not isinstance(exc, ApiUnavailable)):
                raise
            outages.failed(exc)
        except NotFound:
            if ended:  # and it was so long ago that nobody remembers
                return
            raise
        await asyncio.sleep(pause_seconds(failures))


def _after(last: str, calls: Calls, blocks: list[Block]) -> Iterator[Event]:
    """Pass over what was seen: it was not asked for, but not everybody between us and the API listens."""
    for block in blocks:
        event = _event(calls, block)
        if order(event.id) > order(last):
            last = event.id
            yield event


def _event(calls: Calls, block: Block) -> Event:
    try:
        checked_event_id(block.id)
    except InputError as exc:
        raise not_ours(calls.url, exc) from exc
    data = read(calls.url, block.data.encode(), _json)
    return Event(block.id, block.event, data, int(block.id.partition("-")[0]) / 1000)
