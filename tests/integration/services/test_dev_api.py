"""The HTTP API of ``holdfast dev``: it is there by itself, knows the app, and its absence stops nothing."""

from __future__ import annotations

import collections
import contextlib
import http.client
import json
import re
import shlex
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from holdfast.config import ApiSettings
from tests.support.cli.dev_command import StartDev, gone, greeting, version
from tests.support.waiting import wait_until


def call(url: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data), timeout=20) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, json.load(exc)


class Caller(threading.Thread):
    """Makes a connection for each of its requests, one after the other, and counts the answers."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._where = (urlsplit(url).hostname, urlsplit(url).port)
        self._stopping = threading.Event()
        self.answers = collections.Counter[str]()
        self.start()

    def run(self) -> None:
        while not self._stopping.wait(0.01):
            self.answers[self._answer()] += 1

    def _answer(self) -> str:
        connection = http.client.HTTPConnection(*self._where, timeout=60)
        try:
            connection.request("GET", "/healthz")
            return str(connection.getresponse().status)
        except OSError as exc:
            return type(exc).__name__
        finally:
            connection.close()

    def stop(self) -> collections.Counter[str]:
        self._stopping.set()
        self.join()
        return self.answers


def refuses(url: str) -> bool:
    try:
        call(f"{url}/healthz")
    except (OSError, ValueError):
        return True
    return False


def test_a_run_is_asked_for_and_read_over_http(start_dev: StartDev):
    api = start_dev().ready().api
    status, accepted = call(f"{api}/execute", {"agent_id": "greet", "input": "Ada"})
    assert (status, accepted["status"]) == (202, "queued")
    status, ended = call(f"{api}/runs/{accepted['run_id']}/result?wait=20")
    assert (status, ended["result"]) == (200, "Hello Ada")


def test_the_curl_line_of_the_welcome_works_as_it_stands(start_dev: StartDev, short_dir: Path):
    typed = "\n@dataclass\nclass Order:\n    number: int\n\n@app.agent\nasync def bill(order: Order):\n    return order.number\n"
    (short_dir / "desk.py").write_text("from dataclasses import dataclass\n" + version("Hello") + typed)
    dev = start_dev().ready()
    assert re.match(r"http://127\.0\.0\.1:\d+$", dev.api)
    curl, url, option, body = shlex.split(re.search(r"http     (curl .*)", dev.text)[1])
    assert (curl, url, option) == ("curl", f"{dev.api}/execute", "-d")
    status, accepted = call(url, json.loads(body))
    assert status == 202
    assert call(f"{dev.api}/runs/{accepted['run_id']}/result?wait=20")[1]["result"] == 7


def test_with_residents_only_nothing_is_offered_that_could_be_submitted(start_dev: StartDev, short_dir: Path):
    (short_dir / "desk.py").write_text(
        "from holdfast import App\napp = App('desk')\n\n@app.resident\nclass Clerk:\n"
        "    async def receive(self, ctx, message):\n        return message\n"
    )
    dev = start_dev().ready()
    assert dev.api
    words = [line.partition("│")[2].split()[:1] for line in dev.lines[:5]]
    assert words == [["Redis"], ["resident"], ["api"], ["reload"], ["stop"]], dev.text
    assert f"resident Clerk: holdfast residents start Clerk ID (in {short_dir.resolve()}, or with" in dev.text


def test_the_api_is_janitor_and_relay_too_and_all_share_one_database(start_dev: StartDev, short_dir: Path):
    dev = start_dev().ready()
    for part in ("api", "janitor", "relay", "scheduler"):
        dev.says(f"{part} ready")
    assert {line.partition(" ")[0] for line in dev.lines} == {"dev", "worker-1", "scheduler", "api"}
    paths = {dev.child(kind).environ()["HOLDFAST_DATABASE_PATH"] for kind in ("worker", "api")}
    assert paths == {str(short_dir.resolve() / ".holdfast/holdfast.sqlite")}


async def test_without_the_extra_everything_else_goes_on_and_that_is_said_once(
    start_dev: StartDev, short_dir: Path
):
    site = short_dir / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys\nsys.modules['fastapi'] = None\n")
    dev = start_dev(PYTHONPATH=str(site)).ready()
    dev.says("janitor ready")
    dev.says("relay ready")
    dev.says("scheduler ready")
    assert await greeting(dev) == "Hello Ada"
    assert (
        dev.text.count("no api: it needs fastapi, which is not installed: pip install 'holdfast[api]'") == 1
    )
    assert "api      http" not in dev.text
    names = {line.partition(" ")[0] for line in dev.lines}
    assert names == {"dev", "worker-1", "scheduler", "janitor", "relay"}


def test_a_janitor_that_the_api_is_not_is_a_process_of_its_own(start_dev: StartDev, short_dir: Path):
    (short_dir / "holdfast.yaml").write_text("api: {janitor: false}\n")
    dev = start_dev().ready()
    dev.says("relay ready")
    dev.says("janitor ready")
    assert any(line.startswith("janitor   │") and "janitor ready" in line for line in dev.lines)
    assert any(line.startswith("api       │") and "relay ready" in line for line in dev.lines)


def test_the_default_port_moves_if_it_is_taken_and_says_where(start_dev: StartDev):
    default = ApiSettings().port
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # then somebody has it already, which is as good
            stack.enter_context(socket.create_server(("127.0.0.1", default)))
        dev = start_dev(HOLDFAST_API_PORT="").ready()
        assert not dev.api.endswith(f":{default}")
        assert f"port {default} can't be opened (Address already in use): the api is on" in dev.text
        assert call(f"{dev.api}/healthz")[0] == 200


@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_port_that_was_asked_for_and_is_taken_stops_the_start(start_dev: StartDev, by: str):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = str(other.getsockname()[1])
        dev = start_dev("--port", taken) if by == "option" else start_dev(HOLDFAST_API_PORT=taken)
        assert dev.exited() == 1
        assert f"port {taken} can't be opened (Address already in use): choose another" in dev.text


def test_an_api_that_dies_is_replaced_and_callers_are_answered_503_or_wait(start_dev: StartDev):
    dev = start_dev().ready()
    dev.says("api ready")
    api = dev.api
    dev.child("api").kill()
    dev.says("api was ended by SIGKILL; starting it again")
    caller = Caller(api)
    dev.says("api ready", 2)
    assert call(f"{api}/healthz")[0] == 200
    assert caller.stop().keys() <= {"200", "503"}


def test_the_api_learns_of_a_new_agent_and_is_left_alone_otherwise(start_dev: StartDev, short_dir: Path):
    dev = start_dev().ready()
    api, pid = dev.api, dev.child("api").pid
    (short_dir / "desk.py").write_text(version("Good morning"))
    dev.ready(2)
    assert dev.child("api").pid == pid
    assert call(f"{api}/execute", {"agent_id": "wave"})[0] == 404
    caller = Caller(api)
    wave = "\n@app.agent\nasync def wave():\n    return 'o/'\n"
    (short_dir / "desk.py").write_text(version("Good morning") + wave)
    dev.says("reloading 1 workers, the scheduler and the api")
    dev.says("api ready", 2)
    assert call(f"{api}/execute", {"agent_id": "wave"})[0] == 202
    assert "ConnectionRefusedError" not in caller.stop(), caller.answers
    assert caller.answers["200"]


def test_the_api_announces_what_an_agent_has_become(start_dev: StartDev, short_dir: Path):
    """Fails if the api is replaced only when agents come or go: it would announce the old description."""
    dev = start_dev().ready()
    dev.says("api ready")
    described = version("Hello").replace(
        "async def greet(name):", 'async def greet(name: str) -> str:\n    """Say hello."""'
    )
    (short_dir / "desk.py").write_text(described)
    dev.says("reloading 1 workers, the scheduler and the api")
    dev.says("api ready", 2)
    status, agent = call(f"{dev.api}/agents/greet")
    assert (status, agent["description"]) == (200, "Say hello.")


def test_an_api_that_strangers_could_call_stops_the_start(start_dev: StartDev):
    dev = start_dev(HOLDFAST_API_HOST="0.0.0.0")
    assert dev.exited() == 1
    assert "api.host (HOLDFAST_API_HOST) '0.0.0.0' can be reached by others" in dev.text


def test_the_api_leaves_with_dev(start_dev: StartDev):
    dev = start_dev().ready()
    api, child = dev.api, psutil.Process(dev.child("api").pid)
    dev.process.terminate()
    assert dev.exited() == 0
    wait_until(lambda: gone(child.pid), what="the end of the api")
    assert refuses(api)
