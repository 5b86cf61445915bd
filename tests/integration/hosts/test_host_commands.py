"""``holdfast host`` and ``holdfast residents``, as a person would use them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from holdfast.views.residents import ResidentRow, ResidentView
from tests.support.processes import forked
from tests.support.waiting import wait_until

APP = str(Path(__file__).with_name("residents.py")) + ":app"


@pytest.fixture
def environ(redis_url: str, tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return kept | {
        "REDIS_URL": redis_url,
        "GRPC_PORT": "0",
        "HOLDFAST_DATABASE_PATH": str(tmp_path / "state.sqlite"),
        "HOLDFAST_HOSTS_NAME": "here",
        "HOLDFAST_HOSTS_MAX_RESTARTS": "0",
    }


def holdfast(environ, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", *arguments]
    return forked.run(command, env=environ, capture_output=True, text=True, check=False, timeout=90)


@pytest.fixture
def host(redis, environ, tmp_path):
    log = tmp_path / "host.log"
    with log.open("w") as out:
        command = [sys.executable, "-m", "holdfast", "host", "--app", APP, "--json"]
        with forked.Popen(command, env=environ, stderr=out, cwd=tmp_path) as child:
            wait_until(lambda: child.poll() is not None or "host ready" in log.read_text(), seconds=60)
            assert child.poll() is None, log.read_text()
            yield child
            child.terminate()
            assert child.wait(60) == 0, log.read_text()


def test_a_host_that_can_start_no_agent_is_never_ready(redis, environ):
    ended = holdfast(environ | {"HOLDFAST_HOSTS_PRELOAD": "no_such_module"}, "host", "--app", APP, "--json")
    assert ended.returncode == 1
    assert "host ready" not in ended.stderr
    *_, last = ended.stderr.splitlines()
    assert json.loads(last)["error"] == (
        "this host can't import the modules of its agents (hosts.preload, or the app): "
        "ModuleNotFoundError: No module named 'no_such_module'"
    )


def test_a_resident_from_its_start_to_its_end(host, environ):
    assert holdfast(environ, "residents", "list").stdout == "no residents\n"
    started = holdfast(environ, "residents", "start", "Clerk", "clerk-1", '"good day"')
    assert started.stdout.startswith("clerk-1 runs on host here (process "), started.stderr
    answered = holdfast(environ, "residents", "send", "clerk-1", '{"name": "Ada"}', "--wait", "60")
    assert json.loads(answered.stdout)["said"] == "good day Ada", answered.stderr
    sent = holdfast(environ, "residents", "send", "clerk-1", '{"name": "Bob"}', "--json")
    assert json.loads(sent.stdout).keys() == {"id", "run_id", "queue", "status"}
    assert json.loads(sent.stdout)["queue"] == "mailbox:clerk-1"
    listed = json.loads(holdfast(environ, "residents", "list", "--name", "Clerk", "--json").stdout)
    assert (listed.keys(), listed["cursor"]) == ({"residents", "cursor"}, "")
    (row,) = listed["residents"]
    assert row.keys() == set(ResidentRow.__struct_fields__)
    assert holdfast(environ, "residents", "list", "--status", "crashed").stdout == "no resident is crashed\n"
    asked = holdfast(environ, "residents", "ask", "clerk-1", '{"name": "Cid"}', "--wait", "60")
    assert json.loads(asked.stdout)["seen"] == 3, asked.stderr
    shown = holdfast(environ, "residents", "show", "clerk-1").stdout
    assert re.search(r"^host +here \(127.0.0.1:\d+\)$", shown, re.MULTILINE), shown
    (host,) = wait_until(  # told at once, but not before the caller is
        lambda: json.loads(holdfast(environ, "hosts", "list", "--json").stdout)["hosts"],
        lambda hosts: hosts[0]["agents"],
    )
    assert (host["name"], host["agents"], host["state"]) == ("here", 1, "ready")
    assert re.search(r"^here +ready +\d/100 ", holdfast(environ, "hosts", "list").stdout, re.MULTILINE)
    moved = holdfast(environ, "residents", "move", "clerk-1", "--to", "here")
    assert moved.stdout.startswith("clerk-1 runs on host here (process "), moved.stderr
    nowhere = holdfast(environ, "residents", "move", "clerk-1", "--to", "nowhere")
    assert (nowhere.returncode, "there is no live host 'nowhere'" in nowhere.stderr) == (1, True)
    assert (row["name"], row["status"], row["host"], row["restarts"]) == ("Clerk", "running", "here", 0)
    for verb in ("show", "move", "stop"):
        printed = json.loads(holdfast(environ, "residents", verb, "clerk-1", "--json").stdout)
        assert printed.keys() == set(ResidentView.__struct_fields__), verb
        assert printed["mailbox"]["queue"] == "mailbox:clerk-1"
        assert printed["status"] == ("stopped" if verb == "stop" else "running")
    assert holdfast(environ, "residents", "start", "Clerk", "clerk-1").returncode == 0
    assert holdfast(environ, "residents", "stop", "clerk-1").stdout == "clerk-1 has stopped\n"
    again = holdfast(environ, "residents", "stop", "clerk-1")
    assert (again.returncode, "there is no resident 'clerk-1'" in again.stderr) == (1, True)


def test_a_resident_that_crashed_is_started_as_it_was_made(host, environ):
    needs = ("--needs", '{"labels": ["clerk"]}')
    begun = json.loads(
        holdfast(environ, "residents", "start", "Clerk", "c", '"good day"', *needs, "--json").stdout
    )
    os.kill(begun["pid"], signal.SIGKILL)
    wait_until(
        lambda: holdfast(environ, "residents", "list", "--status", "crashed").stdout,
        lambda listed: "c " in listed,
        seconds=60,
    )
    shown = holdfast(environ, "residents", "show", "c").stdout
    assert re.search(r'^input +"good day"$', shown, re.MULTILINE), shown
    again = json.loads(holdfast(environ, "residents", "start", "Clerk", "c", "--json").stdout)
    assert (again["input"], again["needs"]["labels"]) == ("good day", ["clerk"])
    answered = holdfast(environ, "residents", "ask", "c", '{"name": "Ada"}', "--wait", "60")
    assert json.loads(answered.stdout)["said"] == "good day Ada", answered.stderr


def test_a_reply_is_printed_as_the_resident_gave_it(host, environ):
    """Fails if fields of users that look like times of ours get text beside them."""
    holdfast(environ, "residents", "start", "Keeper", "k", '{"name": "corner"}')
    message = {"closed_at": 1731000000.5, "since": 1}
    for words in (("ask",), ("send", "--wait", "60"), ("ask", "--json")):
        verb, *options = words
        asked = holdfast(environ, "residents", verb, "k", json.dumps(message), *options)
        assert json.loads(asked.stdout) == {"shop": "corner", "open": True, **message}, asked.stderr


def test_with_json_each_line_of_stderr_is_json(host, environ):
    holdfast(environ, "residents", "start", "Clerk", "c")
    failed = holdfast(environ, "residents", "ask", "c", '{"fails": true}', "--wait", "0.001", "--json")
    *notes, error = map(json.loads, failed.stderr.splitlines())
    assert (failed.returncode, failed.stdout) == (1, "")
    assert [list(note) for note in notes] == [["note"]]
    assert list(error) == ["error"]


def test_a_message_without_a_reply_is_shown_by_the_command_that_is_told(host, environ):
    holdfast(environ, "residents", "start", "Clerk", "c")
    sent = holdfast(environ, "residents", "send", "c", '{"name": "Ada"}').stdout
    failed = holdfast(environ, "residents", "ask", "c", '{"fails": true}', "--wait", "0.001")
    assert failed.returncode == 1
    for said in (sent, failed.stderr):
        look = re.search(r"`holdfast (runs show \S+ --queue mailbox:c)` shows it$", said, re.MULTILINE)
        assert look, said
        shown = holdfast(environ, *look[1].split())
        assert re.search(r"^queue +mailbox:c$", shown.stdout, re.MULTILINE), shown.stderr


def test_a_resident_whose_host_died_waits_for_another_and_ask_says_so(redis_url, environ, tmp_path):
    """Fails if it is shown as running, with a process that is gone, for as long as no other host comes."""
    command = [sys.executable, "-m", "holdfast", "host", "--app", APP]
    with forked.Popen(command, env=environ | {"HOLDFAST_HOSTS_TTL_SECONDS": "3"}, cwd=tmp_path) as child:
        started = holdfast(environ, "residents", "start", "Clerk", "c", "--wait", "60")
        assert started.stdout.startswith("c runs on host here "), started.stderr
        child.kill()
    wait_until(lambda: "placing" in holdfast(environ, "residents", "list").stdout, seconds=60)
    (row,) = json.loads(holdfast(environ, "residents", "list", "--status", "placing", "--json").stdout)[
        "residents"
    ]
    assert re.match(
        r"its host here has not renewed its lease, which ended \S+: it waits for a live host", row["error"]
    )
    asked = holdfast(environ, "residents", "ask", "c", '{"name": "Ada"}', "--wait", "0.1")
    assert (asked.returncode, "resident 'c' has no live host: its host here has not" in asked.stderr) == (
        1,
        True,
    )


def test_a_start_waits_for_the_first_host(redis, environ, tmp_path):
    start = [sys.executable, "-m", "holdfast", "residents", "start", "Clerk", "early", "--wait", "80"]
    with forked.Popen(start, env=environ, stdout=PIPE, stderr=PIPE, text=True) as starting:
        assert starting.stderr is not None
        assert starting.stderr.readline() == "holdfast: waiting for a host, 80 s at most\n"
        with (tmp_path / "host.log").open("w") as out:
            host = [sys.executable, "-m", "holdfast", "host", "--app", APP, "--json"]
            with forked.Popen(host, env=environ, stderr=out, cwd=tmp_path) as child:
                said, more = starting.communicate(timeout=90)
                child.terminate()
    assert (starting.returncode, more) == (0, ""), more
    assert said.startswith("early runs on host here (process ")


def test_hosts_that_refuse_are_not_waited_for(host, environ):
    needs = ("--needs", '{"near": ["gpu"]}')
    refused = holdfast(environ, "residents", "start", "Clerk", "x", *needs, "--wait", "80")
    assert (refused.returncode, "it is not labelled gpu" in refused.stderr) == (1, True), refused.stderr
    assert "waiting" not in refused.stderr


def test_the_only_host_of_an_agent_that_moves_has_it_again(host, environ):
    begun = holdfast(environ, "residents", "start", "Clerk", "clerk-1", "--json")
    moved = holdfast(environ, "residents", "move", "clerk-1", "--json")
    before, after = json.loads(begun.stdout), json.loads(moved.stdout)
    assert before["host"] == after["host"] == "here"
    assert before["pid"] != after["pid"]


def test_what_is_wrong_is_said(redis, environ):
    alone = holdfast(environ, "residents", "start", "Clerk", "x", "--wait", "0")
    assert (alone.returncode, "there is no live host" in alone.stderr) == (1, True), alone.stderr
    assert "waiting" not in alone.stderr
    patient = holdfast(environ, "residents", "start", "Clerk", "x", "--wait", "0.1")
    *_, waiting, refused = patient.stderr.splitlines()
    assert waiting == "holdfast: waiting for a host, 0.1 s at most"
    assert (patient.returncode, "there is no live host" in refused) == (1, True)
    nobody = holdfast(environ, "residents", "send", "x", "{}")
    assert "there is no resident 'x'" in nobody.stderr
    assert "is not JSON" in holdfast(environ, "residents", "start", "Clerk", "x", "{").stderr
    needs = holdfast(environ, "residents", "start", "Clerk", "x", "--needs", '{"gpu": 1}')
    assert (needs.returncode, "--needs: Object contains unknown field `gpu`" in needs.stderr) == (2, True)
    assert holdfast(environ, "hosts", "list").stdout == "no host is alive\n"
    wrong = holdfast(environ, "host", "--app", "nothing.py:app")
    assert (wrong.returncode, "nothing.py" in wrong.stderr) == (1, True)
    open_wide = holdfast(environ | {"HOLDFAST_HOSTS_LISTEN": "0.0.0.0"}, "host")
    assert "reaches beyond this machine: set hosts.tls_certificate" in open_wide.stderr
