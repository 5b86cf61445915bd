"""An agent can't tell whether it runs in its worker or in a process of its own: everything of its context is the same."""

from __future__ import annotations

import contextlib
import os
from functools import partial

import msgspec
import pytest

from holdfast.errors import LeaseLost
from holdfast.runs.run import Status
from holdfast.store.lazy import LazyStore
from tests.support.processes.isolation import Isolation
from tests.support.waiting import until


async def test_the_process_is_another_one_for_each_attempt(system, isolated):
    await system.worker(isolated)
    runs = [await system.ended(await system.submit("pid")) for _ in range(2)]
    assert len({os.getpid(), *(run.result for run in runs)}) == 3


async def test_context_and_events(system, app, log_lines):
    await system.worker(app)
    run_id = await system.submit("facts", 7, thread_id="t", metadata={"who": "me"})
    run = await system.ended(run_id)
    assert run.result == {
        "attempt": 1,
        "thread": "t",
        "agent": "facts",
        "key": f"{run_id}:x",
        "metadata": {"who": "me"},
        "left": True,
        "cancelled": False,
        "draining": False,
    }
    assert await system.events(run_id) == ["submitted", "started", "thinking", "chunk", "succeeded"]
    line = next(line for line in log_lines() if line["event"] == "an agent's line")
    assert (line["run_id"], line["agent"], line["given"], line["level"]) == (run_id, "facts", 7, "info")
    assert line["logger"] == "agent.facts"


async def test_events_are_counted_by_the_worker(system, app):
    worker = await system.worker(app)
    await system.ended(await system.submit("facts", 7))
    queue = system.settings.queue.name
    appended = partial(
        worker.process.metrics.registry.get_sample_value, "holdfast_events_appended_total", {"queue": queue}
    )
    await until(appended, lambda count: count == 4)  # started, two that it emits, succeeded


async def test_a_sync_agent_has_its_context_too(system, app):
    await system.worker(app)
    for before in (0, 5):
        run = await system.ended(await system.submit("in_a_thread", 5, thread_id="t"))
        assert run.result == {"before": before, "doubled": 10}
    assert await system.events(run.id) == ["submitted", "started", "counting", "succeeded"]


async def test_a_run_takes_its_thread_from_the_run_before(system, app):
    """Fails if an attempt in a process of its own has no generation: a late write of the other run is kept."""
    async with contextlib.aclosing(LazyStore(system.settings.database)) as store:
        queue = system.settings.queue.name
        earlier = store.memory(
            run_id="earlier", thread_id="t", fence=1, owner="me", queue=queue, generation=1
        )
        await earlier.put_state("total", b"1")
        await system.worker(app)
        assert (await system.ended(await system.submit("conversation", 2, thread_id="t"))).result == 3
        with pytest.raises(LeaseLost):
            await earlier.put_state("total", b"7")
        assert (await system.ended(await system.submit("conversation", 1, thread_id="t"))).result == 4


async def test_state_goes_from_run_to_run(system, app):
    await system.worker(app)
    for total in (1, 2):
        assert (await system.ended(await system.submit("conversation", 1, thread_id="t"))).result == total


async def test_a_step_is_done_once_over_attempts(system, app, tmp_path):
    await system.worker(app)
    run = await system.ended(await system.submit("steps", str(tmp_path / "notes")))
    assert (run.status, run.attempt, run.result) == (Status.SUCCEEDED, 2, [1, 2])


async def test_a_question_waits_without_a_process(system, app):
    await system.worker(app)
    run_id = await system.submit("asks")
    assert (await system.reaches(run_id, Status.INTERRUPTED)).interrupt == {"what": "now"}
    await system.queue.resume_run(run_id, "so")
    assert (await system.ended(run_id)).result == "told so"


async def test_a_generator_streams(system, app):
    await system.worker(app)
    run_id = await system.submit("words", 3)
    assert (await system.ended(run_id)).result == ["word 0", "word 1", "word 2"]
    assert (await system.events(run_id)).count("chunk") == 3


async def test_a_run_that_is_handed_back_keeps_its_attempt(system, app):
    await system.worker(app)
    run = await system.ended(await system.submit("hands_back"))
    assert (run.status, run.result) == (Status.SUCCEEDED, 1)


