"""``/members``: every live process."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from holdfast.api.access import access
from holdfast.api.openapi import answers
from holdfast.api.replies import reply
from holdfast.operations.caller import READ
from holdfast.views.members import MemberList

router = APIRouter(tags=["members"])

_MEMBER = {
    "kind": "worker",
    "name": "worker-1",
    "fields": {"host": "node-1", "pid": 7, "queues": "agent-queue", "load": 2, "capacity": 10},
}


@router.get(
    "/members",
    summary="List every live process",
    responses={
        **answers(200, MemberList, "Processes, by kind and name.", {"members": [_MEMBER]}),
        **answers(errors=(401, 403, 503)),
    },
)
async def get_members(request: Request) -> Response:
    """Show the workers, janitors and other processes that are alive; not for the key of one tenant."""
    return reply(await access(request, READ).members())
