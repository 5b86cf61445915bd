"""``POST /execute/batch``: ask for many runs in one request; each is accepted or refused by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Meta

from holdfast.api import problems
from holdfast.api.access import access
from holdfast.api.execute import submission_of
from holdfast.api.openapi import answers, takes
from holdfast.api.replies import read, reply
from holdfast.api.shapes import BATCH_MOST, BatchItem, BatchReply, BatchRequest, BatchRun
from holdfast.api.tracing import HEADERS as TRACE_HEADERS
from holdfast.api.tracing import origin_of
from holdfast.errors import HoldfastError, InputError, RedisUnavailable
from holdfast.operations.caller import SUBMIT
from holdfast.runs.run import Submission

if TYPE_CHECKING:
    from holdfast.api.tracing import Origin
    from holdfast.operations import Operations

router = APIRouter(tags=["execute"])


class _Parts(msgspec.Struct, forbid_unknown_fields=True):
    """A batch whose runs are read one by one: what is wrong with one is no other's fault."""

    runs: Annotated[list[msgspec.Raw], Meta(min_length=1, max_length=BATCH_MOST)]  # guard: batch-max-runs


_parts = msgspec.json.Decoder(_Parts)
_run = msgspec.json.Decoder(BatchRun)

_EXAMPLE: Final[dict[str, Any]] = {
    "runs": [
        {
            "code": 202,
            "run": {
                "status": "queued",
                "run_id": "invoice-7",
                "correlation_id": "invoice-7",
                "message_id": "1731000000000-0",
                "thread_id": "",
            },
        },
        {
            "code": 429,
            "problem": {
                "type": "urn:holdfast:problem:queue-full",
                "title": "The queue is full",
                "status": 429,
                "detail": "queue 'agent-queue' holds 100000 runs, its max_depth; try again later",
            },
            "retry_after": 5,
        },
    ]
}


@router.post(
    "/execute/batch",
    summary="Ask for many runs at once",
    responses={
        **answers(200, BatchReply, "What became of each, in the same order.", _EXAMPLE),
        **answers(errors=(401, 403, 413, 422, 503)),
    },
    openapi_extra={
        "parameters": TRACE_HEADERS,
        **takes(
            BatchRequest,
            {
                "two": {
                    "runs": [
                        {"agent_id": "invoice", "correlation_id": "invoice-7", "input": {"order": 7}},
                        {"agent_id": "invoice", "idempotency_key": "order-8", "input": {"order": 8}},
                    ]
                }
            },
        ),
    },
)
async def execute_batch(request: Request) -> Response:
    """Queue many runs; sent again with the same ids or keys, they are the same runs."""
    here = access(request, SUBMIT)
    parts = read(await request.body(), _parts).runs
    origin, request_id = origin_of(request.headers), request.scope["request_id"]
    items = dict[int, BatchItem]()
    wanted = dict[str, list[tuple[int, Submission]]]()
    for at, part in enumerate(parts):
        try:
            queue, submission = _read(here, part, origin)
        except HoldfastError as exc:  # guard: batch-item-refused
            items[at] = _refused(here, exc, request_id)
        else:
            wanted.setdefault(queue, []).append((at, submission))
    for name, asked in wanted.items():
        try:
            items |= await _submit(here, name, asked, request_id)
        except RedisUnavailable as exc:
            if not any(item.run is not None for item in items.values()):  # guard: batch-accepted-kept
                raise
            # What another queue has accepted must be known: sent again without ids, it would run twice.
            items |= {at: _refused(here, exc, request_id) for at, _ in asked}
    return reply(BatchReply([items[at] for at in range(len(parts))]))


def _read(here: Operations, part: msgspec.Raw, origin: Origin) -> tuple[str, Submission]:
    """Read one run of a batch: its queue and what is submitted."""
    wanted = read(bytes(part), _run)
    if wanted.action != "START":
        raise InputError("action: a batch begins runs; POST /execute or /runs/{id}/resume answers one")
    queue = here.system.queue(wanted.queue).queue.name
    return queue, submission_of(here, wanted, wanted.idempotency_key or "", origin)


async def _submit(
    here: Operations, queue: str, asked: list[tuple[int, Submission]], request_id: str
) -> dict[int, BatchItem]:
    answers = await here.runs.submit_many(queue, [submission for _, submission in asked])
    items = dict[int, BatchItem]()
    for (at, _), answer in zip(asked, answers, strict=True):
        if isinstance(answer, HoldfastError):
            items[at] = _refused(here, answer, request_id)
        elif isinstance(answer, Exception):
            raise answer
        else:
            accepted, fresh = answer
            items[at] = BatchItem(202 if fresh else 200, accepted)
    return items


def _refused(here: Operations, exc: HoldfastError, request_id: str) -> BatchItem:
    problem = problems.problem_of(exc, request_id=request_id, candid=here.caller.operates)
    # guard: batch-retry-after
    return BatchItem(problem.status, problem=problem, retry_after=problems.retry_after(exc))
