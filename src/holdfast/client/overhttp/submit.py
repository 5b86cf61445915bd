"""Submitting over HTTP: a run is accepted once, however often the same submission is sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.client.overhttp.problems import read
from holdfast.errors import AccessDenied, ApiUnavailable, HoldfastError
from holdfast.runs.message import encode_value
from holdfast.runs.run import Status, Submission, Ticket, checked_id
from holdfast.runs.submit import uuid7

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.client.overhttp.calls import Calls

_AT_ONCE: Final = 16


class _Request(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The body of ``POST /execute``."""

    agent_id: str
    input: Any = None
    correlation_id: str = ""
    thread_id: str = ""
    client_id: str = ""
    project_id: str = ""
    tenant: str = ""
    queue: str = ""
    priority: str = "normal"
    delay_seconds: float = 0.0
    timeout_seconds: float | None = None
    metadata: dict[str, Any] = {}
    webhook: str = ""
    push: dict[str, Any] = {}
    logger_context: dict[str, Any] = {}
    multitask: str = "enqueue"
    concurrency_key: str = ""


class _Accepted(msgspec.Struct):
    """The part of a receipt that a client reads."""

    run_id: str
    status: Status = Status.QUEUED
    message_id: str = ""


_accepted = msgspec.json.Decoder(_Accepted)


async def submit(calls: Calls, queue: str, wanted: Submission) -> Ticket:
    """Ask for a run; an id that was given by nobody else is given here, so that asking again is safe."""
    key = checked_id(wanted.idempotency_key, "idempotency_key") if wanted.idempotency_key else ""
    ours = "" if wanted.run_id or key else uuid7()
    run_id = checked_id(wanted.run_id, "run_id") if wanted.run_id else ours
    body = encode_value(_request(wanted, queue, run_id), f"input for agent {wanted.agent!r}")
    answer = await calls.call("POST", "/execute", body, key=key)
    accepted = read(calls.url, answer.body, _accepted)
    # Known before and yet fresh: our own first try is what is known, its answer was lost.
    fresh = answer.status == 202 or bool(ours)
    return Ticket(accepted.run_id, accepted.status, accepted.message_id, fresh=fresh)


async def submit_many(
    calls: Calls, queue: str, wanted: Sequence[Submission]
) -> Sequence[Ticket | HoldfastError]:
    """Ask for many, several at a time; those of one thread one after the other, for their order counts."""
    answers: dict[int, Ticket | HoldfastError] = {}
    chains = iter(_chains(wanted))
    broken: HoldfastError | None = None

    async def send() -> None:
        nonlocal broken
        for chain in chains:
            for at in chain:
                try:
                    answers[at] = broken or await submit(calls, queue, wanted[at])
                except HoldfastError as exc:
                    answers[at] = exc
                    # What fails for one will fail for all: they are not asked for one by one.
                    broken = exc if isinstance(exc, (ApiUnavailable, AccessDenied)) else broken

    async with asyncio.TaskGroup() as group:
        for _ in range(min(_AT_ONCE, len(wanted))):
            group.create_task(send())
    return [answers[at] for at in range(len(wanted))]


def _chains(wanted: Sequence[Submission]) -> Iterator[list[int]]:
    """Return what must be sent in order, by position: the runs of a thread, and every other run by itself."""
    threads: dict[str, list[int]] = {}
    for at, each in enumerate(wanted):
        threads.setdefault(f"thread {each.thread_id}" if each.thread_id else f"{at}", []).append(at)
    return iter(threads.values())


def _request(wanted: Submission, queue: str, run_id: str) -> _Request:
    return _Request(
        agent_id=wanted.agent,
        input=wanted.input,
        correlation_id=run_id,
        thread_id=wanted.thread_id,
        client_id=wanted.client_id,
        project_id=wanted.project_id,
        tenant=wanted.tenant,
        queue=queue,
        priority=wanted.priority.value,
        delay_seconds=wanted.delay_seconds,
        timeout_seconds=wanted.timeout_seconds,
        metadata=wanted.metadata,
        webhook=wanted.webhook,
        push=wanted.push,
        logger_context=wanted.logger_context,
        multitask=wanted.multitask.value,
        concurrency_key=wanted.concurrency_key,
    )
