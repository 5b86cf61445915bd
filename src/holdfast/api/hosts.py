"""``/hosts``: the processes that hold long-lived agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, Path, Request, Response

from holdfast.api.access import access
from holdfast.api.openapi import answers
from holdfast.api.replies import reply
from holdfast.api.residentshapes import HostDetail, HostList, HostView
from holdfast.errors import NotFound
from holdfast.hosts.directory import KIND, hosts_among
from holdfast.operations.caller import READ

if TYPE_CHECKING:
    from holdfast.hosts.placement import Host
    from holdfast.redis.members import Member

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
    here = access(request, READ)
    here.caller.require_every_tenant()
    found = hosts_among(await here.system.members.all(here.system.redis, KIND))
    return reply(HostList([HostView(**_fields(*each)) for each in found]))


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
    here = access(request, READ)
    here.caller.require_every_tenant()
    member = await here.system.members.find(here.system.redis, KIND, name)
    found = hosts_among([member] if member else ())
    if not found:
        raise NotFound(f"there is no live host {name!r}: GET /hosts lists them")
    return reply(HostDetail(**_fields(*found[0]), agent_ids=await here.system.registry().on_host(name)))


def _fields(member: Member, host: Host) -> dict[str, Any]:
    return {
        "name": host.name,
        "address": host.address,
        "state": "draining" if host.draining else "ready",
        "agents": host.agents,
        "capacity": host.capacity,
        "density": round(host.density, 4),
        "cpu": host.cpu,
        "memory_mb": host.memory_mb,
        "labels": list(host.labels),
        "pid": int(member.fields.get("pid") or 0),
        "since": float(member.fields.get("since") or 0),
    }
