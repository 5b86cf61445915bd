"""Connections that are slow, large or never read: they are ended, and cost the others nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import msgspec
import psutil
import pytest

from holdfast.api import connection
from tests.support.processes import forked
from tests.support.waiting import until

QUICK = 0.3
UNHURRIED = 1.5
"""Where a whole request must be in time, and what comes after it is waited for."""
PATIENT = 60.0


class Raw:
    """A plain connection to an API."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 20)).decode().split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)
        }
        body = await asyncio.wait_for(self._reader.readexactly(int(headers["content-length"])), 20)
        return int(head[0].split()[1]), headers, body

    async def ended(self) -> bytes:
        """What comes until the other side has closed."""
        return await asyncio.wait_for(self._reader.read(), 20)


@contextlib.asynccontextmanager
async def connected(running) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", running.process.port)
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()


def told(answer: tuple[int, dict[str, str], bytes], status: int, kind: str) -> str:
    """The detail of a problem, which ends its connection."""
    code, headers, body = answer
    assert (code, headers["content-type"]) == (status, "application/problem+json")
    assert headers["connection"] == "close"
    problem = json.loads(body)
    assert problem["type"] == f"urn:holdfast:problem:{kind}"
    return problem["detail"]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What is logged from here on; the collector has said before what earlier tests left to it."""
    gc.collect()
    caplog.clear()
    return caplog


# -- what arrives


@pytest.mark.parametrize("head", [b"G", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ", b"\r\n"])
async def test_a_head_that_does_not_end_is_timed_out(api, head):
    running = await api(request_seconds=QUICK)
    async with connected(running) as raw:
        await raw.send(head)
        assert "head is not whole" in told(await raw.answer(), 408, "too-slow")
        assert await raw.ended() == b""


async def test_a_head_that_trickles_is_timed_out_all_the_same(api):
    running = await api(request_seconds=QUICK)
    async with connected(running) as raw:
        await raw.send(b"GET /healthz HTTP/1.1\r\nX: ")

        async def trickle() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    await raw.send(b"x")
                    await asyncio.sleep(QUICK / 10)

        task = asyncio.create_task(trickle())
        told(await raw.answer(), 408, "too-slow")
        task.cancel()


async def test_a_connection_without_a_word_is_closed(api):
    running = await api(request_seconds=QUICK)
    async with connected(running) as raw:
        assert await raw.ended() == b""


@pytest.mark.parametrize(
    "length", [b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n5\r\n{"]
)
async def test_a_body_that_does_not_end_is_timed_out(api, system, length):
    running = await api(request_seconds=QUICK)
    async with connected(running) as raw:
        await raw.send(b"POST /execute HTTP/1.1\r\nHost: localhost\r\n" + length)
        assert "body is not whole" in told(await raw.answer(), 408, "too-slow")
        assert await raw.ended() == b""
    assert (await system.queue.depth()).depth == 0
    assert (await running.client().get("/healthz")).status_code == 200


async def test_a_request_in_pieces_and_the_next_one_have_their_own_time(api):
    patient, hasty = await api(request_seconds=PATIENT), await api(request_seconds=UNHURRIED)
    body = b'{"agent_id": "echo"}'
    whole = b"POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    async with connected(patient) as raw:
        for _ in range(2):
            for start in range(0, len(whole), 40):
                await raw.send(whole[start : start + 40])
                await asyncio.sleep(0)
            assert (await raw.answer())[0] == 202
    async with connected(hasty) as raw:
        # Two at once, the second of which never ends.
        await raw.send(whole + whole[:30])
        assert (await raw.answer())[0] == 202
        told(await raw.answer(), 408, "too-slow")


async def test_a_long_wait_for_a_result_is_no_slow_request(api, system):
    running = await api(request_seconds=UNHURRIED)
    await system.submit("echo", run_id="a")
    longer = UNHURRIED + 0.3
    async with connected(running) as raw:
        await raw.send(b"GET /runs/a/result?wait=%.1f HTTP/1.1\r\nHost: localhost\r\n\r\n" % longer)
        assert (await raw.answer())[0] == 202
    async with connected(running) as raw:
        await raw.send(b"GET /runs/a/result?wait=%.1f HTTP/1.1\r\nHost: localhost\r\n\r\n" % longer)
        await raw.send(b"GET")  # the next one begins early, and has to wait for its turn
        assert (await raw.answer())[0] == 202
        told(await raw.answer(), 408, "too-slow")


async def test_a_large_head_is_refused_whether_it_comes_at_once_or_never_ends(api):
    running = await api(max_head_bytes=2048, request_seconds=PATIENT)
    line = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
    for sent in (
        line + b"X: " + b"x" * 3000 + b"\r\n\r\n",
        b"GET /healthz?" + b"x" * 3000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        line + b"".join(b"X-%d: x\r\n" % number for number in range(300)) + b"\r\n",
        line + b"X: " + b"x" * 3000,
        b"GET /" + b"x" * 500_000,
    ):
        async with connected(running) as raw:
            await raw.send(sent)
            assert "api.max_head_bytes" in told(await raw.answer(), 431, "head-too-large")
            assert await raw.ended() == b""
    # A large body in the same piece as a small head is none of it.
    body = json.dumps({"agent_id": "echo", "input": "x" * 3000}).encode()
    async with connected(running) as raw:
        await raw.send(
            b"POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        assert (await raw.answer())[0] == 202


async def test_what_is_no_http_is_told_as_a_problem(api):
    async with connected(await api()) as raw:
        await raw.send(b"\x16\x03\x01 hello\r\n\r\n")
        told(await raw.answer(), 400, "bad-request")


@pytest.mark.parametrize("length", [b"Content-Length: 9437184", b"Transfer-Encoding: chunked"])
async def test_a_client_that_sends_all_before_it_reads_is_told_that_it_is_too_much(api, monkeypatch, length):
    """The mistake: closing with something unread resets the line, and the client never sees its answer."""
    monkeypatch.setattr(connection, "_LINGER_SECONDS", PATIENT)
    running = await api(max_body_bytes=1 << 20)
    chunk = b"%x\r\n%b\r\n" % (1 << 20, b"x" * (1 << 20)) if b"chunked" in length else b"x" * (1 << 20)

    def talk() -> bytes:
        with socket.create_connection(("127.0.0.1", running.process.port), timeout=20) as line:
            line.sendall(b"POST /execute HTTP/1.1\r\nHost: localhost\r\n" + length + b"\r\n\r\n")
            for _ in range(9):
                line.sendall(chunk)
            answer = b""
            while piece := line.recv(65536):
                answer += piece
            return answer

    answer = await asyncio.to_thread(talk)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"api.max_body_bytes" in answer


async def test_chunks_that_are_none_are_told_and_leave_no_trace(api, logged):
    """The mistake: the application, which had the request already, answers into a line that has ended."""
    running = await api()
    async with connected(running) as line:
        head = b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        await line.send(head + b"zz\r\nno chunk\r\n")
        code, _, _ = await line.answer()
        assert code == 400
        assert await line.ended() == b""
    assert (await running.client().get("/healthz")).status_code == 200
    assert [record for record in logged.records if record.exc_info] == []


async def test_whatever_is_answered_early_is_read_by_a_client_that_sends_all_first(api, monkeypatch):
    monkeypatch.setattr(connection, "_LINGER_SECONDS", PATIENT)
    running = await api()

    def talk() -> bytes:
        with socket.create_connection(("127.0.0.1", running.process.port), timeout=20) as line:
            line.sendall(
                b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 1900000\r\n\r\n"
            )
            for _ in range(19):
                line.sendall(b"x" * 100_000)
            answer = b""
            while piece := line.recv(65536):
                answer += piece
            return answer

    assert (await asyncio.to_thread(talk)).startswith(b"HTTP/1.1 404")


async def test_a_large_piece_of_nonsense_is_refused_once(api, logged):
    running = await api()
    async with connected(running) as line:
        await line.send(b"\0" * 200_000)
        assert (await line.answer())[0] == 400
        assert await line.ended() == b""
    assert [record for record in logged.records if record.levelname in {"ERROR", "CRITICAL"}] == []


async def test_what_follows_the_last_answer_of_a_connection_is_not_begun(api, logged):
    """The mistake: a line that lingers is not closed, so the next request of it was started."""
    running = await api(max_body_bytes=1024)
    head = b"POST /execute HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    begun = b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    async with connected(running) as line:
        await line.send(head + b"800\r\n" + b"x" * 2048 + b"\r\n0\r\n\r\n" + begun)
        assert (await line.answer())[0] == 413
        assert await line.ended() == b""
    assert (await running.client().get("/healthz")).status_code == 200
    assert [record for record in logged.records if record.exc_info] == []


async def test_nonsense_behind_a_request_is_no_part_of_its_answer(api, logged):
    running = await api()
    first = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with connected(running) as line:
        await line.send(first + first + b"\0\0\0")
        with contextlib.suppress(ConnectionResetError):
            assert b"400 Bad" not in (await line.ended()).partition(b"\r\n\r\n")[2]
    assert (await running.client().get("/healthz")).status_code == 200
    assert [record for record in logged.records if record.exc_info] == []


async def test_an_upgrade_that_is_not_offered_is_served_without_it(api):
    async with connected(await api(request_seconds=UNHURRIED)) as raw:
        for _ in range(2):
            await raw.send(
                b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
            )
            assert (await raw.answer())[0] == 200


# -- what is taken

EVENTS = 300
EVENT_BYTES = 100_000
DEAF = 20


@pytest.fixture
async def long_feed(system) -> str:
    """A run with so many large events that no client could keep them."""
    queue = system.queue
    run_id = await system.submit("talks", run_id="long")
    for number in range(EVENTS):
        data = msgspec.json.encode([number, "x" * EVENT_BYTES])
        await queue.redis.xadd(queue.keys.feed(run_id), {"type": "chunk", "data": data})
    await queue.cancel(run_id, "that is enough")
    return run_id


def deaf(port: int, path: str) -> socket.socket:
    """A client that asks and never reads."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return client