async def test_failures_have_their_class_words_and_traceback(system, app):
    await system.worker(app)
    broken = await system.ended(await system.submit("broken"))
    assert (broken.status, broken.attempt, broken.error.kind) == (Status.FAILED, 2, "unknown")
    assert broken.error.message == "ValueError: wrong in attempt 2"
    assert "isolatedagents.py" in broken.error.traceback
    gave_up = await system.ended(await system.submit("gives_up"))
    assert (gave_up.status, gave_up.attempt, gave_up.error.kind) == (Status.FAILED, 1, "invalid")


async def test_a_result_that_is_no_json_is_refused_with_the_same_words(system, app):
    await system.worker(app)
    for agent, words in (
        ("unwritable", "can't be written as JSON"),
        ("forgets_to_await", "did you forget await"),
        ("raises_while_it_is_written", "writing the Moody raised KeyError: 'total'"),
    ):
        run = await system.ended(await system.submit(agent))
        assert (run.status, run.attempt, run.error.kind) == (Status.FAILED, 1, "invalid")
        assert words in run.error.message
        assert f"agent {agent!r}" in run.error.message


async def test_a_programming_error_is_not_tried_again(system, app):
    """Fails if the class of the failure is lost on its way out of the process: it would have a second attempt."""
    await system.worker(app)
    run = await system.ended(await system.submit("looks_up_a_wrong_key"))
    assert (run.status, run.attempt, run.error.kind) == (Status.FAILED, 1, "programming_error")
    assert "no such key" in run.error.message


async def test_large_inputs_and_results_pass_and_larger_ones_are_refused(system, app):
    limit = 6 * 1024 * 1024
    system.settings = msgspec.structs.replace(
        system.settings, queue=msgspec.structs.replace(system.settings.queue, max_payload_bytes=limit)
    )
    await system.worker(app)
    fits = await system.ended(await system.submit("large", 4_000_000), 60)
    assert fits.result == 'ö"' * (4_000_000 // 3)
    echoed = await system.ended(await system.submit("echo", "é" * 400_000), 60)
    assert echoed.result == "é" * 400_000
    refused = await system.ended(await system.submit("large", limit), 60)
    assert (refused.status, refused.error.kind) == (Status.FAILED, "invalid")
    assert "more than max_payload_bytes" in refused.error.message


async def test_a_willing_agent_tidies_up_when_it_is_cancelled(redis, redis_settings, app, tmp_path):
    async with Isolation(redis_settings, stop_grace_seconds=60) as system:
        await system.worker(app)
        for agent in ("polite", "polite_thread"):
            run_id = await system.submit(agent, str(tmp_path / agent))
            await system.told(run_id)
            await system.queue.cancel(run_id, "not wanted")
            run = await system.ended(run_id)
            assert (run.status, run.error.message) == (Status.CANCELLED, "not wanted")
    assert (tmp_path / "polite").read_text() == "tidied up True"


async def test_an_agent_hears_that_its_worker_wants_to_leave(system, app):
    worker = await system.worker(app)
    run_id = await system.submit("leaves_early")
    await system.told(run_id)
    await worker.stop()
    run = await system.ended(run_id)
    assert (run.status, run.result, run.attempt) == (Status.SUCCEEDED, "left early", 1)


async def test_models_come_in_and_go_out(system, app):
    await system.worker(app)
    order = {"id": 7, "due": "2030-01-02T03:04:05Z"}
    bill = {"order": 7, "due": "2030-01-02T03:04:05Z", "type": "Order"}
    first = await system.submit("bills", order)
    second = await system.submit("bills_in_a_thread", order)
    assert (await system.ended(first)).result == bill
    assert (await system.ended(second)).result == [bill]
    assert await system.events(second) == ["submitted", "started", "chunk", "succeeded"]


async def test_an_input_that_does_not_fit_is_tried_once(system, app):
    await system.worker(app)
    run = await system.ended(await system.submit("bills", {"id": 7}))
    assert (run.status, run.attempt, run.error.kind) == (Status.FAILED, 1, "invalid")
    assert "agent 'bills': the input does not fit Order" in run.error.message
    assert "required field `due`" in run.error.message
