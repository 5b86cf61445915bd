"""``POST /execute``: submit a run, or answer one that waits. The hot path of the API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from fastapi import APIRouter, Request, Response

from holdfast.api.access import access
from holdfast.api.openapi import answers, takes
from holdfast.api.replies import read, reply
from holdfast.api.shapes import ExecuteRequest
from holdfast.api.tracing import HEADERS as TRACE_HEADERS
from holdfast.api.tracing import origin_of
from holdfast.errors import Conflict, InputError
from holdfast.operations.caller import SUBMIT
from holdfast.runs.run import Multitask, Priority, Submission
from holdfast.views.runs import Accepted

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from holdfast.api.tracing import Origin
    from holdfast.operations import Operations

router = APIRouter(tags=["execute"])

_request = msgspec.json.Decoder(ExecuteRequest)
_PRIORITIES: Final = {each.value: each for each in Priority}
_MULTITASKS: Final = {each.value: each for each in Multitask}
_LONGEST_KEY: Final = 128

_EXAMPLE: Final = {
    "status": "queued",
    "run_id": "0192f0c1-7e6a-7c3b-9d54-0a8f5e1b2c3d",
    "correlation_id": "0192f0c1-7e6a-7c3b-9d54-0a8f5e1b2c3d",
    "message_id": "1731000000000-0",
    "thread_id": "conversation-7",
}
KEY_HEADER: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same key again is the same run, for a day.",
    "schema": {"type": "string", "minLength": 1, "maxLength": _LONGEST_KEY, "pattern": "^[!-~]+$"},
}


@router.post(
    "/execute",
    summary="Submit a run, or answer one that waits for input",
    status_code=202,
    responses={
        **answers(202, Accepted, "The run is queued.", _EXAMPLE),
        **answers(200, Accepted, "The run was there already: same key or correlation id.", _EXAMPLE),
        **answers(errors=(401, 403, 404, 409, 413, 422, 429, 503)),
    },
    openapi_extra={
        "parameters": [KEY_HEADER, *TRACE_HEADERS],
        **takes(
            ExecuteRequest,
            {
                "start": {"agent_id": "triage", "input": {"ticket": 7}, "thread_id": "conversation-7"},
                "later": {"agent_id": "report", "delay_seconds": 3600, "priority": "low"},
                "answer": {
                    "agent_id": "triage",
                    "action": "RESUME",
                    "correlation_id": "0192f0c1-7e6a-7c3b-9d54-0a8f5e1b2c3d",
                    "input": {"approved": True},
                },
            },
        ),
    },
)
async def execute(request: Request) -> Response:
    """Queue a run and return at once; events and result are read by its id."""
    here = access(request, SUBMIT)
    wanted = read(await request.body(), _request)
    if wanted.action == "RESUME":
        return await _resume(here, wanted)
    submission = submission_of(
        here, wanted, request.headers.get("idempotency-key", ""), origin_of(request.headers)
    )
    accepted, fresh = await here.runs.submit(wanted.queue, submission)
    return reply(accepted, 202 if fresh else 200)


async def express(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer the same as a plain ASGI application: a framework's routing would double the cost."""
    response = await execute(Request(scope, receive))
    await response(scope, receive, send)


def submission_of(here: Operations, wanted: ExecuteRequest, key: str, origin: Origin) -> Submission:
    """Return what a caller asks for, or raise why it can't be asked for."""
    if here.system.app is not None:
        here.system.app.get(wanted.agent_id)
    tenant = here.caller.tenant_for(wanted.tenant or "")
    checked_key(key)
    client, project = wanted.client_id or "", wanted.project_id or ""
    if "\n" in client or "\n" in project:  # a pattern's $ lets a last newline pass; these become headers
        raise InputError("client_id and project_id must be one line of printable ASCII characters")
    return Submission(
        agent=wanted.agent_id,
        input=wanted.input,
        run_id=wanted.correlation_id or "",
        thread_id=wanted.thread_id or "",
        priority=_PRIORITIES[wanted.priority],
        delay_seconds=wanted.delay_seconds or 0.0,
        timeout_seconds=wanted.timeout_seconds,
        idempotency_key=key,
        client_id=client,
        project_id=project,
        tenant=tenant,
        metadata=wanted.metadata or {},
        webhook=wanted.webhook or "",
        push=msgspec.to_builtins(wanted.push) if wanted.push else {},
        logger_context=wanted.logger_context or {},
        multitask=_MULTITASKS[wanted.multitask],
        concurrency_key=wanted.concurrency_key or "",
        **origin,
    )


def checked_key(key: str) -> str:
    """Return an Idempotency-Key that is not too long."""
    if len(key) > _LONGEST_KEY:
        raise InputError(f"Idempotency-Key may have {_LONGEST_KEY} characters, got {len(key)}")
    return key


async def _resume(here: Operations, wanted: ExecuteRequest) -> Response:
    if not wanted.correlation_id:
        raise InputError("correlation_id: RESUME needs the id of the run that waits")
    queue = wanted.queue or ""
    _, run = await here.runs.changeable(wanted.correlation_id, queue, "resume")
    if run.agent != wanted.agent_id:
        raise Conflict(f"run {run.id} is one of agent {run.agent!r}, not of {wanted.agent_id!r}")
    await here.runs.resume(run.id, wanted.input, queue=run.queue)
    return reply(Accepted("queued", run.id, run.id, "", run.thread_id), 202)
