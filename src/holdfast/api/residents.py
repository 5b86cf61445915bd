"""``/residents``: long-lived agents on hosts; start, read, move and stop them, and send messages."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response

from holdfast.api.access import access
from holdfast.api.execute import KEY_HEADER, checked_key
from holdfast.api.openapi import answers, takes
from holdfast.api.paths import VerbRoute
from holdfast.api.replies import body, read, reply
from holdfast.api.residentshapes import (
    MessageRequest,
    MessageView,
    MoveRequest,
    ResidentList,
    ResidentRequest,
    ResidentView,
)
from holdfast.api.roster import Roster
from holdfast.api.runs import LONGEST_WAIT_SECONDS
from holdfast.api.tracing import HEADERS as TRACE_HEADERS
from holdfast.api.tracing import origin_of
from holdfast.client.mail import letter
from holdfast.errors import NotFound
from holdfast.hosts.agent import Status
from holdfast.hosts.mailbox import mailbox_of
from holdfast.hosts.residents import missing, require_alive, require_movable, require_resident
from holdfast.operations.caller import OPERATE, READ, SUBMIT

router = APIRouter(tags=["residents"], route_class=VerbRoute)

ResidentId = Annotated[
    str,
    Path(
        description="The resident's id; a slash in it may be %2F, and must be if it ends like /messages.",
        min_length=1,
        max_length=512,
        pattern=r"^\S+$",
        examples=["clerk-1"],
    ),
]
_create = msgspec.json.Decoder(ResidentRequest)
_message = msgspec.json.Decoder(MessageRequest)
_move = msgspec.json.Decoder(MoveRequest)

_ROW: Final[dict[str, Any]] = {
    "id": "clerk-1",
    "name": "Clerk",
    "entry": "resident",
    "tenant": "acme",
    "guild_id": "",
    "status": "running",
    "host": "host-2",
    "address": "10.0.0.7:50051",
    "pid": 4711,
    "fence": 1,
    "restarts": 0,
    "error": "",
    "created_at": 1731000000.0,
    "started_at": 1731000000.04,
}
_VIEW: Final[dict[str, Any]] = {
    **_ROW,
    "needs": {"cpu": 0.5, "memory_mb": 200.0, "near": ["gpu"], "apart": [], "labels": ["clerk"]},
    "input": "good morning",
    "mailbox": {"queue": "mailbox:clerk-1", "waiting": 0, "receiving": 1, "delayed": 0, "dead": 0},
}
_STOPPED: Final[dict[str, Any]] = {**_VIEW, "status": "stopped"}
_SENT: Final = {
    "id": "clerk-1",
    "run_id": "0192f0c1-7e6a-7c3b-9d54-0a8f5e1b2c3d",
    "queue": "mailbox:clerk-1",
    "status": "queued",
}
_READS: Final = answers(errors=(401, 403, 404, 422, 503))
_CHANGES: Final = answers(errors=(401, 403, 404, 409, 413, 422, 501, 503))


@router.get(
    "/residents",
    summary="List residents, oldest first",
    responses={
        **answers(
            200,
            ResidentList,
            "A page of residents; it may be short and yet not the last.",
            {"residents": [_ROW], "cursor": ""},
        ),
        **answers(errors=(401, 403, 422, 503)),
    },
)
async def get_residents(
    request: Request,
    status: Annotated[
        Literal["", "placing", "starting", "running", "stopping", "crashed"],
        Query(description="Only residents in this status."),
    ] = "",
    host: Annotated[str, Query(description="Only residents on this host.")] = "",
    name: Annotated[
        str, Query(description="Only residents of this name, which is that of their class in the app.")
    ] = "",
    guild_id: Annotated[str, Query(description="Only residents of this guild.")] = "",
    tenant: Annotated[str, Query(description="Only residents of this tenant.")] = "",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str, Query(description="Where the last page ended.")] = "",
) -> Response:
    """List residents and their hosts."""
    wanted = {"status": status, "host": host, "name": name, "guild_id": guild_id, "tenant": tenant}
    return reply(await Roster(access(request, READ)).list(wanted, limit=limit, cursor=cursor))


@router.post(
    "/residents",
    summary="Start a resident on one of the hosts",
    status_code=201,
    responses={
        **answers(201, ResidentView, "The resident runs and can receive.", _VIEW),
        **answers(200, ResidentView, "The same resident was running already.", _VIEW),
        **_CHANGES,
    },
    openapi_extra=takes(
        ResidentRequest,
        {
            "plain": {"id": "clerk-1", "resident": "Clerk"},
            "given": {
                "id": "clerk-2",
                "resident": "Clerk",
                "input": "good morning",
                "needs": {"cpu": 0.5, "memory_mb": 200, "near": ["gpu"]},
            },
        },
    ),
)
async def start_resident(request: Request) -> Response:
    """Start a resident; the same again changes nothing, another one of its id is refused."""
    roster = Roster(access(request, OPERATE))
    placed, fresh = await roster.start(read(await request.body(), _create))
    view = await roster.view(placed)
    return reply(view, 201 if fresh else 200, {"Location": f"/residents/{quote(view.id, safe='')}"})


@router.post(
    "/residents/{resident_id:path}/messages",
    summary="Send a resident a message, and wait for its reply if wanted",
    status_code=202,
    responses={
        **answers(202, MessageView, "The message is in the mailbox: there is no reply yet.", _SENT),
        **answers(
            200,
            MessageView,
            "The resident is done with it: result is its reply.",
            {**_SENT, "status": "succeeded", "result": {"said": "good morning Ada"}},
        ),
        **answers(errors=(401, 403, 404, 409, 413, 422, 429, 503)),
    },
    openapi_extra={
        "parameters": [KEY_HEADER, *TRACE_HEADERS],
        **takes(MessageRequest, {"greeting": {"message": {"name": "Ada"}}}),
    },
)
async def send_message(
    request: Request,
    resident_id: ResidentId,
    wait: Annotated[
        float, Query(ge=0, le=LONGEST_WAIT_SECONDS, description="How many seconds to wait for the reply.")
    ] = 0,
) -> Response:
    """Put a message into a resident's mailbox; it is a run of that queue, and can be followed as one."""
    roster = Roster(access(request, SUBMIT))
    given = read(await request.body(), _message)
    key = checked_key(request.headers.get("idempotency-key", ""))
    placed = await roster.find(resident_id)
    require_resident(placed, resident_id)
    if wait:
        require_alive(placed.status, placed.error, resident_id)
    line = roster.here.system.unlisted(mailbox_of(placed.agent.agent_id))
    submission = letter(
        placed.agent,
        given.message,
        idempotency_key=key,
        timeout_seconds=given.timeout_seconds,
        metadata=given.metadata or {},
        **origin_of(request.headers),
    )
    runs = roster.here.runs
    ticket = await line.sender.submit(submission)
    sent = MessageView(resident_id, ticket.run_id, line.queue.name, ticket.status.value)
    if not wait and not ticket.status.ended:
        return reply(sent, 202)
    try:
        run = await line.queue.get(ticket.run_id)
    except NotFound:  # sent before under this key, and done so long ago that only the archive has it
        run = await runs.archived(ticket.run_id, line.queue.name)
    if wait and not run.status.ended:
        run = await runs.wait(line, run, wait, request.app.state.backend.draining)
    done = runs.result_of(run)
    sent = msgspec.structs.replace(sent, status=done.status, result=done.result, error=done.error)
    return reply(sent, 200 if run.status.ended else 202)


