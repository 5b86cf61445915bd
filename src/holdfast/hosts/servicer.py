"""The gRPC service of a host: the five calls of ``agent_host.proto``, and the status code of each error."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import grpc

from holdfast.errors import (
    Conflict,
    HoldfastError,
    InputError,
    NotAllowed,
    NotFound,
    ProcessError,
    ProcessesFull,
    ProcessFailed,
    Refused,
)
from holdfast.hosts.agent import plain, qualified
from holdfast.hosts.host import Elsewhere
from holdfast.hosts.proto import agent_host_pb2 as wire
from holdfast.hosts.proto.agent_host_pb2_grpc import AgentHostServiceServicer
from holdfast.hosts.wire_codec import requested, spec_of
from holdfast.redis.client import TROUBLE
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from grpc import aio

    from holdfast.hosts.host import Copy, Host
    from holdfast.processes.info import AgentProcessInfo, Usage

_log = get_logger(__name__)

_CODES: tuple[tuple[type[HoldfastError], grpc.StatusCode], ...] = (
    (ProcessesFull, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (NotAllowed, grpc.StatusCode.INVALID_ARGUMENT),
    (InputError, grpc.StatusCode.INVALID_ARGUMENT),
    (Elsewhere, grpc.StatusCode.ALREADY_EXISTS),
    (Conflict, grpc.StatusCode.FAILED_PRECONDITION),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (Refused, grpc.StatusCode.UNAVAILABLE),
    (ProcessFailed, grpc.StatusCode.INTERNAL),
    (ProcessError, grpc.StatusCode.UNAVAILABLE),  # not an error of the agent: this host can't start a process
)


class AgentHostServicer(AgentHostServiceServicer):
    """Serves the calls of a host."""

    def __init__(self, host: Host, *, default_entry: str) -> None:
        self._host = host
        self._default_entry = default_entry

    async def CreateAgent(
        self, request: wire.CreateAgentRequest, context: aio.ServicerContext[Any, Any]
    ) -> wire.CreateAgentResponse:
        """Start an agent."""
        try:
            agent = requested(request, self._default_entry)
            seen = request.fence if request.HasField("fence") else None
            process, fence = await self._host.create(agent, seen=seen)
        except Exception as exc:
            guild = self._host.metrics.guild_label(request.guild_id)
            self._host.metrics.host_create_errors.labels(guild, _code(exc).name).inc()
            await _fail(context, exc, request_id=request.request_id)
        _log.info(
            "agent created",
            agent_id=agent.agent_id,
            guild_id=agent.guild_id,
            host=self._host.name,
            pid=process.pid,
            fence=fence,
            request_id=request.request_id,
        )
        return wire.CreateAgentResponse(
            agent_id=plain(agent.agent_id),
            pid=process.pid,
            success=True,
            fence=fence,
            address=self._host.address,
        )

    async def StopAgent(
        self, request: wire.StopAgentRequest, context: aio.ServicerContext[Any, Any]
    ) -> wire.StopAgentResponse:
        """Stop an agent."""
        timeout = float(request.timeout) if request.timeout > 0 else None
        try:
            agent_id = self._resolved_id(request)
            await self._host.stop(agent_id, timeout_seconds=timeout, moving=request.moving)
        except Exception as exc:
            await _fail(context, exc)
        _log.info("agent stopped", agent_id=agent_id, host=self._host.name, moving=request.moving)
        return wire.StopAgentResponse(success=True)

    async def GetAgentInfo(
        self, request: wire.GetAgentInfoRequest, context: aio.ServicerContext[Any, Any]
    ) -> wire.AgentInfo:
        """Describe an agent."""
        try:
            copy, process = self._host.info(self._resolved_id(request))
        except Exception as exc:
            await _fail(context, exc)
        return _described(copy, process, self._host.processes.usage())

    async def ListAgents(
        self, request: wire.ListAgentsRequest, context: aio.ServicerContext[Any, Any]
    ) -> wire.ListAgentsResponse:
        """Describe all agents, or those of a guild."""
        del context
        usage = self._host.processes.usage()
        found = [
            _described(copy, process, usage)
            for copy, process in self._host.all()
            if self._is_of(copy.agent.agent_id, request.guild_id, request.organization_id)
        ]
        return wire.ListAgentsResponse(agents=found)

    async def Health(
        self, request: wire.HealthRequest, context: aio.ServicerContext[Any, Any]
    ) -> wire.HealthResponse:
        """Return the health of the host."""
        del request, context
        return wire.HealthResponse(
            healthy=not self._host.draining,
            agent_count=len(self._host.copies),
            hostname=self._host.name,
            max_processes=self._host.settings.max_processes,
            draining=self._host.draining,
            address=self._host.address,
        )

    def _resolved_id(self, request: wire.StopAgentRequest | wire.GetAgentInfoRequest) -> str:
        """Return the id of the agent that a request names, which may have been created without its guild."""
        guild, organization = request.guild_id, request.organization_id
        exact = qualified(request.agent_id, guild, organization)
        # Without a guild only the exact id: another guild's agent of that id is another agent.
        if exact in self._host.copies or not (guild or organization):
            return exact
        alike = [agent_id for agent_id in self._host.copies if plain(agent_id) == request.agent_id]
        return next((each for each in alike if self._is_of(each, guild, organization)), exact)

    def _is_of(self, agent_id: str, guild: str, organization: str) -> bool:
        agent = self._host.copies[agent_id].agent
        return guild in {"", agent.guild_id} and organization in {"", agent.organization_id}


async def _fail(context: aio.ServicerContext[Any, Any], exc: Exception, **fields: str) -> NoReturn:
    """Abort the call with one of the codes of the proto file."""
    code = _code(exc)
    if isinstance(exc, TROUBLE):
        await context.abort(code, f"Redis does not respond to this host: {exc}")
    if not isinstance(exc, HoldfastError):
        _log.error("call failed", exc_info=exc, **fields)
    elif code is grpc.StatusCode.INTERNAL or type(exc) is ProcessError:
        _log.warning("agent start failed", error=str(exc), **fields)
    await context.abort(code, str(exc) or type(exc).__name__)


def _code(exc: Exception) -> grpc.StatusCode:
    if isinstance(exc, TROUBLE):  # guard: redis-outage-unavailable
        return grpc.StatusCode.UNAVAILABLE
    return next((code for kind, code in _CODES if isinstance(exc, kind)), grpc.StatusCode.INTERNAL)


def _described(copy: Copy, process: AgentProcessInfo, usage: Mapping[str, Usage]) -> wire.AgentInfo:
    used = usage.get(copy.agent.agent_id)
    return wire.AgentInfo(
        agent_id=plain(copy.agent.agent_id),
        guild_id=copy.agent.guild_id,
        agent_name=copy.agent.name,
        pid=process.pid,
        is_alive=process.is_alive,
        created_at=int(process.created_at),
        organization_id=copy.agent.organization_id,
        agent_spec=spec_of(copy.agent),
        status=process.status,
        fence=copy.fence,
        restarts=process.restarts,
        error=process.last_error,
        memory_bytes=used.memory_bytes if used else 0,
        cpu_seconds=used.cpu_seconds if used else 0.0,
    )
