"""``python -m bench.emptyhost``: what gRPC Health is measured against, a server that does nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

from grpc import aio

from holdfast.hosts.proto import agent_host_pb2 as wire
from holdfast.hosts.proto.agent_host_pb2_grpc import (
    AgentHostServiceServicer,
    add_AgentHostServiceServicer_to_server,
)


class Empty(AgentHostServiceServicer):
    """Is well."""

    async def Health(  # noqa: N802 - the proto's name
        self, request: wire.HealthRequest, context: aio.ServicerContext[Any, Any]
    ) -> wire.HealthResponse:
        del request, context
        return wire.HealthResponse(healthy=True, agent_count=1, hostname="empty", max_processes=1)


async def main() -> None:
    server = aio.server()
    add_AgentHostServiceServicer_to_server(Empty(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