@router.post(
    "/residents/{resident_id:path}/move",
    summary="Move a resident to another host",
    responses={**answers(200, ResidentView, "The resident, where it is now.", _VIEW), **_CHANGES},
    openapi_extra=takes(MoveRequest, {"anywhere": {}, "there": {"host": "host-3"}}, required=False),
)
async def move_resident(request: Request, resident_id: ResidentId) -> Response:
    """Move a resident: it stops where it is, then starts there, so that there are never two."""
    roster = Roster(access(request, OPERATE))
    wanted = await body(request, _move, MoveRequest())
    if wanted.host:
        roster.here.caller.require_every_tenant()  # which hosts there are is no tenant's business
    placed = await roster.find(resident_id)
    engine = await roster.engine()
    await require_movable(engine, placed, wanted.host)
    return reply(await roster.view(await engine.move(placed.agent.agent_id, to=wanted.host)))


@router.get(
    "/residents/{resident_id:path}",
    summary="Read all details of a resident",
    responses={**answers(200, ResidentView, "The resident.", _VIEW), **_READS},
)
async def get_resident(request: Request, resident_id: ResidentId) -> Response:
    """Read a resident: where it is, what it was made with, and how full its mailbox is."""
    roster = Roster(access(request, READ))
    return reply(await roster.view(await roster.find(resident_id)))


@router.delete(
    "/residents/{resident_id:path}",
    summary="Stop a resident",
    responses={
        **answers(200, ResidentView, "The stopped resident, with the host it ran on.", _STOPPED),
        **_CHANGES,
    },
)
async def stop_resident(request: Request, resident_id: ResidentId) -> Response:
    """Stop a resident; its mailbox and state stay, for when it comes back."""
    roster = Roster(access(request, OPERATE))
    placed = await roster.find(resident_id)
    view = await roster.view(placed)
    if not await (await roster.engine()).stop(placed.agent.agent_id):
        raise missing(resident_id)
    return reply(msgspec.structs.replace(view, status=Status.STOPPED.value))
