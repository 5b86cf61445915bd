"""``/agents``: the registered agents; what was here before, residents, has moved to ``/residents``."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request, Response
from starlette.exceptions import HTTPException

from holdfast.api.access import access
from holdfast.api.openapi import answers
from holdfast.api.replies import reply
from holdfast.operations.caller import READ
from holdfast.views.agents import AgentList, AgentView

router = APIRouter(tags=["agents"])

Name = Annotated[
    str,
    Path(
        description="The agent's name.",
        min_length=1,
        max_length=200,
        pattern="^[A-Za-z0-9_][A-Za-z0-9_.:/-]*$",
        examples=["triage"],
    ),
]
_AGENT: Final[dict[str, Any]] = {
    "name": "triage",
    "description": "Sort a ticket.",
    "input_schema": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
    "result_schema": None,
    "isolation": "loop",
    "timeout_seconds": 1800.0,
    "max_attempts": None,
    "concurrency": None,
    "queues": ["agent-queue"],
    "served_by": ["worker-1"],
    "workers": 1,
}
_OF_RESIDENTS: Final = frozenset({"status", "host", "name", "guild_id", "tenant", "limit", "cursor"})
"""Parameters of the list of residents; the list of registered agents has none."""


@router.get(
    "/agents",
    summary="List the registered agents",
    responses={
        **answers(200, AgentList, "Agents, by name.", {"agents": [_AGENT], "note": ""}),
        **answers(errors=(401, 403, 503)),
    },
)
async def get_agents(request: Request) -> Response:
    """Show every agent that a live process has registered; a note says why there is none."""
    if _OF_RESIDENTS & set(request.query_params):
        raise _moved(request)
    return reply(await access(request, READ).agents.list())


@router.get(
    "/agents/{name:path}",
    summary="Read what a registered agent is and who serves it",
    responses={
        **answers(200, AgentView, "The agent.", _AGENT),
        **answers(errors=(401, 403, 404, 422, 503)),
    },
)
async def get_agent(request: Request, name: Name) -> Response:
    """Show one agent: its queues, its description, the schema of its input, and the workers that serve it."""
    return reply(await access(request, READ).agents.get(name))


@router.post("/agents", include_in_schema=False)
@router.api_route("/agents/{rest:path}", methods=["POST", "DELETE"], include_in_schema=False)
async def point_to_residents(request: Request) -> Response:
    """Name the path that residents have moved to."""
    raise _moved(request)


def _moved(request: Request) -> HTTPException:
    raw: bytes = request.scope.get("raw_path") or request.url.path.encode()
    path = raw.decode("ascii", "replace").replace("/agents", "/residents", 1)[:600]
    return HTTPException(410, f"long-lived agents are residents now: use {request.method} {path}")
