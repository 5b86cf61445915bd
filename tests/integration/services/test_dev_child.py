"""A child of ``holdfast dev`` by itself, with commands that behave badly."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import socket
import sys
from collections.abc import AsyncIterator

import psutil
import pytest

from holdfast.services.dev import child as child_module
from holdfast.services.dev.child import Child, Recipe, pause_seconds
from holdfast.services.dev.console import Console
from tests.support.waiting import PATIENCE_SECONDS, until


@contextlib.asynccontextmanager
async def living(
    code: str, listener: socket.socket | None = None
) -> AsyncIterator[tuple[Child, io.StringIO]]:
    printed = io.StringIO()
    recipe = Recipe("c", (sys.executable, "-u", "-c", code), lambda: {"GIVEN": "yes"}, listener)
    child = Child(recipe, Console(printed))
    task = asyncio.create_task(child.run())
    try:
        yield child, printed
    finally:
        await child.stop(0.1, asyncio.Event())
        await asyncio.wait_for(task, PATIENCE_SECONDS)


async def test_lines_are_passed_on_under_the_childs_name():
    async with living("import os, signal; print('a', os.environ['GIVEN']); signal.pause()") as (_, printed):
        await until(lambda: "c   │ a yes\n" in printed.getvalue())


async def test_a_line_without_an_end_and_one_that_is_too_long_do_no_harm():
    code = "import signal; print('x' * 3_000_000); print('after'); signal.pause()"
    async with living(code) as (_, printed):
        await until(lambda: "c   │ after" in printed.getvalue())
        assert "was left out" in printed.getvalue()


async def test_a_child_that_ends_is_started_again_each_time_later(monkeypatch):
    monkeypatch.setattr(child_module, "FIRST_PAUSE_SECONDS", 0.02)
    async with living("import sys; sys.exit(3)") as (_, printed):
        await until(lambda: printed.getvalue().count("ended with exit code 3") >= 3)
    assert "again in 0.02 s" in printed.getvalue()
    assert "again in 0.04 s" in printed.getvalue()


async def http_get(address: tuple[str, int]) -> bytes:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer


async def test_requests_are_answered_503_while_a_child_that_can_t_be_started_pauses(monkeypatch):
    monkeypatch.setattr(child_module, "FIRST_PAUSE_SECONDS", 60.0)
    monkeypatch.setattr(child_module, "LONGEST_PAUSE_SECONDS", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with living("import sys; sys.exit(3)", listener):
            answer = await http_get(listener.getsockname())
    assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"\r\nRetry-After: 60\r\n" in answer
    assert b"c ended with exit code 3; starting it again in 60 s" in answer


async def test_connections_made_while_a_child_is_replaced_are_accepted_by_the_next_one():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = (
            "import os, socket, signal\n"
            f"listener = socket.socket(fileno={listener.fileno()})\n"
            "print('up')\n"
            "while True:\n"
            "    with listener.accept()[0] as caller:\n"
            "        caller.recv(100)\n"
            "        caller.sendall(str(os.getpid()).encode())\n"
        )
        async with living(code, listener) as (child, printed):
            await until(lambda: "up" in printed.getvalue())
            first = child.pid
            assert int(await http_get(listener.getsockname())) == first
            replaced = asyncio.create_task(child.replace(5.0, asyncio.Event()))
            await until(lambda: child.pid != first)
            assert int(await http_get(listener.getsockname())) != first
            await replaced


@pytest.mark.parametrize(("failures", "seconds"), [(1, 0.5), (2, 1.0), (4, 4.0), (6, 15.0), (10_000, 15.0)])
def test_the_pause_grows_up_to_a_limit(failures, seconds):
    assert pause_seconds(failures) == seconds


async def test_a_child_for_which_there_is_no_room_is_started_when_there_is(monkeypatch):
    monkeypatch.setattr(child_module, "FIRST_PAUSE_SECONDS", 0.02)
    real, refused = asyncio.create_subprocess_exec, iter([OSError(11, "Resource temporarily unavailable")])

    async def start(*arguments, **options):
        for exc in refused:
            raise exc
        return await real(*arguments, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    async with living("import signal; print('up'); signal.pause()") as (_, printed):
        await until(lambda: "c   │ up" in printed.getvalue())
        told = "c can't be started (Resource temporarily unavailable); starting it again in 0.02 s"
        assert told in printed.getvalue()


async def test_replacing_ends_the_process_and_starts_another_without_a_pause():
    async with living("import signal; print('up'); signal.pause()") as (child, printed):
        await until(lambda: child.pid and "up" in printed.getvalue())
        first = child.pid
        await child.replace(5.0, asyncio.Event())
        await until(lambda: child.pid not in {0, first})
        assert "starting it again" not in printed.getvalue()


async def test_a_child_that_ignores_its_stop_is_killed_with_all_it_started(monkeypatch):
    monkeypatch.setattr(child_module, "HURRY_SECONDS", 0.1)
    code = (
        "import signal, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "p = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']);"
        "print('grandchild', p.pid); signal.pause()"
    )
    async with living(code) as (child, printed):
        await until(lambda: "grandchild" in printed.getvalue() and printed.getvalue().endswith("\n"))
        grandchild = int(printed.getvalue().split()[-1])
    assert "did not stop in time: killed" in printed.getvalue()
    assert child.pid == 0
    await until(lambda: not _lives(grandchild))


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_a_hurry_asks_again_without_waiting_for_the_grace():
    code = (
        "import signal, sys; asked = []\n"
        "def term(*_):\n    asked.append(1)\n    len(asked) == 2 and sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, term); print('up')\nwhile True: signal.pause()"
    )
    async with living(code) as (child, printed):
        await until(lambda: "up" in printed.getvalue())
        hurry = asyncio.Event()
        ending = asyncio.create_task(child.stop(60.0, hurry))
        await asyncio.sleep(0)
        assert not ending.done()
        hurry.set()
        await asyncio.wait_for(ending, 10)
    assert child.pid == 0
    assert "killed" not in printed.getvalue()


async def test_a_leashed_command_is_not_run_for_a_parent_that_is_gone():
    from holdfast.services.dev.leash import leashed

    command = leashed([sys.executable, "-c", "print('ran')"])
    command[command.index(str(os.getpid()))] = "1"  # as if our process had ended and we were adopted
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    assert (process.returncode, printed) == (1, b"")
