"""A producer that is being moved to a queue: by its roll-out it sends there, or the old way, its fallback.

Invariant: a message is taken by one of the two, or its caller gets the error; both are told the same id, so a
message that went both ways (the reply was lost) is one run.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypedDict

import msgspec

from holdfast.client.request import submission
from holdfast.client.rollout import checked_rollout
from holdfast.client.transports.redis.rollouts import LiveRollout
from holdfast.client.transports.redis.transport import RedisTransport
from holdfast.config import SenderSettings, duration_seconds, load
from holdfast.config.names import checked_queue
from holdfast.errors import (
    ConfigError,
    HoldfastError,
    PayloadTooLarge,
    QueueFull,
    QueuePaused,
    Refused,
)
from holdfast.packages import needs_extra
from holdfast.redis.translate import translate_errors
from holdfast.runs.run import checked_id
from holdfast.runs.submit import uuid7
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType
    from typing import Unpack

    from holdfast.client.request import Duration, PriorityName
    from holdfast.client.rollout import Rollout
    from holdfast.config import Settings
    from holdfast.reliability.breaker import Breaker
    from holdfast.runs.run import Priority, Submission
    from holdfast.telemetry.metrics import Metrics

    Fallback: TypeAlias = Callable[[Submission], Awaitable[object]]

QUEUE: Final = "queue"
FALLBACK: Final = "fallback"
ROLLOUT: Final = "rollout"
"""The reason of a message whose tenant is not in the roll-out."""
_REASONS: Final[tuple[tuple[type[HoldfastError], str], ...]] = (
    (QueueFull, "full"),
    (QueuePaused, "paused"),
    (Refused, "unavailable"),
    (PayloadTooLarge, "too_large"),
)
_log = get_logger(__name__)


class SendOptions(TypedDict, total=False):
    """What may be said of a message beside its id and tenant, in the words of ``submit``."""

    thread_id: str
    priority: PriorityName | Priority
    delay: Duration
    timeout: Duration | None
    metadata: Mapping[str, Any] | None
    logger_context: Mapping[str, Any] | None


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """Where a message went, and why if it was the fallback: ``rollout``, or why the queue refused it."""

    run_id: str
    path: str
    reason: str = ""
    fresh: bool = True


class Producer:
    """Sends messages to a queue or to the fallback, used as ``async with Producer(...) as producer``.

    ``rollout`` names the percentage flag that decides, tenant by tenant. ``fallback`` is a URL that messages
    are posted to, or an async function that is given the submission; without one, only the queue is used.
    """

    def __init__(
        self,
        name: str,
        *,
        agent: str,
        rollout: str,
        fallback: str | Fallback | None = None,
        queue: str = "",
        patience: Duration = 2.0,
        refresh: Duration = 1.0,
        settings: Settings | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self.name = name
        self._settings = load().settings if settings is None else settings
        self._agent = agent
        self._rollout_name = checked_rollout(rollout)
        self._queue_name = checked_queue(queue or self._settings.messaging.queue)
        self._patience_seconds = duration_seconds(patience)
        if not self._patience_seconds:
            raise ConfigError("patience must be more than 0: it is the time that the queue has to answer")
        self._refresh_seconds = duration_seconds(refresh)
        self._given = fallback
        self._metrics = metrics
        self._stack = contextlib.AsyncExitStack()
        self._fallback: Fallback | None = None
        self._transport: RedisTransport | None = None
        self._rollout: LiveRollout | None = None
        self._told = ""

    async def __aenter__(self) -> Self:
        timely = self._timely()
        self._transport = transport = await self._stack.enter_async_context(RedisTransport(timely))
        self._fallback = await self._opened_fallback()
        self._rollout = LiveRollout(
            transport.rollouts(),
            self._rollout_name,
            transport.breaker_apart(),
            refresh_seconds=self._refresh_seconds,
            patience_seconds=timely.redis.socket_timeout_seconds,
        )
        if self._metrics is not None:
            self._show(self._metrics, transport.breaker)
        return self

    @property
    def breaker(self) -> Breaker:
        """What counts the failures of Redis, and says when it is not asked."""
        return self._open().breaker

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._transport = self._rollout = None
        await self._stack.__aexit__(kind, exc, trace)

    async def send(
        self,
        input: Any,  # noqa: A002 - the public name of what an agent is given
        *,
        tenant: str = "",
        run_id: str = "",
        **options: Unpack[SendOptions],
    ) -> Sent:
        """Send one message the way its tenant goes; without a tenant its id decides.

        The same ``run_id`` again is the same run, whichever way it went the first time.
        """
        message = submission(
            self._agent,
            input,
            run_id=checked_id(run_id, "run_id") if run_id else uuid7(),
            tenant=checked_id(tenant, "tenant") if tenant else "",
            **options,
        )
        meant, reason = await self._meant(message)
        if not meant:
            return await self._fall_back(message, reason, None)
        try:
            return await self._queued(message)
        except HoldfastError as exc:
            why = _reason(exc)
            if not why or self._fallback is None:
                self._count_failure(QUEUE)
                raise
            return await self._fall_back(message, why, exc)

    async def rollout(self) -> Rollout | None:
        """The roll-out that messages go by now; None as long as nobody could be asked."""
        self._open()
        assert self._rollout is not None
        return await self._rollout.now()

    async def _meant(self, message: Submission) -> tuple[bool, str]:
        """Whether the queue is the way; if only because nobody could ask it is not, with that reason."""
        rollout = await self.rollout()
        if rollout is None:
            return self._fallback is None, "unavailable"
        if self._metrics is not None:
            self._metrics.rollout_percent.labels(self.name, rollout.name).set(rollout.percent)
        # Without the old way there is only one: a roll-out that is over may be removed.
        return self._fallback is None or rollout.includes(message.tenant or message.run_id), ""

    async def _queued(self, message: Submission) -> Sent:
        patience = self._patience_seconds if self._fallback is not None else None
        with translate_errors(self._settings.redis.url):
            async with asyncio.timeout(patience):  # also for those who wait behind others
                ticket = await self._open().queue(self._queue_name).submit(message)
        self._tell("")
        if self._metrics is not None:
            self._metrics.producer_sent.labels(self.name, QUEUE).inc()
        return Sent(run_id=ticket.run_id, path=QUEUE, fresh=ticket.fresh)

    async def _fall_back(self, message: Submission, reason: str, refusal: HoldfastError | None) -> Sent:
        assert self._fallback is not None
        if reason:
            self._tell(reason)
            if self._metrics is not None:
                self._metrics.producer_fallbacks.labels(self.name, reason).inc()
        try:
            await self._fallback(message)
        except Exception as exc:
            self._count_failure(FALLBACK)
            if refusal is not None:
                exc.add_note(f"it went to the fallback because the queue did not take it: {refusal}")
            raise
        if self._metrics is not None:
            self._metrics.producer_sent.labels(self.name, FALLBACK).inc()
        return Sent(run_id=message.run_id, path=FALLBACK, reason=reason or ROLLOUT)

    def _tell(self, reason: str) -> None:
        """Log when the reason changes: an outage is one line, not one for every message."""
        if reason == self._told:
            return
        self._told = reason
        if reason:
            _log.warning("messages go to the fallback", producer=self.name, reason=reason)
        else:
            _log.info("messages go to the queue again", producer=self.name)

    def _count_failure(self, path: str) -> None:
        if self._metrics is not None:
            self._metrics.producer_failures.labels(self.name, path).inc()

    def _open(self) -> RedisTransport:
        if self._transport is None:
            raise HoldfastError("the producer is not open: use it inside `async with Producer(...) as …:`")
        return self._transport

    def _show(self, metrics: Metrics, breaker: Breaker) -> None:
        """Show what is counted from the start, at 0: what appears at 1 has no increase to alert on."""
        gauge = metrics.redis_breaker_state.labels(self._queue_name)
        gauge.set_function(lambda: breaker.state.level)
        for path in (QUEUE, FALLBACK):
            metrics.producer_sent.labels(self.name, path)
            metrics.producer_failures.labels(self.name, path)
        for reason in (*dict(_REASONS).values(), "error"):
            metrics.producer_fallbacks.labels(self.name, reason)

    async def _opened_fallback(self) -> Fallback | None:
        if not isinstance(self._given, str):
            return self._given
        with needs_extra("a fallback that is a URL", "http"):
            from holdfast.client.transports.http.post import HttpFallback  # noqa: PLC0415
        return await self._stack.enter_async_context(HttpFallback(self._given, self._settings.client))

    def _timely(self) -> Settings:
        """With a fallback at hand nobody waits long for Redis: two tries fit into the patience.

        The second is for a connection that Redis, or somebody between, had closed meanwhile.
        """
        settings, patience = self._settings, self._patience_seconds
        if self._given is None:
            return settings
        redis = msgspec.structs.replace(
            settings.redis,
            socket_timeout_seconds=min(settings.redis.socket_timeout_seconds, patience * 0.45),
            connect_timeout_seconds=min(settings.redis.connect_timeout_seconds, patience * 0.45),
        )
        sender = SenderSettings(max_retries=1, retry_delay_seconds=patience * 0.05)
        return msgspec.structs.replace(settings, redis=redis, sender=sender)


def _reason(exc: HoldfastError) -> str:
    """Why the queue did not take a message that the fallback may take; empty if nobody should."""
    for kind, reason in _REASONS:
        if isinstance(exc, kind):
            return reason
    # Redis answers, but not us: no right to write, no disk. What is wrong with the message has its own types.
    return "error" if type(exc) is HoldfastError else ""
