"""A courier delivers the lines of one sink: every event of a queue's runs, in order per run, at least once.

Invariant: the next event of a line is sent only when the one before was answered and the cursor has moved on.
So a crash repeats only the last event, and nobody hears of an event before those that precede it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING

import msgspec

from holdfast.clock import boot_time
from holdfast.errors import LeaseLost
from holdfast.events.patience import counts_as_refusal, given_up, pause_seconds
from holdfast.events.sinks.destinations import Unwell
from holdfast.events.sinks.request import Answer, Verdict
from holdfast.redis.client import DISCONNECTS, TROUBLE
from holdfast.telemetry.logs import get_logger, run_context
from holdfast.telemetry.traces import delivery_span, inject, record_delivery

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from holdfast.config import RelaySettings
    from holdfast.events.event import Event
    from holdfast.events.origin import Origin
    from holdfast.events.outbox import Line, Outbox, Redelivery
    from holdfast.events.pace import Pace, Slots, Wakeup
    from holdfast.events.sinks.destinations import Destinations
    from holdfast.events.sinks.poster import Poster
    from holdfast.events.sinks.request import Request, Sink
    from holdfast.events.spreader import Origins
    from holdfast.telemetry.metrics import Metrics

    Hold = Callable[[Line, float], AbstractAsyncContextManager[object]]
    """Keeps a line while its body runs, from the ``boot_time()`` at which it was asked for."""

_AGAIN_SECONDS = 0.5
_GOODBYE_SECONDS = 1.0
_JITTER = 0.2

_log = get_logger(__name__)


class Courier:
    """Delivers what one queue has for one sink."""

    def __init__(
        self,
        outbox: Outbox,
        sink: Sink,
        settings: RelaySettings,
        *,
        origins: Origins,
        poster: Poster,
        destinations: Destinations,
        slots: Slots,
        pace: Pace,
        hold: Hold,
        wakeup: Wakeup,
        metrics: Metrics,
    ) -> None:
        self.wakeup = wakeup
        self._queue = origins.queue
        self._outbox = outbox
        self._sink = sink
        self._settings = settings
        self._origins = origins
        self._poster = poster
        self._destinations = destinations
        self._slots = slots
        self._pace = pace
        self._hold = hold
        self._metrics = metrics
        self._delivered = metrics.relay_delivered.child(self._queue, sink.name)
        self._undelivered = metrics.relay_undelivered.labels(self._queue, sink.name)
        self._lag = metrics.relay_lag_seconds.child(self._queue, sink.name)
        self._took = metrics.relay_post_seconds.child(sink.name)

    async def run(self) -> None:
        """Deliver until the pace says stop; return when no line is held any more."""
        async with asyncio.TaskGroup() as group:
            while not self._pace.stopping:
                await self._pace.either(self._slots.wait())
                if self._slots.free > 0 and not self._pace.stopping:
                    await self._pace.round(lambda: self._claim(group), self.wakeup)

    async def _claim(self, group: asyncio.TaskGroup) -> float:
        """Take lines that are due; return how long none will be: 0 if there may be more."""
        asked = boot_time()
        claimed = await self._outbox.claim(self._sink.name, self._slots.free)
        for line in claimed.lines:
            self._slots.take()
            group.create_task(self._attend(line, asked), name=f"line {line.name}")
        for run_id in claimed.gone:
            self._undelivered.inc()
            _log.warning("run left before its events were delivered", run_id=run_id, sink=self._sink.name)
        return 0.0 if claimed.looked else claimed.due_seconds

    # -- one line

    async def _attend(self, line: Line, asked: float) -> None:
        try:
            async with self._hold(line, asked):
                await self._carry(line)
        except LeaseLost:
            _log.warning("line was taken over", run_id=line.run_id, sink=line.sink, fence=line.fence)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError, *DISCONNECTS):  # else it is due when its lease ends
                async with asyncio.timeout(_GOODBYE_SECONDS):
                    await self._outbox.put_back(line, 0)
            raise
        except TROUBLE as exc:
            self._metrics.redis_errors.labels(type(exc).__name__).inc()  # the line is due when its lease ends
        finally:
            self._slots.give()
            # The line may be due again soon: the next claim reads how soon.
            self.wakeup.set()  # guard: line-ended-wakes

    async def _carry(self, line: Line) -> None:
        """Deliver the line's events until there are no more, one is not taken, or we are to stop."""
        if line.again:
            await self._redeliver(line)
        else:
            await self._deliver(line)

    async def _deliver(self, line: Line) -> None:
        """Deliver what the feed has."""
        started = time.monotonic()
        origin = await self._origins.of(line)
        if origin is None:
            await self._outbox.put_back(line, _AGAIN_SECONDS)
            return
        run_context.set({**origin.logger_context, "run_id": line.run_id, "queue": self._queue})
        going_on = True
        while going_on:
            events = line.events
            for number, event in enumerate(events, 1):
                if self._pace.stopping:
                    await self._outbox.put_back(line, 0)
                    return
                answer = await self._send(origin, event, line.sequence + 1, line.address)
                now = line.now + time.monotonic() - started
                if answer.verdict is Verdict.DELIVERED:
                    self._lag.observe(max(now - event.at, 0.0))
                reason = await self._settle(line, event, answer, now)
                going_on = reason is not None and await self._outbox.move(
                    line,
                    event,
                    line.sequence + 1,
                    last=number == len(events),
                    reason=reason,
                    rejections=self._rejections_after(line, answer),
                    origin=origin,
                )
                if not going_on:
                    return

    async def _redeliver(self, line: Line) -> None:
        """Deliver again what was given up before."""
        started = time.monotonic()
        for number, again in enumerate(line.again, 1):
            if self._pace.stopping:
                await self._outbox.put_back(line, 0)
                return
            answer = await self._send_again(line, again)
            reason = await self._settle(line, again.event, answer, line.now + time.monotonic() - started)
            if reason is None or not await self._outbox.redelivered(
                line,
                again,
                last=number == len(line.again),
                reason=reason,
                rejections=self._rejections_after(line, answer),
            ):
                return

    async def _settle(self, line: Line, event: Event, answer: Answer, now: float) -> str | None:
        """Count the answer; return why the event is given up, empty if it was taken, None to try again.

        For another try the line is put back: it is not ours any more.
        """
        if answer.verdict is Verdict.DELIVERED:
            self._delivered.inc()
            _log.debug("event delivered", sink=line.sink, event_id=event.id, type=event.type)
            return ""
        reason = self._judge(line, event, answer, now)
        if not reason:
            await self._later(line, event, answer)
            return None
        self._undelivered.inc()
        _log.error("event given up", sink=line.sink, event_id=event.id, type=event.type, error=reason)
        return reason

    def _rejections_after(self, line: Line, answer: Answer) -> int:
        """How many rejections the line's next event begins with.

        A receiver that rejects whatever it gets is not waited for again with each of the run's next events.
        """
        return line.rejections if answer.verdict is Verdict.REJECTED and not self._sink.ours else 0

    def _judge(self, line: Line, event: Event, answer: Answer, now: float) -> str:
        """Why the event is given up, if it is."""
        if answer.kind == "busy":
            return ""
        kind = "rejected" if answer.verdict is Verdict.REJECTED else answer.kind
        self._metrics.relay_failures.labels(self._queue, line.sink, kind).inc()
        return given_up(
            answer,
            ours=self._sink.ours,
            refusals=line.rejections if answer.verdict is Verdict.REJECTED else line.refusals,
            event_at=event.at,
            failing_since=line.now - line.failing_seconds if line.failing_seconds else 0.0,
            now=now,
            patience=self._settings.give_up_seconds,
        )

    async def _later(self, line: Line, event: Event, answer: Answer) -> None:
        pause = pause_seconds(self._settings, answer, tries=line.tries, refusals=line.refusals)
        refused = counts_as_refusal(answer, ours=self._sink.ours)
        why = answer.verdict.value if refused else "failed"
        if answer.kind == "busy":
            pause, why = answer.retry_after, "released"
        else:
            log = _log.warning if refused else _log.info
            log("event not taken", sink=line.sink, event_id=event.id, again_in=pause, error=answer.reason)
        await self._outbox.put_back(line, pause * random.uniform(1, 1 + _JITTER), why=why)  # noqa: S311

    # -- one event

    async def _send_again(self, line: Line, again: Redelivery) -> Answer:
        origin = again.origin or await self._origins.of(line)
        if origin is None:
            return Answer(kind="address", error="the run has left, and where its events go was not kept")
        run_context.set({**origin.logger_context, "run_id": line.run_id, "queue": self._queue})
        return await self._send(origin, again.event, again.sequence, again.address or line.address)

    async def _send(self, origin: Origin, event: Event, sequence: int, address: str) -> Answer:
        try:
            request = self._sink.request(origin, event, sequence, address)
        except Exception as exc:  # an event that can't be written must not stop the others
            return Answer(kind="sink", error=f"the event can't be written: {exc!r}")
        started = time.monotonic()
        answer = await self._post(origin, request)
        if answer.status or answer.kind in {"timeout", "connection"}:
            self._took.observe(time.monotonic() - started)
        return answer

    async def _post(self, origin: Origin, request: Request) -> Answer:
        destination = self._destinations.of(request.url, ours=not request.guarded)
        if destination.crowded:
            return Answer(kind="busy", retry_after=destination.turn_away(self._settings))
        if wait := destination.breaker.retry_after:
            return Answer(kind="breaker", error="the receiver is down (breaker)", retry_after=wait)
        answer = Answer(kind="connection")
        with destination.slot(), contextlib.suppress(Unwell), destination.breaker.guard():
            answer = await self._traced_post(origin, request)
            if destination.is_unwell(answer):
                raise Unwell
        destination.report(answer)
        return answer

    async def _traced_post(self, origin: Origin, request: Request) -> Answer:
        with delivery_span(self._sink.name, origin.run_id, origin.trace) as span:
            if span is not None:  # what the receiver does is a child of this; the body stays the same
                headers = {**request.headers, **inject()}
                request = msgspec.structs.replace(request, headers=headers)
            answer = await self._poster.post(request)
            record_delivery(span, answer.status, "" if answer.verdict is Verdict.DELIVERED else answer.reason)
            return answer
