"""The api as a process of its own: its command, its keys, and how it leaves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.cli.in_process import run_command
from tests.support.processes import forked
from tests.support.waiting import PATIENCE_SECONDS, until

APP = """
from holdfast import App
app = App("tests")

@app.agent
async def echo(value):
    return value
"""


@pytest.fixture
def place(tmp_path: Path, redis_url: str, redis, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("REDIS_URL", redis_url)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agents.py").write_text(APP)
    return tmp_path


@contextmanager
def process(*arguments: str, **environ: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A real api process that is ready, and its address."""
    command = [sys.executable, "-m", "holdfast", "api", "--port", "0", "--json", *arguments]
    with forked.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environ}) as child:
        assert child.stderr is not None
        try:
            said = []
            for line in child.stderr:
                said.append(line)
                if "api ready" in line:
                    break
            else:
                raise AssertionError("".join(said))
            yield child, f"http://127.0.0.1:{json.loads(said[-1])['port']}"
        finally:
            child.kill()
            child.stderr.read()


async def gone(child: subprocess.Popen[str]) -> int:
    await until(lambda: child.poll() is not None)
    return child.returncode


async def test_an_api_serves_its_app_and_leaves_with_exit_code_0(place):
    with process("--app", "agents.py:app", HOLDFAST_API_LINGER_SECONDS="0") as (child, url):
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            assert (await client.post("/execute", json={"agent_id": "echo"})).status_code == 202
            assert (await client.post("/execute", json={"agent_id": "other"})).status_code == 404
        child.terminate()
        assert await gone(child) == 0


async def test_an_api_that_has_lingered_leaves_by_itself(place):
    with process(HOLDFAST_API_LINGER_SECONDS="0.3") as (child, _):
        child.terminate()
        assert await gone(child) == 0


async def test_a_leaving_api_ends_streams_with_a_hint_and_finishes_what_is_open(place):
    with process(HOLDFAST_API_LINGER_SECONDS="600") as (child, url):
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as client:
            await client.post("/execute", json={"agent_id": "echo", "correlation_id": "a"})
            heard: list[str] = []

            async def listen() -> None:
                async with client.stream("GET", "/runs/a/events") as answer:
                    async for piece in answer.aiter_text():
                        heard.append(piece)

            stream = asyncio.create_task(listen())
            waiting = asyncio.create_task(client.get("/runs/a/result", params={"wait": 60}))
            await until(lambda: "event: submitted" in "".join(heard))
            child.terminate()
            await asyncio.wait_for(stream, 30)
            assert "".join(heard).endswith(": bye\nretry: 1000\n\n")
            assert (await waiting).status_code == 202
            # While it lingers it still answers, says that it is not ready, and keeps no connection.
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
            assert ready.headers["connection"] == "close"
            accepted = await client.post("/execute", json={"agent_id": "echo"})
            assert accepted.status_code == 202
        child.terminate()  # it would linger far longer than anything here takes
        assert await gone(child) == 0


async def test_a_request_that_is_being_sent_may_finish(place):
    with process(HOLDFAST_API_LINGER_SECONDS="0") as (child, url):
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = b'{"agent_id": "echo"}'
        head = f"POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body[:5])
        await writer.drain()
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            await client.get("/healthz")  # the first request has been met by now
        child.terminate()
        assert child.stderr is not None
        await asyncio.to_thread(next, (line for line in child.stderr if "api draining" in line))

        async def refused() -> bool:
            async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
                try:
                    await client.get("/healthz")
                except httpx.ConnectError:
                    return True
            return False

        # One that came just before the door was closed is let in by the kernel, and by nobody else.
        await until(refused, tolerate=(httpx.RemoteProtocolError, httpx.ReadError))
        writer.write(body[5:])
        answer = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
        assert answer.startswith(b"HTTP/1.1 202"), answer
        writer.close()
        assert await gone(child) == 0


async def test_a_second_signal_leaves_at_once(place):
    with process(HOLDFAST_API_LINGER_SECONDS="0", HOLDFAST_API_DRAIN_SECONDS="600") as (child, url):
        port = int(url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        await writer.drain()
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            await client.get("/healthz")
        child.terminate()
        assert child.stderr is not None
        await asyncio.to_thread(next, (line for line in child.stderr if "api draining" in line))
        assert child.poll() is None
        child.send_signal(signal.SIGTERM)
        assert await gone(child) == 0
        writer.close()


async def test_what_takes_too_long_is_left_behind(place):
    with process(HOLDFAST_API_LINGER_SECONDS="0", HOLDFAST_API_DRAIN_SECONDS="1") as (child, url):
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"POST /execute HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        await writer.drain()
        child.terminate()
        assert await gone(child) == 0
        writer.close()


@pytest.mark.parametrize("arguments", [("--host", "0.0.0.0"), ("--host", "::")])
def test_an_exposed_api_without_keys_does_not_start(place, capsys, arguments):
    assert run_command("api", "--port", "0", *arguments) == 1
    said = capsys.readouterr().err
    assert "has no api.keys" in said
    assert "holdfast api new-key" in said


def test_a_port_that_is_taken_is_named(place, capsys):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert run_command("api", "--port", str(taken.getsockname()[1])) == 1
    assert "api.port (HOLDFAST_API_PORT)" in capsys.readouterr().err


def test_a_bad_port_is_a_usage_error(place, capsys):
    assert run_command("api", "--port", "70000") == 2
    assert run_command("api", "--port", "x") == 2
    capsys.readouterr()


async def test_a_key_is_made_shown_once_and_works(place, capsys):
    assert run_command("api", "new-key", "ci", "--tenant", "acme", "--roles", "read", "--json") == 0
    made = json.loads(capsys.readouterr().out)
    assert made["key"] not in made["line"]
    assert made["line"].startswith("ci:acme:read:")
    (place / "holdfast.yaml").write_text(f"api:\n  keys:\n    - {made['line']}\n")
    with process("--host", "0.0.0.0") as (_, url):
        async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
            assert (await client.get("/runs")).status_code == 401
            headers = {"Authorization": f"Bearer {made['key']}"}
            assert (await client.get("/runs", headers=headers)).status_code == 200
            assert (await client.get("/members", headers=headers)).status_code == 403


def test_a_new_key_is_told_with_its_line(place, capsys):
    assert run_command("api", "new-key", "ci") == 0
    said = capsys.readouterr().out
    assert "hf_" in said
    assert "- ci:*:read+submit:" in said
    assert run_command("api", "new-key", "c i") == 2
    assert run_command("api", "new-key", "ci", "--roles", "root") == 2
    assert run_command("api", "new-key") == 2
    capsys.readouterr()
