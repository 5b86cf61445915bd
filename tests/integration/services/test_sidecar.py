"""A worker that leaves tells its sidecar, last of all; whatever that answers, the worker is gone in time with exit code 0."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.runs.run import Status
from tests.support.redis.valkey_process import free_port
from tests.support.runs.system import System, WorkerChild
from tests.support.runs.worker_processes import AGENTS, Ledger, fleet_of
from tests.support.waiting import until

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
LEFT = "shutdown phase 3 complete"
REFUSED = "sidecar quit request failed"
STILL = "sidecar response incomplete"


def agents_with_a_goodbye(file: Path, *, silent_seconds: float, most_seconds: float) -> str:
    """Write an app whose worker waits so long for a sidecar that is silent, and so long altogether; return its name."""
    file.write_text(
        "from holdfast.agents.loader import load_app\n"
        "from holdfast.services import sidecar\n"
        f"sidecar._SECONDS, sidecar._MOST_SECONDS = {silent_seconds}, {most_seconds}\n"
        f"app = load_app({AGENTS!r})\n"
    )
    return f"{file}:app"


async def nothing(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def garbage(writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x16\x03 this is no HTTP\r\n\r\n")


async def gone(writer: asyncio.StreamWriter) -> None:
    """Envoy may be gone before it has answered."""


async def byte_by_byte(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.2)


class Sidecar:
    """An HTTP server that notes what it was asked, and whether the worker had left its queue by then."""

    def __init__(self, redis, answer: Answer) -> None:
        self.asked: list[str] = []
        self.had_left: list[bool] = []
        self.url = ""
        self._redis = redis
        self._answer = answer
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._tasks.add(task)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            self.asked.append((await reader.readuntil(b"\r\n\r\n")).decode().partition("\r\n")[0])
            self.had_left.append(not await self._redis.exists("member:worker:leaver"))
            await self._answer(writer)
        writer.close()
        self._tasks.discard(task)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


@contextlib.asynccontextmanager
async def sidecar(redis, answer: Answer) -> AsyncIterator[Sidecar]:
    beside = Sidecar(redis, answer)
    async with await asyncio.start_server(beside, "127.0.0.1", 0) as server:
        beside.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/quitquitquit"
        yield beside
        beside.close()


@contextlib.asynccontextmanager
async def leaving_worker(
    redis_settings, tmp_path, url: str, agents: str = AGENTS, **environ: str
) -> AsyncIterator[WorkerChild]:
    """A worker that has been told to go."""
    async with (
        System(redis_settings) as system,
        fleet_of(
            system, Ledger(tmp_path / "ledger"), agents, HOLDFAST_ENVOY_QUIT_URL=url, **environ
        ) as fleet,
    ):
        worker = await fleet.start("leaver")
        worker.terminate()
        yield worker


async def test_the_sidecar_is_told_once_when_the_worker_has_left_its_queue(redis, redis_settings, tmp_path):
    async def well(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nOK\n")

    # A proxy for the world outside, where nobody listens.
    proxy = f"http://127.0.0.1:{free_port()}"
    async with (
        sidecar(redis, well) as beside,
        leaving_worker(redis_settings, tmp_path, beside.url, http_proxy=proxy, no_proxy="") as worker,
    ):
        assert await worker.exited() == 0
        assert (beside.asked, beside.had_left) == (["POST /quitquitquit HTTP/1.1"], [True])
        assert LEFT in worker.logged()
        assert REFUSED not in worker.logged()


@pytest.mark.parametrize(
    ("answer", "said", "silent_seconds", "most_seconds"),
    [
        (garbage, REFUSED, 60.0, 60.0),
        (gone, REFUSED, 60.0, 60.0),
        # Of the two times of a goodbye one is far off: on a busy machine the later one may come first.
        (nothing, REFUSED, 2.0, 60.0),
        (byte_by_byte, STILL, 60.0, 3.0),
    ],
)
async def test_a_worker_leaves_in_time_whatever_its_sidecar_answers(
    redis, redis_settings, tmp_path, answer, said, silent_seconds, most_seconds
):
    agents = agents_with_a_goodbye(
        tmp_path / "agents.py", silent_seconds=silent_seconds, most_seconds=most_seconds
    )
    async with (
        sidecar(redis, answer) as beside,
        leaving_worker(redis_settings, tmp_path, beside.url, agents) as worker,
    ):
        assert await worker.exited() == 0  # these sidecars would keep it for ever
        await until(lambda: beside.asked)  # what it was sent may be read after the worker is gone
        assert len(beside.asked) == 1
        assert said in worker.logged()
        (left,) = (json.loads(line) for line in worker.logged().splitlines() if LEFT in line)
        assert left["seconds"] < 10  # of its own time: about 3 s, whatever the machine does before and after


async def test_a_worker_leaves_though_there_is_no_sidecar(redis, redis_settings, tmp_path):
    url = f"http://127.0.0.1:{free_port()}/quitquitquit"
    async with leaving_worker(redis_settings, tmp_path, url) as worker:
        assert await worker.exited() == 0
        assert REFUSED in worker.logged()


async def test_a_silent_sidecar_does_not_keep_agents_that_ignore_their_stop(redis, redis_settings, tmp_path):
    """Fails if the sidecar is waited for as ever: others have the run meanwhile, and its first body goes on here."""
    ledger = Ledger(tmp_path / "ledger")
    agents = agents_with_a_goodbye(tmp_path / "agents.py", silent_seconds=120.0, most_seconds=120.0)
    async with (
        sidecar(redis, nothing) as beside,
        System(redis_settings, ttl=30.0, drain=0.1) as system,
        fleet_of(system, ledger, agents, HOLDFAST_ENVOY_QUIT_URL=beside.url) as fleet,
    ):
        worker = await fleet.start("leaver")
        run_id = await system.submit("stubborn", 120.0)
        await until(lambda: ledger.lines("begin", run_id))
        worker.terminate()
        await system.reaches(run_id, Status.QUEUED)
        assert await worker.exited() == 0  # within a quarter of the time that its sidecar would have
        assert LEFT in worker.logged()
        assert STILL in worker.logged()
        await until(lambda: beside.asked)
        assert len(beside.asked) == 1
