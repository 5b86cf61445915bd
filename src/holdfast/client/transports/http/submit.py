"""Submitting over HTTP: a run is accepted once, however often the same submission is sent."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from holdfast.client.transports.http.problems import error_of, not_ours, read
from holdfast.errors import (
    AccessDenied,
    ApiUnavailable,
    ConfigError,
    HoldfastError,
    InputError,
    PayloadTooLarge,
)
from holdfast.runs.message import encode_parts
from holdfast.runs.run import Status, Submission, Ticket
from holdfast.runs.submit import uuid7

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.client.transports.http.calls import Calls

_AT_ONCE: Final = 500
"""Runs of one request, if they are small; the API takes twice as many."""
_PAGE_BYTES: Final = 1 << 20
_BREAKING: Final = (ApiUnavailable, AccessDenied, ConfigError)


class _Request(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The body of ``POST /execute``; one run of ``POST /execute/batch``, which may have a key."""

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
    idempotency_key: str = ""


class _Accepted(msgspec.Struct):
    """The part of a receipt that a client reads."""

    run_id: str
    status: Status = Status.QUEUED
    message_id: str = ""


class _Item(msgspec.Struct):
    """What became of one run of a batch."""

    code: int
    run: _Accepted | None = None
    problem: msgspec.Raw = msgspec.Raw(b"{}")
    retry_after: int = 0


class _Batch(msgspec.Struct):
    """What became of each."""

    runs: list[_Item]


class _Asked(NamedTuple):
    """A run as it is asked for, and whether its id was given here."""

    body: bytes
    named_here: bool


_accepted = msgspec.json.Decoder(_Accepted)
_batch = msgspec.json.Decoder(_Batch)


async def submit(calls: Calls, queue: str, wanted: Submission) -> Ticket:
    """Submit a run; one without an id gets it here, so that submitting it again is safe."""
    asked = _asked(wanted, queue)
    answer = await calls.call("POST", "/execute", asked.body, key=wanted.idempotency_key)
    accepted = read(calls.url, answer.body, _accepted)
    return _ticket(asked, accepted, fresh=answer.status == HTTPStatus.ACCEPTED)


async def submit_many(
    calls: Calls, queue: str, wanted: Sequence[Submission]
) -> Sequence[Ticket | HoldfastError]:
    """Ask for many in as few requests as possible, one after the other, for the order of a thread counts."""
    answers: dict[int, Ticket | HoldfastError] = {}
    ready: list[tuple[int, _Asked]] = []
    for at, each in enumerate(wanted):
        try:
            ready.append((at, _asked(each, queue, each.idempotency_key)))
        except InputError as exc:
            answers[at] = exc
    broken: HoldfastError | None = None
    for page in _pages(ready):
        found = [broken] * len(page) if broken else await _sent(calls, [asked for _, asked in page])
        answers.update(zip((at for at, _ in page), found, strict=True))
        # What fails for one page will fail for all: they are not asked for one by one.
        broken = next((each for each in found if isinstance(each, _BREAKING)), None)
    return [answers[at] for at in range(len(wanted))]


async def _sent(calls: Calls, page: Sequence[_Asked]) -> Sequence[Ticket | HoldfastError]:
    """Ask for the runs of one page; the API may allow less than we think, then in two."""
    body = b'{"runs":[' + b",".join(asked.body for asked in page) + b"]}"
    try:
        answer = await calls.call("POST", "/execute/batch", body)
        items = read(calls.url, answer.body, _batch).runs
    except PayloadTooLarge as exc:
        if len(page) == 1:
            return [exc]
        half = len(page) // 2
        return [*await _sent(calls, page[:half]), *await _sent(calls, page[half:])]
    except HoldfastError as exc:
        return [exc] * len(page)
    if len(items) != len(page):
        return [not_ours(calls.url, f"it answered {len(items)} of {len(page)} runs")] * len(page)
    return [_answer(calls, asked, item) for asked, item in zip(page, items, strict=True)]


def _answer(calls: Calls, asked: _Asked, item: _Item) -> Ticket | HoldfastError:
    if item.run is not None:
        return _ticket(asked, item.run, fresh=item.code == HTTPStatus.ACCEPTED)
    headers = {"Retry-After": f"{item.retry_after}"} if item.retry_after else {}
    return error_of(calls.url, item.code, headers, bytes(item.problem))


def _pages(ready: Sequence[tuple[int, _Asked]]) -> Iterator[list[tuple[int, _Asked]]]:
    page, size = list[tuple[int, _Asked]](), 0
    for each in ready:
        length = len(each[1].body) + 1
        if page and (len(page) == _AT_ONCE or size + length > _PAGE_BYTES):
            yield page
            page, size = [], 0
        page.append(each)
        size += length
    if page:
        yield page


def _asked(wanted: Submission, queue: str, key: str = "") -> _Asked:
    """Write what is sent for a run; in a batch its key stands beside the rest."""
    ours = "" if wanted.run_id or wanted.idempotency_key else uuid7()
    body = encode_parts(_request(wanted, queue, wanted.run_id or ours, key), f"for agent {wanted.agent!r}")
    return _Asked(body, named_here=bool(ours))


def _ticket(asked: _Asked, accepted: _Accepted, *, fresh: bool) -> Ticket:
    # Known before and yet fresh: our own first try is what is known, its answer was lost.
    return Ticket(accepted.run_id, accepted.status, accepted.message_id, fresh=fresh or asked.named_here)


def _request(wanted: Submission, queue: str, run_id: str, key: str) -> _Request:
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
        idempotency_key=key,
    )
