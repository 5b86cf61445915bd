"""How a process finds the app: by what it was loaded from, by a module that names it, or not at all."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast import App
from holdfast.agents.loader import load_app, reference_of
from holdfast.errors import AppError, ConfigError
from holdfast.runs.run import Status
from holdfast.services.worker import WorkerProcess
from tests.support.processes.child_processes import children_of
from tests.support.processes.isolation import AGENTS
from tests.support.runs.system import RunningWorker
from tests.support.waiting import until


async def test_graphs_and_agents_of_other_frameworks_run_in_processes(system):
    worker = RunningWorker(system.settings, load_app(str(Path(AGENTS).with_name("isolatedframeworks.py"))))
    system.workers.append(worker)
    await until(lambda: worker.process.ready or worker.task.done(), seconds=100)  # its zygote loads them too
    run_id = await system.submit("graph", {})
    await system.reaches(run_id, Status.INTERRUPTED, 30)
    await system.queue.resume_run(run_id, "yes")
    found = (await system.ended(run_id)).result
    assert found["answer"] == "yes"
    assert found["first"] != os.getpid()
    told = await system.ended(await system.submit("model", "where are you?"))
    assert int(told.result) != os.getpid()


async def test_an_app_that_no_other_process_can_find_is_refused(system):
    app = App("hidden")

    @app.agent(isolation="process")
    async def agent() -> None: ...

    with pytest.raises(
        AppError, match=r"no other process can find its app 'hidden': make the App a variable"
    ):
        await WorkerProcess(system.settings, app).run()


async def test_messages_that_no_process_could_be_given_are_refused_before_they_come(system):
    queue = msgspec.structs.replace(system.settings.queue, max_payload_bytes=8 * 1024 * 1024 + 1)
    settings = msgspec.structs.replace(system.settings, queue=queue)
    with pytest.raises(ConfigError, match=r"max_payload_bytes = 8388609 .* isolation='process'"):
        await WorkerProcess(settings, load_app(f"{AGENTS}:isolated")).run()


async def test_an_app_that_is_a_variable_of_a_module_is_found_there(tmp_path, monkeypatch):
    (tmp_path / "anisolatedapp.py").write_text("from holdfast import App\nthe_app = App('it')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import anisolatedapp  # pyright: ignore[reportMissingImports]

    assert reference_of(anisolatedapp.the_app) == "anisolatedapp:the_app"
    assert reference_of(App("nowhere")) == ""
    monkeypatch.delitem(sys.modules, "anisolatedapp")


async def test_an_app_that_starts_threads_when_it_is_loaded_runs_all_the_same(system, tmp_path, log_lines):
    """It can't be forked from a process that has loaded it: each attempt loads it for itself."""
    path = tmp_path / "threadedapp.py"
    path.write_text(
        "import os, threading\n"
        "from holdfast import App\n"
        "app = App('threaded')\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "@app.agent(isolation='process')\n"
        "async def agent(): return os.getpid()\n"
    )
    await system.worker(load_app(str(path)))
    assert (await system.ended(await system.submit("agent"), 60)).result != os.getpid()
    assert any("each attempt loads the app itself" in line["event"] for line in log_lines())
    assert any("started a thread" in line.get("error", "") for line in log_lines())


async def test_a_worker_without_such_agents_starts_no_zygote(system):
    before = children_of(os.getpid())
    await system.worker(load_app(f"{AGENTS}:inline"))
    assert set(children_of(os.getpid())) <= set(before)  # what others had started may end meanwhile
