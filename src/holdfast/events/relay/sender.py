"""Sends one event to a sink's receiver: with the receiver's breaker, in one of its slots, in a span."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import msgspec

from holdfast.events.sinks.destinations import ReceiverFailed
from holdfast.events.sinks.request import ResponseMeaning, SinkResponse
from holdfast.telemetry.traces import delivery_span, inject, record_delivery

if TYPE_CHECKING:
    from holdfast.config import RelaySettings
    from holdfast.events.relay.outbox import PendingEvent
    from holdfast.events.relay.run_facts import RunFacts
    from holdfast.events.sinks.destinations import Destinations
    from holdfast.events.sinks.poster import Poster
    from holdfast.events.sinks.request import Sink, SinkRequest
    from holdfast.telemetry.metrics import Metrics


class Sender:
    """Sends the events of one sink; every failure is a response, not an exception."""

    def __init__(
        self,
        sink: Sink,
        settings: RelaySettings,
        poster: Poster,
        destinations: Destinations,
        metrics: Metrics,
    ) -> None:
        self.sink = sink
        self._settings = settings
        self._poster = poster
        self._destinations = destinations
        self._took = metrics.relay_post_seconds.child(sink.name)

    async def send(self, event: PendingEvent, run: RunFacts) -> SinkResponse:
        """Send an event of a run; return the receiver's response, or why there is none."""
        try:
            request = self.sink.request(run, event.event, event.sequence, event.address)
        except Exception as exc:  # an event that can't be encoded must not stop the others
            return SinkResponse(kind="sink", error=f"the event can't be encoded: {exc!r}")
        started = time.monotonic()
        response = await self._post(request, run)
        if response.status or response.kind in {"timeout", "connection"}:
            self._took.observe(time.monotonic() - started)
        return response

    async def _post(self, request: SinkRequest, run: RunFacts) -> SinkResponse:
        receiver = self._destinations.of(request.url, ours=not request.guarded)
        if receiver.is_full:
            return SinkResponse(kind="busy", retry_after=receiver.pause_when_full(self._settings))
        if wait := receiver.breaker.retry_after:
            return SinkResponse(kind="breaker", error="the receiver is down (breaker)", retry_after=wait)
        response = SinkResponse(kind="connection")
        with receiver.slot(), contextlib.suppress(ReceiverFailed), receiver.breaker.guard():
            response = await self._traced_post(request, run)
            if receiver.has_failed(response):
                raise ReceiverFailed
        receiver.report(response)
        return response

    async def _traced_post(self, request: SinkRequest, run: RunFacts) -> SinkResponse:
        with delivery_span(self.sink.name, run.run_id, run.trace) as span:
            if span is not None:  # the receiver's spans become its children; the body is not changed
                headers = {**request.headers, **inject()}
                request = msgspec.structs.replace(request, headers=headers)
            response = await self._poster.post(request)
            error = "" if response.verdict is ResponseMeaning.DELIVERED else response.reason
            record_delivery(span, response.status, error)
            return response
