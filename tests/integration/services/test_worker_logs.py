"""What a worker says of its runs: when each begins and how it ends, by the names that its submitter gave."""

from __future__ import annotations

import json
import socket

from holdfast.runs.run import Submission
from tests.support.runs.system import System, WorkerChild
from tests.support.runs.worker_processes import AGENTS, Ledger, fleet_of
from tests.support.waiting import until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def said(worker: WorkerChild, run_id: str) -> dict[str, dict]:
    """The log lines about a run, by what they say."""
    lines = [json.loads(line) for line in worker.logged().splitlines() if line.startswith("{")]
    return {line["event"]: line for line in lines if line.get("run_id") == run_id}


async def test_the_log_says_when_a_run_begins_and_how_it_ends(redis, redis_settings, tmp_path):
    async with (
        System(redis_settings) as system,
        fleet_of(system, Ledger(tmp_path / "ledger"), LOG_LEVEL="INFO") as fleet,
    ):
        worker = await fleet.start("teller")
        submission = Submission(
            agent="work",
            input=0,
            logger_context={"user": "ada", "event": "theirs", "correlation_id": "theirs"},
            trace={"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"},
        )
        ticket = await system.queue.submit(submission)
        run_id = ticket.run_id
        await system.ended(run_id)
        await until(lambda: "run settled" in said(worker, run_id))
        lines = said(worker, run_id)
        assert {"run started", "run settled"} <= lines.keys()
        for line in (lines["run started"], lines["run settled"]):
            told = {name: line[name] for name in ("agent", "attempt", "fence", "user", "trace_id", "queue")}
            assert told == {
                "agent": "work",
                "attempt": 1,
                "fence": 1,
                "user": "ada",
                "trace_id": TRACE,
                "queue": system.queue.name,
            }
            as_a_message = [line[name] for name in ("agent_id", "correlation_id", "message_id", "platform")]
            assert as_a_message == ["work", run_id, ticket.message_id, "redis-streams"]
        settled = lines["run settled"]
        assert settled["status"] == "succeeded"
        assert settled["duration_seconds"] == settled["seconds"] > 0


async def test_a_worker_that_can_run_nothing_says_so(redis, redis_settings, tmp_path):
    (tmp_path / "empty.py").write_text("from holdfast import App\n\napp = App('empty')\n")
    async with System(redis_settings) as system:
        worker = WorkerChild(system.settings, f"{tmp_path / 'empty.py'}:app", "idle")
        try:
            await until(lambda: "app has no agents" in worker.logged())
        finally:
            worker.close()


async def test_a_worker_that_could_not_be_set_up_only_says_why(redis, redis_settings):
    """Fails if it also says that its runs go to others: it had none, and the reason is hard to find below that."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with System(redis_settings) as system:
            worker = WorkerChild(
                system.settings, AGENTS, "late", METRICS_PORT=str(port), HOLDFAST_METRICS_HOST="127.0.0.1"
            )
            try:
                assert await worker.exited() == 1
                assert "METRICS_PORT" in worker.logged()
                assert "worker crashed" not in worker.logged()
            finally:
                worker.close()
