"""What tests of partitions share: threads of a certain partition, and processes that count on other numbers."""

from __future__ import annotations

import asyncio

import msgspec

from holdfast import App
from holdfast.runs.routing import partition_of
from holdfast.services.connections import Connections
from tests.support.runs.system import System


def thread_in(partition: int, count: int = 4) -> str:
    """The name of a thread whose runs go to that partition."""
    return next(name for n in range(1000) if partition_of(f"thread:{(name := f't{n}')}", count) == partition)


def resized(system: System, partitions: int) -> System:
    """The same system for processes that are configured with another number of partitions."""
    settings = system.settings
    queue = msgspec.structs.replace(settings.queue, partitions=partitions)
    other = object.__new__(System)
    other.__dict__.update(system.__dict__)
    other.settings = msgspec.structs.replace(settings, queue=queue)
    other._connections = Connections(other.settings)
    other.queue = other._connections.sender(queue)
    return other


def echo_app() -> App:
    app = App("test")

    @app.agent
    async def echo(payload=None):
        return payload

    @app.agent(max_attempts=1)
    async def fails(payload=None):
        raise ValueError("no")

    @app.agent
    async def asks(ctx, payload=None):
        return await ctx.interrupt({"sure": payload})

    @app.agent
    async def endless(ctx, payload=None):
        await ctx.emit("began", payload)
        await asyncio.Event().wait()

    return app


async def in_every_partition(system: System, agent: str) -> list[str]:
    return [await system.submit(agent, n, thread_id=thread_in(n)) for n in range(4)]
