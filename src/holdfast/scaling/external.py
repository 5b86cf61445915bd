"""The external scaler of KEDA: the four calls of ``externalscaler.proto``, and the codes of errors.

Invariant: a depth that can't be read is an error, never 0 and never "not active": both would end workers.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import grpc

from holdfast.errors import ConfigError, HoldfastError, InputError, NotFound, RedisUnavailable, Refused
from holdfast.redis.outages import redis_outages
from holdfast.scaling.proto import externalscaler_pb2 as wire
from holdfast.scaling.proto.externalscaler_pb2_grpc import ExternalScalerServicer
from holdfast.scaling.trigger import read_trigger
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import NoReturn

    from grpc import aio

    from holdfast.outages import OutageReporter
    from holdfast.runs.queue import RunQueue
    from holdfast.scaling.asking import Asker, Queues
    from holdfast.scaling.trigger import Trigger
    from holdfast.scaling.waking import Watches
    from holdfast.telemetry.metrics import Metrics

SERVICE: Final = wire.DESCRIPTOR.services_by_name["ExternalScaler"].full_name
_NO_QUEUE: Final = ("unknown",)
R = TypeVar("R")

_log = get_logger(__name__)

_CODES: Final[tuple[tuple[type[Exception], grpc.StatusCode], ...]] = (
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (InputError, grpc.StatusCode.INVALID_ARGUMENT),
    (Refused, grpc.StatusCode.UNAVAILABLE),
    (ConfigError, grpc.StatusCode.UNAVAILABLE),  # Redis refuses the password
    (HoldfastError, grpc.StatusCode.FAILED_PRECONDITION),  # Redis refuses a command: a key is damaged
)
"""The most specific first."""


class Scaler(ExternalScalerServicer):
    """The servicer that KEDA calls."""

    def __init__(
        self, queues: Mapping[str, RunQueue], asker: Asker, watches: Watches, metrics: Metrics
    ) -> None:
        self._queues = queues
        self._asker = asker
        self._watches = watches
        self._metrics = metrics
        # By the trigger's queues: one server of a cluster may hang while the others answer.
        self._outages: defaultdict[Queues, OutageReporter] = defaultdict(
            partial(redis_outages, "answers to KEDA", "calls end with UNAVAILABLE")
        )
        # At 0 from the start: a counter that appears at 1 has no increase to alert on.
        for name in queues:
            metrics.scaling_questions.labels(name, grpc.StatusCode.UNAVAILABLE.name.lower())

    async def IsActive(
        self, request: wire.ScaledObjectRef, context: aio.ServicerContext[Any, Any]
    ) -> wire.IsActiveResponse:
        """Return whether there should be any worker."""

        async def work(trigger: Trigger) -> wire.IsActiveResponse:
            return wire.IsActiveResponse(result=trigger.is_active(await self._demand(trigger)))

        return await self._answer("IsActive", request, context, work)

    async def StreamIsActive(
        self, request: wire.ScaledObjectRef, context: aio.ServicerContext[Any, Any]
    ) -> None:
        """Send whether there should be any worker, now and at each change, until the stream is closed."""
        await self._answer(
            "StreamIsActive", request, context, lambda trigger: self._stream(trigger, context), timed=False
        )

    async def GetMetricSpec(
        self, request: wire.ScaledObjectRef, context: aio.ServicerContext[Any, Any]
    ) -> wire.GetMetricSpecResponse:
        """Return the name of the metric, and its target value per worker; without a call to Redis."""

        async def work(trigger: Trigger) -> wire.GetMetricSpecResponse:
            # Newer versions of KEDA read the float, older ones the whole number.
            spec = wire.MetricSpec(
                metricName=trigger.metric, targetSize=trigger.slots, targetSizeFloat=trigger.slots
            )
            return wire.GetMetricSpecResponse(metricSpecs=[spec])

        return await self._answer("GetMetricSpec", request, context, work)

    async def GetMetrics(
        self, request: wire.GetMetricsRequest, context: aio.ServicerContext[Any, Any]
    ) -> wire.GetMetricsResponse:
        """Return the demand."""

        async def work(trigger: Trigger) -> wire.GetMetricsResponse:
            trigger.check_metric(request.metricName)  # guard: scaler-metric-name
            wanting = await self._demand(trigger)
            # Rounded up: the whole number must not be 0 while there is any work.
            # guard: scaler-value-rounded-up
            value = wire.MetricValue(
                metricName=trigger.metric, metricValue=math.ceil(wanting), metricValueFloat=wanting
            )
            return wire.GetMetricsResponse(metricValues=[value])

        return await self._answer("GetMetrics", request.scaledObjectRef, context, work)

    # -- helpers

    async def _demand(self, trigger: Trigger) -> float:
        with self._outages[trigger.queues]:
            return trigger.demand(await self._asker.ask(trigger.queues))  # guard: scaler-outage-error

    async def _stream(self, trigger: Trigger, context: aio.ServicerContext[Any, Any]) -> None:
        for name in trigger.names:
            self._metrics.scaling_streams.labels(name).inc()
        try:
            with self._watches.listening(trigger) as listener:
                while (active := await listener.next()) is not None:
                    await context.write(wire.IsActiveResponse(result=active))
                    for name in trigger.names:
                        self._metrics.scaling_pushes.labels(name, str(active).lower()).inc()
        finally:
            for name in trigger.names:
                self._metrics.scaling_streams.labels(name).dec()

    async def _answer(
        self,
        call: str,
        ref: wire.ScaledObjectRef,
        context: aio.ServicerContext[Any, Any],
        work: Callable[[Trigger], Awaitable[R]],
        *,
        timed: bool = True,
    ) -> R:
        """Call ``work`` with the trigger of ``ref``, count the call, and abort it with a code on errors."""
        began, names, result = time.monotonic(), _NO_QUEUE, "cancelled"
        try:
            trigger = read_trigger(ref.scalerMetadata, self._queues)  # guard: scaler-known-queues
            names = trigger.names
            answer = await work(trigger)
            result = "ok"
        except Exception as exc:
            code = _code(exc)
            result = code.name.lower()
            await self._refuse(context, call, ref, code, exc)
        else:
            return answer
        finally:
            for name in names:
                self._metrics.scaling_questions.labels(name, result).inc()
            if timed:
                self._metrics.scaling_seconds.labels(call).observe(time.monotonic() - began)

    async def _refuse(
        self,
        context: aio.ServicerContext[Any, Any],
        call: str,
        ref: wire.ScaledObjectRef,
        code: grpc.StatusCode,
        exc: Exception,
    ) -> NoReturn:
        caller = {"call": call, "namespace": ref.namespace, "name": ref.name}
        if code is grpc.StatusCode.INTERNAL:
            _log.exception("call failed", **caller)
            await context.abort(code, "this scaler failed, its log has the reason")
        if not isinstance(exc, RedisUnavailable):  # which is logged as an outage
            _log.warning("call refused", code=code.name, error=str(exc), **caller)
        await context.abort(code, str(exc))


def _code(exc: Exception) -> grpc.StatusCode:
    found = (code for kind, code in _CODES if isinstance(exc, kind))
    return next(found, grpc.StatusCode.INTERNAL)
