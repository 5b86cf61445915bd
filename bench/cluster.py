"""A cluster of fresh servers for one measurement, cut so that each of them has one of the wanted slots."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import tempfile
from typing import TYPE_CHECKING

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as Unreachable

from bench import harness
from bench.harness import Server
from holdfast.config import RedisSettings
from holdfast.redis.client import connect
from holdfast.redis.embedded import find_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

_SLOTS = 16384
_LOOPBACK = "127.0.0.1"


@dataclasses.dataclass(frozen=True, slots=True)
class Cluster(Server):
    """The whole as one server; ``nodes`` are its servers one by one."""

    nodes: tuple[Server, ...] = ()

    async def cpu_seconds_each(self) -> list[float]:
        return [await node.cpu_seconds() for node in self.nodes]


@contextlib.asynccontextmanager
async def cluster(slots: Sequence[int]) -> AsyncIterator[Cluster]:
    """As many servers as slots, which know each other."""
    async with contextlib.AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(_node()) for _ in slots]
        for (first, last), (node, _) in zip(_ranges(slots), nodes, strict=True):
            await node.redis.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        for node, bus in nodes[1:]:
            port = node.url.rpartition(":")[2]
            await nodes[0][0].redis.execute_command("CLUSTER", "MEET", _LOOPBACK, port, bus)
        for node, _ in nodes:
            await harness.until(lambda node=node: _knows(node, len(nodes)))
        url = "redis+cluster://" + ",".join(node.url.removeprefix("redis://") for node, _ in nodes)
        client = connect(RedisSettings(url=url))
        stack.push_async_callback(client.aclose)
        yield Cluster(url, client, tuple(node for node, _ in nodes))


def _ranges(slots: Sequence[int]) -> list[tuple[int, int]]:
    """All slots, cut behind each of the wanted ones but the last."""
    ends = [*sorted(slots)[:-1], _SLOTS - 1]
    return list(zip([0, *(end + 1 for end in ends[:-1])], ends, strict=True))


@contextlib.asynccontextmanager
async def _node() -> AsyncIterator[tuple[Server, int]]:
    """One server that belongs to no cluster yet, and the port of its bus."""
    port, bus = _free_ports(2)
    with tempfile.TemporaryDirectory(prefix="hfbench", ignore_cleanup_errors=True) as directory:
        process = await asyncio.create_subprocess_exec(
            *(str(find_server()), "--port", str(port), "--bind", _LOOPBACK, "--dir", directory),
            *("--cluster-enabled", "yes", "--cluster-port", str(bus)),
            *("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
            stdout=asyncio.subprocess.DEVNULL,
        )
        try:
            async with Redis(host=_LOOPBACK, port=port) as redis:
                await harness.until(lambda: _answers(redis))
                yield Server(f"redis://{_LOOPBACK}:{port}", redis), bus
        finally:
            process.kill()
            await process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((_LOOPBACK, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


async def _answers(redis: Redis) -> bool:
    try:
        return bool(await redis.ping())
    except Unreachable:
        return False


async def _knows(node: Server, count: int) -> bool:
    told: bytes = await node.redis.execute_command("CLUSTER", "INFO")
    return b"cluster_state:ok" in told and b"cluster_known_nodes:%d\r" % count in told
