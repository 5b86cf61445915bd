"""The command as a process of its own: workers, pipes, signals and terminals."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import redis as redis_py

from tests.support.processes import forked
from tests.support.waiting import PATIENCE_SECONDS, wait_until

APP = f"{Path(__file__).with_name('agents.py')}:app"


def test_a_run_is_followed_to_its_result(shell, worker):
    said = shell("submit", "echo", "-", "--follow", "--run-id", "a", stdin='{"n": [1, 2]}')
    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0] == "a submitted to agent-queue"
    assert [line.split()[1] for line in lines[1:5]] == ["submitted", "started", "thinking", "succeeded"]
    assert "".join("".join(lines[5:]).split()) == '{"n":[1,2]}'
    assert said.err == ""


def test_a_run_is_followed_by_a_machine(shell, worker):
    said = shell("submit", "echo", '"x"', "--follow", "--json")
    receipt, *events, run = said.lines
    assert receipt["fresh"] is True
    assert [event["type"] for event in events] == ["submitted", "started", "thinking", "succeeded"]
    assert (run["status"], run["result"]) == ("succeeded", "x")


def test_a_result_is_printed_as_its_agent_returned_it(shell, worker):
    """Fails if fields of users that look like times of ours get text beside them."""
    value = {"closed_at": 1731000000.5, "since": 1, "items": [{"at": None, "deadline": "soon"}]}
    said = shell("submit", "echo", json.dumps(value), "--follow", "--run-id", "a")
    assert json.loads("".join(said.out.splitlines()[5:])) == value
    assert shell("submit", "echo", json.dumps(value), "--follow", "--json").lines[-1]["result"] == value
    shown = shell("runs", "show", "a", "--json").json
    assert (shown["input"], shown["result"]) == (value, value)
    assert shown["submitted_at_iso"]


def test_a_run_that_fails_fails_the_command_that_follows_it(shell, worker):
    said = shell("submit", "give_up", "--follow", "--run-id", "a")
    assert said.code == 1
    assert "run a of agent 'give_up' failed after 1 attempt" in said.err
    assert "\x1b" not in said.out + said.err
    assert shell("dead", "list").out.splitlines()[1].split()[0] == "a"


def test_a_submitter_hears_that_nobody_knows_the_agent(shell, worker):
    for machine in ((), ("--json",)):
        said = shell("submit", "typo", *machine)
        assert said.code == 0
        assert "knows agent 'typo' (they know: echo, give_up, sleep)" in said.err
    assert said.json["fresh"] is True
    assert list(json.loads(said.err)) == ["note"]


def test_members_and_running_runs_are_seen_and_cancelled(shell, worker):
    shell("submit", "sleep", "--run-id", "a")
    wait_until(lambda: shell("runs", "show", "a", "--json").json["status"] == "running")
    [member] = shell("members", "--json").json["members"]
    assert (member["kind"], member["name"], member["fields"]["pid"]) == ("worker", "worker-a", worker.pid)
    assert "worker-a" in shell("members").out
    assert shell("runs", "cancel", "a").out == "a cancel requested\n"
    assert shell("runs", "events", "a", "--follow", "--json").lines[-1]["type"] == "cancelled"


def test_a_worker_is_small_and_leaves_with_exit_code_0(worker):
    loaded = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "holdfast", "worker", "--app", "nothing:app"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    ).stderr
    modules = {line.rpartition("|")[2].strip() for line in loaded.splitlines() if "|" in line}
    assert "holdfast.services.worker" in modules
    # Only tried, not loaded: structlog looks for rich.
    assert modules.isdisjoint({"typer", "click", "rich.console", "pydantic", "fastapi", "holdfast.client"})
    assert psutil.Process(worker.pid).memory_info().rss < 60 * 1024 * 1024
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_SECONDS) == 0


def test_a_worker_serves_the_queues_it_is_given(shell, place):
    command = [sys.executable, "-m", "holdfast", "worker", "--app", APP, "--queue", "one", "--queue", "two"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        ready = next(line for line in process.stderr if "worker ready" in line)
        assert '["one","two"]' in ready
        assert shell("submit", "echo", "5", "--queue", "two", "--follow").code == 0
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        assert process.wait(PATIENCE_SECONDS) == 0


def test_a_janitor_runs_until_it_is_told_to_stop(shell):
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", "janitor", "--json"], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert any("janitor ready" in line for line in process.stderr)
        [member] = wait_until(
            lambda: shell("members", "--json").json["members"]
        )  # it says so when it is ready
        assert member["kind"] == "janitor"
        process.terminate()
        process.stderr.read()
        assert process.wait(PATIENCE_SECONDS) == 0


def test_commands_find_the_embedded_server_of_the_directory(shell, valkey_server):
    environ = {"REDIS_URL": "", "HOLDFAST_EMBEDDED_DIR": str(valkey_server.directory)}
    assert shell("submit", "echo", "--run-id", "a", **environ).code == 0
    assert shell("runs", "list", **environ).out.splitlines()[1].startswith("a ")


def test_ctrl_c_is_quiet(shell, redis_url):
    shell("submit", "echo", "--run-id", "a")
    command = [sys.executable, "-m", "holdfast", "runs", "events", "a", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "submitted" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (out, err, process.returncode) == ("", "", 130)


def test_a_reader_that_goes_away_is_no_error(redis_url):
    with redis_py.Redis.from_url(redis_url) as client:
        client.hset("{agent-queue}:run:a", mapping={"status": "running"})
        for number in range(3000):
            client.xadd("{agent-queue}:run:a:events", {"type": "chunk", "data": f'"{number:>100}"'})
    for extra in ([], ["--json"], ["--follow"]):
        command = [sys.executable, "-m", "holdfast", "runs", "events", "a", *extra]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == ""
            assert process.wait(PATIENCE_SECONDS) == 1


@pytest.mark.parametrize("command", ["submit echo 1", "runs list", "config show"])
def test_an_answer_that_cannot_be_written_is_said_to_be_that(place, command):
    """Fails if it is taken for a Redis that is away: a script that believes that submits twice."""
    words = f"{shlex.quote(sys.executable)} -m holdfast {command}"
    full = subprocess.run(["sh", "-c", f"{words} >/dev/full"], stderr=subprocess.PIPE, text=True, check=False)
    assert full.returncode == 1
    assert "its answer can't be written to stdout" in full.stderr
    assert "Traceback" not in full.stderr
    assert "does not answer" not in full.stderr
    closed = subprocess.run(["sh", "-c", f"{words} >&-"], stderr=subprocess.PIPE, text=True, check=False)
    assert (closed.returncode, "Traceback" in closed.stderr) == (0, False)


def on_terminal(*arguments: str, columns: int = 100, **environ: str) -> str:
    """Run a command on a terminal of its own and return what it showed."""
    ours, theirs = pty.openpty()
    process = forked.Popen(
        [sys.executable, "-m", "holdfast", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), **environ},
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal is gone with the process
        while piece := os.read(ours, 65536):
            shown += piece
    os.close(ours)
    process.wait(PATIENCE_SECONDS)
    return shown.decode().replace("\r\n", "\n")


def test_tables_fit_the_terminal_and_keep_their_ids(shell):
    run_id = "0190f2c4-1111-7222-8333-444455556666"
    shell(
        "submit", "an-agent-with-a-name-that-is-much-too-long-for-any-table-" + "x" * 60, "--run-id", run_id
    )
    shown = on_terminal("runs", "list", NO_COLOR="1")
    assert "\x1b" not in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert run_id in shown
    assert "…" in shown


def test_colours_are_for_terminals_only(shell):
    shell("submit", "echo", "--run-id", "a")
    assert "\x1b[34mqueued" in on_terminal("runs", "list")
    assert "\x1b" not in on_terminal("runs", "list", NO_COLOR="1")
    assert "\x1b" not in shell("runs", "list").out


@pytest.mark.parametrize("command", ["worker", "scheduler", "api", "host"])
def test_a_sigterm_while_the_app_is_imported_ends_with_0(place: Path, command: str):
    (place / "slow.py").write_text(
        "import sys, time\nsys.stderr.write('importing\\n')\nsys.stderr.flush()\ntime.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", command, "--app", "slow.py:app"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=place,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "importing\n"
        process.terminate()
        assert process.stderr.read() == ""
        assert process.wait(60) == 0
