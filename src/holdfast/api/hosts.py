"""``/hosts``: the processes that hold long-lived agents."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request, Response

from holdfast.api.access import access
from holdfast.api.openapi import answers
from holdfast.api.replies import reply
from holdfast.operations.caller import READ
from holdfast.views.hosts import HostDetail, HostList

router = APIRouter(tags=["hosts"])

Name = Annotated[
    str,
    Path(
        description="The host's name.", min_length=1, max_length=200, pattern="^[!-~]+$", examples=["host-2"]
    ),
]
_HOST: Final[dict[str, Any]] = {
    "name": "host-2",
    "address": "10.0.0.7:50051",
    "state": "ready",
    "agents": 12,
    "capacity": 100,
    "density": 0.12,
    "cpu": 3.5,
    "memory_mb": 7600.0,
    "labels": ["gpu"],
    "pid": 7,
    "since": 1731000000.0,
}


@router.get(
    "/hosts",
    summary="List every live host",
    responses={
        **answers(200, HostList, "Hosts, by name.", {"hosts": [_HOST]}),
        **answers(errors=(401, 403, 503)),
    },
)
async def get_hosts(request: Request) -> Response:
    """Show the hosts whose heartbeat is in Redis; not for the key of one tenant."""
    return reply(await access(request, READ).hosts.list())


@router.get(
    "/hosts/{name:path}",
    summary="Read one host and what it holds",
    responses={
        **answers(200, HostDetail, "The host.", {**_HOST, "agent_ids": ["clerk-1"]}),
        **answers(errors=(401, 403, 404, 422, 503)),
    },
)
async def get_host(request: Request, name: Name) -> Response:
    """Show a host and the agents that run there; not for the key of one tenant."""
    return reply(await access(request, READ).hosts.get(name))