@contextlib.contextmanager
def process(url: str, folder: Path, **environ: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    clean |= {"REDIS_URL": url, "HOLDFAST_API_JANITOR": "false", "HOLDFAST_API_RELAY": "false", **environ}
    command = [sys.executable, "-m", "holdfast", "api", "--port", "0", "--json"]
    with forked.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder, env=clean) as child:
        assert child.stderr is not None
        try:
            said = next(line for line in child.stderr if "api ready" in line)
            yield child, json.loads(said)["port"]
        finally:
            child.kill()
            child.stderr.read()


async def streams(client: httpx.AsyncClient) -> float:
    lines = (await client.get("/metrics")).text.splitlines()
    return float(next(line for line in lines if line.startswith("holdfast_http_streams ")).split()[1])


async def until_streams(client: httpx.AsyncClient, count: int) -> None:
    await until(lambda: streams(client), lambda found: found == count)


async def read_all(client: httpx.AsyncClient, path: str) -> list[int]:
    """The numbers of the events, as a client that reads sees them."""
    numbers: list[int] = []
    async with client.stream("GET", path, headers={"Accept": "application/x-ndjson"}) as answer:
        async for line in answer.aiter_lines():
            if line.strip() and (event := json.loads(line))["type"] == "chunk":
                numbers.append(event["data"][0])
    return numbers


