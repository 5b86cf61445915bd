"""``holdfast dev`` as a person uses it: a real command, real children, files that change, signals, and kill -9."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from holdfast.client import Client
from holdfast.config import Settings
from holdfast.redis.client import connect
from tests.support.cli.dev_command import APP, Command, Dev, StartDev, gone, greeting, version
from tests.support.waiting import PATIENCE_SECONDS, until, wait_until


async def test_with_json_every_line_is_an_object_that_says_whose_it_is(start_dev: StartDev):
    dev = start_dev("--json", workers=("--workers", "2"))
    dev.says('"event":"worker ready"', times=2)
    dev.says('"event":"api ready"')
    dev.says("holdfast submit greet")
    dev.process.send_signal(signal.SIGTERM)
    assert dev.exited() == 0
    lines = [json.loads(line) for line in dev.lines]
    assert all({"time", "level", "event"} <= line.keys() for line in lines)
    assert {"dev", "worker-1", "worker-2", "api"} <= {line.get("service") for line in lines}


async def test_one_command_runs_agents_and_says_where_redis_is(start_dev: StartDev):
    dev = start_dev().ready()
    assert await greeting(dev) == "Hello Ada"
    dev.says("janitor ready")
    assert f"Redis    {dev.url}" in dev.text
    assert "agents   greet, slow" in dev.text
    assert "holdfast submit greet" in dev.text
    dev.says("run settled")
    assert any(line.startswith("worker-1  │ ") and "run settled" in line for line in dev.lines)


def test_a_deleted_database_is_registered_anew_while_nothing_runs(start_dev: StartDev, short_dir: Path):
    def call(*words: str) -> str:
        command = Command(short_dir, *words)
        try:
            command.exited()
            return command.text
        finally:
            command.close()

    dev = start_dev().ready()
    os.kill(dev.process.pid, signal.SIGTERM)
    assert dev.exited() == 0
    for file in (short_dir / ".holdfast").glob("holdfast.sqlite*"):
        file.unlink()
    refused = start_dev()
    assert refused.exited() == 1
    assert "`holdfast store register`" in refused.text
    assert ", by dev " in call("store", "show")
    assert "registered" in call("store", "register")
    assert "(the same)" in call("store", "show")
    start_dev().ready()


def test_a_store_can_t_be_registered_where_no_system_was(short_dir: Path):
    command = Command(short_dir, "store", "register")
    try:
        assert command.exited() != 0
        assert "no embedded server runs" in command.text
        assert not (short_dir / ".holdfast").exists()
    finally:
        command.close()


async def test_a_changed_file_is_picked_up_if_the_app_imports_it(start_dev: StartDev, short_dir: Path):
    (short_dir / "desk.py").write_text(
        APP + "\ntry:\n    from words import GREETING\nexcept ImportError: ...\n"
    )
    (short_dir / "script.py").write_text("")
    dev = start_dev().ready()
    (short_dir / "words.py").write_text("GREETING = 'Hello'\n")  # missing until now
    dev.ready(2)
    assert await greeting(dev) == "Hello Ada"
    (short_dir / "script.py").write_text("print(1)")
    (short_dir / "test_desk.py").write_text("print(1)")
    (short_dir / "words.py").write_text("GREETING = 'Good morning'\n")
    dev.says("words.py changed", 2)
    dev.ready(3)
    assert await greeting(dev) == "Good morning Ada"
    assert "script.py" not in dev.text
    assert "test_desk.py" not in dev.text


async def test_schedules_run_and_those_of_a_change_do_too(start_dev: StartDev, short_dir: Path):
    dev = start_dev().ready()
    dev.says("scheduler ready")
    turn = "\n@app.schedule(every='100ms')\nasync def tick(ctx: Context):\n    ctx.log.warning('tick ' + GREETING)\n"
    (short_dir / "desk.py").write_text(version("Hello") + turn)
    dev.says("scheduler ready", 2)
    dev.says("tick Hello", 2)


async def test_residents_have_a_host_from_the_change_that_brings_them(start_dev: StartDev, short_dir: Path):
    dev = start_dev().ready()
    assert "host" not in {line.split("│")[0].strip() for line in dev.lines}
    clerk = "\n@app.resident\nclass Clerk:\n    async def receive(self, ctx: Context, name):\n        return GREETING + name\n"
    (short_dir / "desk.py").write_text(version("Dear ") + clerk)
    dev.says("host ready")
    async with Client(settings=dev.settings()) as client:
        await client.residents.start("Clerk", "front")
        assert await client.residents.ask("front", "Ada", 60) == "Dear Ada"
        (short_dir / "desk.py").write_text(version("Good day, ") + clerk)
        dev.says("host ready", 2)
        assert await client.residents.ask("front", "Ada", 60) == "Good day, Ada"
    os.kill(dev.process.pid, signal.SIGTERM)
    assert dev.exited() == 0


async def test_a_broken_file_leaves_the_old_code_running_until_it_is_mended(
    start_dev: StartDev, short_dir: Path
):
    dev = start_dev().ready()
    (short_dir / "desk.py").write_text(version("Good morning") + "\ndef broken(:\n")
    dev.says("SyntaxError")
    dev.says("the old code keeps running")
    assert await greeting(dev) == "Hello Ada"
    (short_dir / "desk.py").write_text(version("Good evening"))
    dev.ready(2)
    assert await greeting(dev) == "Good evening Ada"


async def test_an_app_that_is_broken_at_first_is_waited_for(start_dev: StartDev, short_dir: Path):
    (short_dir / "desk.py").write_text("import nothing_of_that_name\n")
    dev = start_dev()
    dev.says("needs the module 'nothing_of_that_name'")
    dev.says("waiting for a change")
    (short_dir / "desk.py").write_text(version("Hello"))
    dev.ready()
    assert await greeting(dev) == "Hello Ada"


def test_without_reload_a_broken_app_ends_the_command(start_dev: StartDev, short_dir: Path):
    (short_dir / "desk.py").write_text("app = 1 / 0\n")
    dev = start_dev("--no-reload")
    assert dev.exited() == 1
    assert "ZeroDivisionError" in dev.text
    assert "Traceback" not in dev.text


@pytest.mark.parametrize(
    ("app", "told"),
    [
        ("desk.py:ap", "has no 'ap'; did you mean 'app'?"),
        ("desk.py:greet", "is a function, not an App; write desk.py:app"),
    ],
)
def test_a_wrong_name_in_a_sound_file_ends_the_command(start_dev: StartDev, app: str, told: str):
    # No change of the code was asked for: waiting for one would be waiting for ever.
    dev = start_dev(app=app)
    assert dev.exited() == 1
    assert told in dev.text
    assert "waiting for a change" not in dev.text


async def test_a_given_redis_is_used_instead_of_the_embedded_one(
    start_dev: StartDev, redis, redis_url: str, short_dir: Path
):
    dev = start_dev(REDIS_URL=redis_url).ready()
    async with Client(redis_url, settings=Settings()) as client:
        assert await (await client.submit("greet", "Ada")).result(timeout=PATIENCE_SECONDS) == "Hello Ada"
    assert not (short_dir / ".holdfast/redis").exists()
    dev.process.send_signal(signal.SIGTERM)
    assert dev.exited() == 0


def test_a_worker_that_dies_is_started_again_and_that_is_said(start_dev: StartDev):
    dev = start_dev().ready()
    dev.worker().kill()
    dev.says("worker-1 was ended by SIGKILL; starting it again in 0.5 s")
    dev.ready(2)


async def test_a_server_that_dies_is_started_again_with_its_data(start_dev: StartDev):
    dev = start_dev().ready()
    async with Client(settings=dev.settings()) as client:
        run = await client.submit("greet", "Ada")
        assert await run.result(timeout=PATIENCE_SECONDS) == "Hello Ada"
    redis = connect(dev.settings().redis)
    server = psutil.Process((await redis.info("server"))["process_id"])
    # The kernel has what was written, and a kill loses none of it. But while a slow disk syncs, writing waits.
    await until(lambda: redis.info("persistence"), lambda info: info["aof_buffer_length"] == 0)
    await redis.aclose()
    server.kill()
    dev.says("the embedded server died; starting it again")
    dev.says("the embedded server is back")
    async with Client(settings=dev.settings()) as client:
        assert await client.handle(run.run_id).result(timeout=PATIENCE_SECONDS) == "Hello Ada"
    assert await greeting(dev) == "Hello Ada"


def test_sigterm_ends_everything_in_order(start_dev: StartDev):
    dev = start_dev().ready()
    dev.says("janitor ready")
    family, children = dev.family(), psutil.Process(dev.process.pid).children()
    assert len(family) >= 4  # worker, api, server and the server's guard
    assert len(children) >= 2
    dev.process.send_signal(signal.SIGTERM)
    assert dev.exited() == 0
    assert all(gone(child.pid) for child in children)
    # The server has let go of its lock, which is a moment before a process is gone.
    wait_until(lambda: all(map(gone, family)), what=f"the end of {family}")
    assert dev.lines[-1].endswith("stopped")
    assert "shutdown phase 3 complete" in dev.text


def test_ctrl_c_in_a_terminal_reaches_only_dev_itself(start_dev: StartDev):
    dev = start_dev().ready()
    dev.says("api ready")
    dev.says("scheduler ready")  # one that is being started has no session of its own for a moment
    sessions = {os.getsid(pid) for pid in dev.family()}
    assert os.getsid(dev.process.pid) not in sessions


async def test_a_second_signal_hands_runs_back_at_once(start_dev: StartDev):
    dev = start_dev().ready()
    async with Client(settings=dev.settings()) as client:
        run = await client.submit("slow", 60)
        async for event in run.events():
            if event.type == "working":
                break
    asked = time.monotonic()
    dev.process.send_signal(signal.SIGTERM)
    dev.says("shutdown phase 1 complete")
    dev.process.send_signal(signal.SIGTERM)
    assert dev.exited() == 0
    assert time.monotonic() - asked < 24  # the drain takes 25 s from the first signal on
    assert "handing back unfinished runs" in dev.text


def test_kill_9_of_dev_leaves_no_orphans(start_dev: StartDev):
    dev = start_dev().ready()
    dev.says("janitor ready")
    family = dev.family()
    assert len(family) >= 4
    dev.process.kill()
    wait_until(lambda: all(map(gone, family)), what=f"the end of {family}")


def test_a_file_that_is_not_there_is_an_error_that_names_it(short_dir: Path):
    dev = Dev(short_dir)
    try:
        assert dev.exited() == 1
        assert f"there is no file {short_dir.resolve()}/desk.py" in dev.text
    finally:
        dev.close()
