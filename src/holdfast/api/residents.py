"""``/residents``: long-lived agents on hosts; start, read, move and stop them, and send messages."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response
from starlette.exceptions import HTTPException

from holdfast.api.access import access
from holdfast.api.execute import KEY_HEADER, checked_key
from holdfast.api.openapi import answers, takes
from holdfast.api.paths import VerbRoute
from holdfast.api.replies import body, read, reply
from holdfast.api.runs import LONGEST_WAIT_SECONDS
from holdfast.api.shapes import MessageRequest, MoveRequest, ResidentRequest
from holdfast.api.tracing import HEADERS as TRACE_HEADERS
from holdfast.api.tracing import origin_of
from holdfast.operations.caller import OPERATE, READ, SUBMIT
from holdfast.operations.residents import ResidentFilter
from holdfast.packages import missing_extra
from holdfast.runs.run import Status
from holdfast.views.residents import MessageView, Needs, ResidentList, ResidentView

if TYPE_CHECKING:
    from collections.abc import Generator

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
    wanted = ResidentFilter(status=status, host=host, name=name, guild_id=guild_id, tenant=tenant)
    return reply(await access(request, READ).residents.list(wanted, limit=limit, cursor=cursor))


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
    residents = access(request, OPERATE).residents
    given = read(await request.body(), _create)
    needs = msgspec.convert(given.needs, Needs, from_attributes=True)
    with _hosts_installed():
        view, fresh = await residents.start(
            given.id, given.resident, given.input, needs=needs, tenant=given.tenant or ""
        )
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
    residents = access(request, SUBMIT).residents
    given = read(await request.body(), _message)
    sent, _ = await residents.send(
        resident_id,
        given.message,
        expects_reply=bool(wait),
        idempotency_key=checked_key(request.headers.get("idempotency-key", "")),
        timeout_seconds=given.timeout_seconds,
        metadata=given.metadata or {},
        **origin_of(request.headers),
    )
    if wait or Status(sent.status).ended:
        draining = request.app.state.backend.draining
        sent = await residents.reply(sent, wait_seconds=wait, stopping=draining)
    return reply(sent, 200 if Status(sent.status).ended else 202)


@router.post(
    "/residents/{resident_id:path}/move",
    summary="Move a resident to another host",
    responses={**answers(200, ResidentView, "The resident, where it is now.", _VIEW), **_CHANGES},
    openapi_extra=takes(MoveRequest, {"anywhere": {}, "there": {"host": "host-3"}}, required=False),
)
async def move_resident(request: Request, resident_id: ResidentId) -> Response:
    """Move a resident: it stops where it is, then starts there, so that there are never two."""
    residents = access(request, OPERATE).residents
    wanted = await body(request, _move, MoveRequest())
    with _hosts_installed():
        return reply(await residents.move(resident_id, wanted.host))


@router.get(
    "/residents/{resident_id:path}",
    summary="Read all details of a resident",
    responses={**answers(200, ResidentView, "The resident.", _VIEW), **_READS},
)
async def get_resident(request: Request, resident_id: ResidentId) -> Response:
    """Read a resident: where it is, what it was made with, and how full its mailbox is."""
    return reply(await access(request, READ).residents.get(resident_id))


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
    with _hosts_installed():
        return reply(await access(request, OPERATE).residents.stop(resident_id))


@contextlib.contextmanager
def _hosts_installed() -> Generator[None]:
    """Answer 501 where this API lacks what calls hosts."""
    try:
        yield
    except ModuleNotFoundError as exc:
        missing = missing_extra("this", exc.name or "grpc", "hosts")
        raise HTTPException(501, f"{missing} where the API runs") from exc
