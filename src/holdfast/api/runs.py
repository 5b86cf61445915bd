"""``/runs``: look at runs, wait for them, answer, cancel and retry them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request, Response

from holdfast.api.access import access
from holdfast.api.auth import READ, SUBMIT
from holdfast.api.listing import list_runs
from holdfast.api.openapi import answers, takes
from holdfast.api.paths import OfQueue, RunId, VerbRoute
from holdfast.api.replies import body, reply
from holdfast.api.shapes import ReasonRequest, ResumeRequest
from holdfast.events.feed import NOW
from holdfast.runs.explain import explain, explain_past, lease_age, parents_of_waiting_runs
from holdfast.runs.run import Run, Status
from holdfast.views.runs import Changed, ErrorView, Explained, ResultView, RunList, RunView

if TYPE_CHECKING:
    from holdfast.api.access import Access
    from holdfast.api.backend import Line

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
    wanted = {"status": status, "agent": agent, "thread_id": thread_id, "tenant": tenant}
    return reply(await list_runs(here, queue, wanted, limit=limit, cursor=cursor))


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
    here = access(request, READ)
    found = await here.live(run_id, queue)
    if found is None:
        return reply(result_of(here, await here.past(run_id, queue)))
    line, run = found
    if wait and not run.status.ended:
        run = await waited(here, line, run, wait)
    if run.status.ended:
        return reply(result_of(here, run))
    return reply(result_of(here, run), 202, {"Retry-After": "1"})


async def waited(here: Access, line: Line, run: Run, seconds: float) -> Run:
    """The run once it has ended, or when the time is over or this process leaves."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    leaving = asyncio.ensure_future(here.backend.draining.wait())
    try:
        while not run.status.ended and (left := deadline - loop.time()) > 0 and not leaving.done():
            news = asyncio.ensure_future(_news(line, run.id))
            await asyncio.wait((news, leaving), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
            await asyncio.gather(news, return_exceptions=True)
            found = await here.live(run.id, run.queue)
            # guard: awaited-run-archived-api
            run = found[1] if found is not None else await here.past(run.id, run.queue)
    finally:
        leaving.cancel()
    return run


async def _news(line: Line, run_id: str) -> None:
    """Wait until something happened that may be the end; one before we listen ends the following at once."""
    async with contextlib.aclosing(line.follow(run_id, NOW)) as events:
        async for event in events:
            if event.final:
                return


def result_of(here: Access, run: Run) -> ResultView:
    """How a run ended, or where it is."""
    if run.status is Status.SUCCEEDED:
        return ResultView(run.id, run.status.value, result=run.result)
    if run.status is Status.INTERRUPTED:
        return ResultView(run.id, run.status.value, interrupt=run.interrupt)
    if run.status is Status.CANCELLED:
        return ResultView(run.id, run.status.value, error=ErrorView("Cancelled", run.cancel))
    if not run.status.ended:
        return ResultView(run.id, run.status.value)
    return ResultView(run.id, run.status.value, error=here.error(run.error) or ErrorView(run.status.value))


@router.get(
    "/runs/{run_id:path}/explain",
    summary="Say why a run is where it is",
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
    here = access(request, READ)
    found = await here.live(run_id, queue)
    if found is None:
        run = await here.past(run_id, queue)
        return reply(Explained(run.id, run.status.value, explain_past(run)))
    line, run = found
    gate, depth = await line.queue.gate(), await line.queue.depth()
    members = await here.backend.members.all(here.backend.redis)
    parents = await parents_of_waiting_runs(run, line.queue, depth)
    lease = await lease_age(run, line.queue, here.backend.settings.lease.ttl_seconds)
    because = explain(run, gate, depth, members, parents=parents, lease=lease)
    return reply(Explained(run.id, run.status.value, because))


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
    line, run = await here.changing(run_id, queue, "resume")
    await line.queue.resume_run(run.id, given.value)
    return reply(Changed(run.id, Status.QUEUED.value), 202)


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
    line, run = await here.changing(run_id, queue, "cancel")
    word = await line.queue.cancel(run.id, given.reason or f"cancelled by {here.caller.name or 'request'}")
    return reply(Changed(run.id, word), 202)


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
    here = access(request, SUBMIT)
    line, run = await here.changing(run_id, queue, "retry")
    await line.queue.replay(run.id)
    return reply(Changed(run.id, Status.QUEUED.value), 202)


def last_routes() -> APIRouter:
    """The route of one run, whose id may hold slashes: it must come after all that have more to say."""
    last = APIRouter(tags=["runs"])
    last.get(
        "/runs/{run_id:path}",
        summary="Read everything that is known of a run",
        responses={
            **answers(200, RunView, "The run, live or archived.", _RUN),
            **answers(errors=(401, 403, 404, 422, 503)),
        },
    )(get_run)
    return last


async def get_run(request: Request, run_id: RunId, queue: OfQueue = "") -> Response:
    """Read a run with its input, result and error."""
    return reply(await access(request, READ).view(run_id, queue))