async def test_clients_that_never_read_cost_little_and_hold_up_nobody(redis_url, long_feed, tmp_path):
    path = f"/runs/{long_feed}/events"
    patient = {"HOLDFAST_API_SEND_SECONDS": f"{PATIENT}", "HOLDFAST_API_DRAIN_SECONDS": f"{PATIENT}"}
    with (
        process(redis_url, tmp_path, HOLDFAST_API_LINGER_SECONDS="0", **patient) as (child, port),
        contextlib.ExitStack() as stack,
    ):
        memory = psutil.Process(child.pid)
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60
        ) as client:
            assert await read_all(client, path) == list(range(EVENTS))
            before = memory.memory_info().rss
            for _ in range(DEAF):
                stack.enter_context(deaf(port, path))
            await until_streams(client, DEAF)
            assert await read_all(client, path) == list(range(EVENTS))
            grown = memory.memory_info().rss - before
            # A page of 200 for each would be 400 MB.
            assert grown < 100 << 20
        # They don't keep the process either, though nobody is patient enough to wait for them.
        child.terminate()
        assert await asyncio.to_thread(child.wait, PATIENT / 2) == 0


async def test_a_client_that_takes_nothing_is_dropped(api, long_feed):
    running = await api(send_seconds=QUICK)
    gauge = running.process.metrics.http_streams
    with deaf(running.process.port, f"/runs/{long_feed}/events"):
        await until(lambda: gauge._value.get() == 1)
        await until(lambda: gauge._value.get() == 0)
    assert await read_all(running.client(), f"/runs/{long_feed}/events") == list(range(EVENTS))


async def test_a_client_that_reads_slowly_is_not_dropped(api, long_feed):
    # It reads far more often than that, also on a busy machine.
    seconds = 5 * QUICK
    running = await api(send_seconds=seconds)
    gauge = running.process.metrics.http_streams
    loop = asyncio.get_running_loop()
    with deaf(running.process.port, f"/runs/{long_feed}/events") as slow:
        slow.setblocking(False)
        await until(lambda: gauge._value.get() == 1)
        begun = loop.time()
        while loop.time() - begun < 2 * seconds:
            assert await asyncio.wait_for(loop.sock_recv(slow, 2000), 10)
            await asyncio.sleep(seconds / 250)
        assert gauge._value.get() == 1
