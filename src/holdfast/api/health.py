"""Health and metrics: whether this process lives, whether it wants requests, and how Redis is.

Readiness does not depend on Redis: all replicas share it, and taking every one of them out of service
would replace a clear 503 by no answer at all. Nor does it depend on workers: a queue without one is reported
in the body, while runs of every other queue are still accepted and all of them can still be read.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from fastapi import APIRouter, Request, Response

from holdfast.api.access import access
from holdfast.api.auth import READ
from holdfast.api.openapi import answers
from holdfast.api.replies import reply
from holdfast.api.shapes import Health, QueueHealth, Readiness, RedisHealth
from holdfast.redis.client import REFUSALS
from holdfast.redis.command import command

if TYPE_CHECKING:
    from holdfast.api.backend import Backend
    from holdfast.runs.partition import Partition
    from holdfast.runs.queue import RunQueue

router = APIRouter(tags=["health"])

_REDIS: Final[dict[str, Any]] = {
    "status": "ok",
    "ping_ms": 0.2,
    "queues": [{"queue": "agent-queue", "group": "agent-queue-group", "present": True}],
}


@router.get(
    "/healthz",
    summary="Whether this process lives",
    responses=answers(200, Health, "It lives.", {"status": "ok"}),
)
async def get_health() -> Response:
    """Answer as long as the process can."""
    return reply(Health("ok"))


@router.get(
    "/readyz",
    summary="Whether this process wants requests",
    responses={
        **answers(
            200,
            Readiness,
            "It does. `unserved` names the queues in which runs have waited for `api.unserved_seconds` "
            "while no worker served them.",
            {"status": "ready", "unserved": ["agent-queue"]},
        ),
        **answers(503, Readiness, "It is about to leave.", {"status": "draining"}),
    },
)
async def get_readiness(request: Request) -> Response:
    """Say no from the moment this process is told to stop."""
    backend: Backend = request.app.state.backend
    if backend.draining.is_set():
        return reply(Readiness("draining"), 503)
    return reply(Readiness("ready", backend.unserved.names))


@router.get(
    "/internal/health/redis",
    summary="How fast Redis answers, and whether the consumer groups are there",
    responses={
        **answers(200, RedisHealth, "Redis answers and every group is there.", _REDIS),
        **answers(errors=(401, 403)),
        **answers(
            503,
            RedisHealth,
            "Redis does not answer (a problem), or a group is missing.",
            {**_REDIS, "status": "group missing"},
        ),
    },
)
async def get_redis_health(request: Request) -> Response:
    """Measure a PING and look for each queue's group."""
    here = access(request, READ)
    here.caller.require_every_tenant()
    started = time.perf_counter()
    await command(here.backend.redis, "PING")
    ping_ms = (time.perf_counter() - started) * 1000
    queues = [await _queue_health(line.queue) for line in here.backend.lines.values()]
    well = all(each.present for each in queues)
    return reply(
        RedisHealth("ok" if well else "group missing", round(ping_ms, 3), queues), 200 if well else 503
    )


async def _queue_health(queue: RunQueue) -> QueueHealth:
    present = [await _has_group(partition) for partition in await queue.all_partitions()]
    return QueueHealth(queue.name, queue.settings.group, all(present))


async def _has_group(partition: Partition) -> bool:
    group = partition.settings.group.encode()
    try:
        found: list[list[Any]] = await command(partition.redis, "XINFO", "GROUPS", partition.keys.stream)
    except REFUSALS:  # there is no such stream yet
        found = []
    return any(group in each for each in found)


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={
        200: {
            "description": "The metrics of this process.",
            "content": {"text/plain": {"schema": {"type": "string"}}},
        },
        **answers(errors=(401, 403)),
    },
)
async def get_metrics(request: Request) -> Response:
    """Give what has been counted; `metrics.port` serves the same without a key."""
    here = access(request, READ)
    here.caller.require_every_tenant()
    answer = here.backend.metrics(request.headers.get("accept", ""))
    return Response(answer.body, status_code=answer.status, media_type=answer.content_type)
