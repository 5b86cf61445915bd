"""A SyncClient without ``with``, as in the cells of a notebook: opened by its first call, closed by close()."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import App, HoldfastError, SyncClient
from holdfast.client.sync import LoopThread
from tests.support.waiting import PATIENCE_SECONDS, until

app = App("tests")


@app.agent
async def echo(value):
    return value


@pytest.fixture
async def worker(system):
    return await system.worker(app)


def threads() -> int:
    return sum(thread.name == "holdfast-client" for thread in threading.enumerate())


async def test_a_handle_of_one_cell_is_used_in_the_next(face, worker):
    client = SyncClient(**face.here)
    handle = await asyncio.to_thread(client.submit, "echo", 7)
    assert await asyncio.to_thread(handle.result, PATIENCE_SECONDS) == 7
    await asyncio.to_thread(client.close)
    assert threads() == 0


async def test_cells_that_run_inside_an_event_loop_share_a_client(face, worker):
    async def cells():
        client = SyncClient(**face.here)
        handle = client.submit("echo", 7)
        await asyncio.sleep(0)
        result = handle.result(timeout=PATIENCE_SECONDS)
        client.close()
        return result

    assert await asyncio.to_thread(asyncio.run, cells()) == 7


async def test_any_method_may_be_the_first_call(face, worker):
    def script():
        for first in (
            lambda client: client.submit_many([{"agent": "echo"}]),
            lambda client: client.handle("a"),
            lambda client: client.agents.list(),
            lambda client: client.schedules.list(),
            lambda client: client.residents.list(),
        ):
            client = SyncClient(**face.here)
            first(client)
            client.close()

    await asyncio.to_thread(script)


async def test_threads_that_call_first_at_once_open_the_client_once(face, monkeypatch):
    opened = []
    start = LoopThread.__init__

    def counted(self, *args):
        opened.append(self)
        start(self, *args)

    monkeypatch.setattr(LoopThread, "__init__", counted)
    client = SyncClient(**face.here)
    together = threading.Barrier(8)

    def submit():
        together.wait(30)
        return client.submit("echo").run_id

    with ThreadPoolExecutor(8) as pool:
        calls = [asyncio.wrap_future(pool.submit(submit)) for _ in range(8)]
        assert len(set(await asyncio.gather(*calls))) == 8
    await asyncio.to_thread(client.close)
    assert len(opened) == 1


async def test_a_closed_client_stays_closed(face):
    def script():
        client = SyncClient(**face.here)
        handle = client.submit("echo", delay=60)
        events = handle.events()
        next(events)
        client.close()
        client.close()
        events.close()  # raises nothing: the loop has closed them
        for call in (lambda: client.submit("echo"), handle.status, lambda: client.handle("a")):
            with pytest.raises(HoldfastError, match=r"the client is closed: make another SyncClient"):
                call()
        never_used = SyncClient(**face.here)
        never_used.close()
        with pytest.raises(HoldfastError, match="is closed"):
            never_used.submit("echo")

    await asyncio.to_thread(script)
    assert threads() == 0


async def test_with_closes_a_client_that_a_call_opened_and_opens_a_closed_one(face):
    def script():
        client = SyncClient(**face.here)
        client.submit("echo", run_id="a")
        with client:
            assert not client.submit("echo", run_id="a").fresh
        with pytest.raises(HoldfastError, match="is closed"):
            client.submit("echo")
        with client as again:
            assert not again.submit("echo", run_id="a").fresh
            again.close()

    await asyncio.to_thread(script)
    assert threads() == 0


async def test_a_first_call_that_fails_to_open_the_client_is_tried_again(face, monkeypatch):
    def script():
        client = SyncClient(**face.here)
        enter = client._client.__aenter__
        failures = [OSError("not now")]

        async def enter_later():
            if failures:
                raise failures.pop()
            return await enter()

        monkeypatch.setattr(type(client._client), "__aenter__", lambda _: enter_later())
        with pytest.raises(OSError, match="not now"):
            client.submit("echo")
        assert threads() == 0
        assert client.submit("echo").fresh
        client.close()

    await asyncio.to_thread(script)


async def test_a_client_that_nobody_has_any_more_closes_itself(face):
    def script():
        SyncClient(**face.here).submit("echo")
        gc.collect()

    await asyncio.to_thread(script)
    await until(lambda: threads() == 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    "cell",
    [
        "",
        "events = handle.events(); next(events)",
        "import threading; threading.Thread(target=quiet, daemon=True).start(); until_it_waits()",
        "del client, handle",
        "import os; pid = os.fork(); pid and os.waitpid(pid, 0)",
    ],
    ids=["idle", "half-read events", "a thread that waits", "dropped", "forked"],
)
async def test_an_interpreter_that_exits_without_close_neither_hangs_nor_warns(face, cell):
    code = f"""
import pickle, sys, time
from holdfast import HoldfastError, SyncClient
client = SyncClient(**pickle.loads(bytes.fromhex(sys.argv[1])))
handle = client.submit("echo", delay=60)
def quiet():
    try:
        handle.result()
    except HoldfastError:
        pass
def until_it_waits():
    while not client._thread._calls:
        time.sleep(0.01)
{cell}
"""
    argv = [sys.executable, "-W", "always", "-c", code, pickle.dumps(face.here).hex()]
    ended = await asyncio.to_thread(
        subprocess.run, argv, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
