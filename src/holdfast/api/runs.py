"""``/runs``: look at runs, wait for them, answer, cancel and retry them."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request, Response

from holdfast.api.access import access
from holdfast.api.openapi import answers, takes
from holdfast.api.paths import OfQueue, RunId, VerbRoute
from holdfast.api.replies import body, reply
from holdfast.api.shapes import ReasonRequest, ResumeRequest
from holdfast.operations.caller import READ, SUBMIT
from holdfast.operations.run_list import RunFilter
from holdfast.runs.run import Status
from holdfast.views.runs import Changed, Explained, ResultView, RunList, RunView

router = APIRouter(tags=["runs"], route_class=VerbRoute)

_reason = msgspec.json.Decoder(ReasonRequest)
_answer = msgspec.json.Decoder(ResumeRequest)
LONGEST_WAIT_SECONDS: Final = 60

_ROW: Final[dict[str, Any]] = {
    "id": "0192f0c1-7e6a-7c3b-9d54-0a8f5e1b2c3d",
    "queue": "agent-queue",
    "status": "succeeded",
    "agent": "triage",
    "thread_id": "conversation-7",
    "tenant": "acme",
    "attempt": 1,
    "fence": 1,
    "owner": "worker-1",
    "submitted_at": 1731000000.0,
    "started_at": 1731000000.01,
    "finished_at": 1731000002.5,
    "due_at": 0.0,
    "cancel": "",
    "parked": "",
    "parent": "",
    "error": None,
    "archived": False,
}
_RUN: Final = {
    **_ROW,
    "lane": "agent-queue",
    "entry": "1731000000000-0",
    "input": {"ticket": 7},
    "metadata": {},
    "result": {"queue": "billing"},
    "interrupt": None,
}


@router.get(
    "/runs",
    summary="List runs, newest first, the archived ones last",
    responses={
        **answers(
            200,
            RunList,
            "A page of runs; a page may be short and yet not the last.",
            {"runs": [_ROW], "cursor": ""},
        ),
        **answers(errors=(401, 403, 404, 422, 503)),
    },
)
async def get_runs(
    request: Request,
    queue: Annotated[str, Query(description="Only runs of this queue.")] = "",
    status: Annotated[Status | None, Query(description="Only runs with this status.")] = None,
    agent: Annotated[str, Query(description="Only runs of this agent.")] = "",
    thread_id: Annotated[str, Query(description="Only runs of this thread.")] = "",
    tenant: Annotated[str, Query(description="Only runs of this tenant.")] = "",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str, Query(description="Where the last page ended.")] = "",
) -> Response:
    """List live runs and archived ones as one list."""
    here = access(request, READ)
    wanted = RunFilter(queue=queue, status=status, agent=agent, thread_id=thread_id, tenant=tenant)
    return reply(await here.runs.list(wanted, limit=limit, cursor=cursor))


@router.get(
    "/runs/{run_id:path}/result",
    summary="Read how a run ended, waiting for it if wanted",
    responses={
        **answers(
            200,
            ResultView,
            "The run has ended.",
            {"run_id": "7", "status": "succeeded", "result": {"queue": "billing"}},
        ),
        **answers(
            202,
            ResultView,
            "The run has not ended: it goes on, or is interrupted and waits for an answer.",
            {"run_id": "7", "status": "running"},
        ),
        **answers(errors=(401, 403, 404, 422, 503)),
    },
)
async def get_result(
    request: Request,
    run_id: RunId,
    queue: OfQueue = "",
    wait: Annotated[
        float,
        Query(
            ge=0,
            le=LONGEST_WAIT_SECONDS,
            description="How many seconds to wait for the end; a question of the run (interrupted) is none.",
        ),
    ] = 0,
) -> Response:
    """Return the result or the error of a run that has ended, or where it is."""
    here, backend = access(request, READ), request.app.state.backend
    result = await here.runs.result(run_id, queue=queue, wait_seconds=wait, stopping=backend.draining)
    if Status(result.status).ended:
        return reply(result)
    return reply(result, 202, {"Retry-After": "1"})


@router.get(
    "/runs/{run_id:path}/explain",
    summary="Explain why a run waits, what it does or how it ended",
    responses={
        **answers(
            200,
            Explained,
            "Sentences, the most telling first.",
            {
                "run_id": "7",
                "status": "queued",
                "because": ["queue 'agent-queue' is paused: `holdfast queues resume agent-queue` opens it"],
            },
        ),
        **answers(errors=(401, 403, 404, 422, 503)),
    },
)
async def get_explanation(request: Request, run_id: RunId, queue: OfQueue = "") -> Response:
    """Explain a run's state by its record, its queue and the workers there are."""
    return reply(await access(request, READ).runs.explain(run_id, queue=queue))


@router.post(
    "/runs/{run_id:path}/resume",
    summary="Answer a run that waits for input",
    status_code=202,
    responses={
        **answers(202, Changed, "The run goes on.", {"run_id": "7", "status": "queued"}),
        **answers(errors=(401, 403, 404, 409, 413, 422, 503)),
    },
    openapi_extra=takes(ResumeRequest, {"approved": {"value": {"approved": True}}}, required=False),
)
async def resume_run(request: Request, run_id: RunId, queue: OfQueue = "") -> Response:
    """Give an interrupted run its answer."""
    here = access(request, SUBMIT)
    given = await body(request, _answer, ResumeRequest())
    return reply(await here.runs.resume(run_id, given.value, queue=queue), 202)


@router.post(
    "/runs/{run_id:path}/cancel",
    summary="Cancel a run",
    status_code=202,
    responses={
        **answers(
            202,
            Changed,
            "Cancelled if it waited; requested if its worker was asked to stop it.",
            {"run_id": "7", "status": "requested"},
        ),
        **answers(errors=(401, 403, 404, 409, 413, 422, 503)),
    },
    openapi_extra=takes(ReasonRequest, {"why": {"reason": "asked twice"}}, required=False),
)
async def cancel_run(request: Request, run_id: RunId, queue: OfQueue = "") -> Response:
    """Cancel a run that has not ended."""
    here = access(request, SUBMIT)
    given = await body(request, _reason, ReasonRequest())
    return reply(await here.runs.cancel(run_id, queue=queue, reason=given.reason), 202)


@router.post(
    "/runs/{run_id:path}/retry",
    summary="Queue a run again that failed, timed out or was cancelled",
    status_code=202,
    responses={
        **answers(
            202, Changed, "The run is queued, from its first attempt.", {"run_id": "7", "status": "queued"}
        ),
        **answers(errors=(401, 403, 404, 409, 413, 422, 503)),
    },
)
async def retry_run(request: Request, run_id: RunId, queue: OfQueue = "") -> Response:
    """Queue a run again, from its first attempt."""
    return reply(await access(request, SUBMIT).runs.retry(run_id, queue=queue), 202)


def last_routes() -> APIRouter:
    """The route of one run, whose id may hold slashes: it must come after all that have more to say."""
    last = APIRouter(tags=["runs"])
    last.get(
        "/runs/{run_id:path}",
        summary="Read all details of a run",
        responses={
            **answers(200, RunView, "The run, live or archived.", _RUN),
            **answers(errors=(401, 403, 404, 422, 503)),
        },
    )(get_run)
    return last


async def get_run(request: Request, run_id: RunId, queue: OfQueue = "") -> Response:
    """Read a run with its input, result and error."""
    return reply(await access(request, READ).runs.get(run_id, queue=queue))
