"""Health and metrics: whether this process lives, whether it wants requests, and how Redis is.

Readiness does not depend on Redis: all replicas share it, and taking every one of them out of service
would replace a clear 503 by no answer at all. Nor does it depend on workers: a queue without one is reported
in the body, while runs of every other queue are still accepted and all of them can still be read.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fastapi import APIRouter, Request, Response

from holdfast.api.access import access
from holdfast.api.openapi import answers
from holdfast.api.replies import reply
from holdfast.api.shapes import Health, QueueHealth, Readiness, RedisHealth
from holdfast.operations.caller import READ
from holdfast.redis.client import DISCONNECTS, REFUSALS
from holdfast.redis.command import command

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from holdfast.api.backend import Backend
    from holdfast.redis.client import Redis
    from holdfast.runs.partition import Partition
    from holdfast.runs.queue import RunQueue

T = TypeVar("T")

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
            "Redis does not answer (a problem), a group is missing, or some servers of a cluster do not "
            "answer: `ping_ms` is null then, and each of their queues has `answers` false.",
            {**_REDIS, "status": "group missing"},
        ),
    },
)
async def get_redis_health(request: Request) -> Response:
    """Measure a PING and look for each queue's group."""
    here = access(request, READ)
    here.caller.require_every_tenant()
    system = here.system
    health = await _redis_health(
        system.redis,
        [each.queue for each in system.queues.values()],
        seconds=system.settings.redis.socket_timeout_seconds,
    )
    return reply(health, 200 if health.status == "ok" else 503)


async def _redis_health(redis: Redis, queues: Sequence[RunQueue], *, seconds: float) -> RedisHealth:
    """Read everything side by side, so that a server of a cluster which hangs is waited for once.

    Raises if no queue can be read.
    """
    ping_ms, *groups = await asyncio.gather(
        _unless_away(_ping_ms(redis), seconds),
        *(_unless_away(_has_groups(queue), seconds) for queue in queues),
    )
    away = [each for each in groups if isinstance(each, Exception)]
    if len(away) == len(groups):
        raise away[0]
    found = [
        QueueHealth(queue.name, queue.settings.group, group is True, answers=not isinstance(group, Exception))
        for queue, group in zip(queues, groups, strict=True)
    ]
    if isinstance(ping_ms, Exception) or away:
        return RedisHealth("no answer", None, found)
    return RedisHealth("ok" if all(groups) else "group missing", round(ping_ms, 3), found)


async def _unless_away(question: Coroutine[Any, Any, T], seconds: float) -> T | Exception:
    try:
        async with asyncio.timeout(seconds):
            return await question
    except DISCONNECTS as exc:
        return exc


async def _ping_ms(redis: Redis) -> float:
    started = time.perf_counter()
    await command(redis, "PING")
    return (time.perf_counter() - started) * 1000


async def _has_groups(queue: RunQueue) -> bool:
    partitions = await queue.all_partitions()
    return all(await asyncio.gather(*(_has_group(partition) for partition in partitions)))


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
    backend: Backend = request.app.state.backend
    answer = backend.metrics(request.headers.get("accept", ""))
    return Response(answer.body, status_code=answer.status, media_type=answer.content_type)
