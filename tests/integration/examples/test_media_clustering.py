"""Seed 004's pipeline on a real server: produced, clustered, acknowledged, retried, reclaimed, given up, rolled out."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from holdfast import App
from holdfast.agents.loader import load_app
from holdfast.client.rollout import Rollout
from holdfast.client.transports.redis.rollouts import Rollouts
from holdfast.config import RedisSettings, Settings, load
from holdfast.errors import MalformedMessage
from holdfast.runs.run import Run, Status
from holdfast.services.api import ApiProcess
from holdfast.telemetry.metrics import Metrics
from tests.support.api.server import RunningApi
from tests.support.runs.system import System, WorkerChild
from tests.support.waiting import until

EXAMPLE = Path(__file__).parents[3] / "examples" / "media_clustering"
APP = load_app(str(EXAMPLE / "app.py"))  # also makes the package importable

from media_clustering.auth_service import ROLLOUT, ingest  # noqa: E402
from media_clustering.http_service import HttpService  # noqa: E402
from media_clustering.results import Results  # noqa: E402
from media_clustering.schema import flat, new_job, read_job  # noqa: E402
from media_clustering.tracing import job_span  # noqa: E402

STREAM, GROUP = "streams:media.cluster", "media-clustering-workers"
DEADLETTER = "streams:media.cluster.deadletter"


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Results:
    monkeypatch.setenv("MEDIA_RESULTS", str(tmp_path / "clusters.sqlite"))
    return Results()


@pytest.fixture
def app() -> App:
    return APP


def settings_of(**environ: str) -> Settings:
    return load(EXAMPLE / "holdfast.yaml", environ=environ).settings


def system_of(redis: RedisSettings, **changes: Any) -> System:
    """The example's queue, as its file describes it; only times are shorter."""
    described = settings_of().queue
    quick = {name: getattr(described, name) for name in described.__struct_fields__ if name != "backoff"}
    return System(redis, **{**quick, "block_ms": 1000, "ttl": 30.0, **changes})


@pytest.fixture
async def system(redis, redis_settings) -> AsyncIterator[System]:
    async with system_of(redis_settings) as system:
        yield system


async def xadd(system: System, job: dict[str, Any], **more: str) -> str:
    """Write an entry as the plain producer does."""
    entry = await system.queue.redis.xadd(STREAM, {**flat(job), **more})
    return more.get("correlation_id", f"entry-{entry.decode()}")


async def letters(system: System) -> list[dict[str, str]]:
    found = await system.queue.redis.xrange(DEADLETTER)
    return [{key.decode(): value.decode() for key, value in fields.items()} for _, fields in found]


# -- configuration


@pytest.mark.parametrize(
    ("file", "matrix"),
    [
        ("dev.env", ("redis://media-redis:6379/0", "dev-worker", 10_000, 60.0, 5, 64)),
        (
            "production.env",
            (
                "rediss://media-redis.example.internal:6379/0",
                "media-clustering-worker-pod-7",
                1_000_000,
                30.0,
                5,
                256,
            ),
        ),
    ],
)
def test_the_configuration_matrix_is_what_the_settings_become(file, matrix):
    python, settings_file = shlex.quote(sys.executable), shlex.quote(str(EXAMPLE / file))
    script = (
        f"set -a; . {settings_file}; exec {python} -c 'import os, json; print(json.dumps(dict(os.environ)))'"
    )
    said = subprocess.run(
        ["/bin/sh", "-c", script],
        env={"HOSTNAME": "pod-7", "PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
    )
    settings = settings_of(**json.loads(said.stdout))
    queue = settings.queue_named(settings.messaging.queue)
    assert (queue.name, queue.group, queue.deadletter) == (STREAM, GROUP, DEADLETTER)
    assert (
        settings.redis.url,
        settings.worker.name,
        queue.max_depth,
        settings.lease.ttl_seconds,
        queue.max_attempts,
        queue.max_pending,
    ) == matrix
    assert (queue.slots, queue.block_ms, settings.metrics.port) == (16, 5000, 9090)


# -- the schema


def test_a_job_is_read_from_json_and_from_flat_fields():
    job = new_job(trace_id="ab" * 16)
    assert read_job(job) == read_job(flat(job)) == read_job({**flat(job), "correlation_id": job["job_id"]})
    read = read_job(flat(job))
    assert (read.force, read.quality_score, read.trace_id) == (False, 0.95, "ab" * 16)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"job_id": "not-a-ulid"}, "job_id"),
        ({"pet_id": "7"}, "pet_id"),
        ({"image_ids": []}, "image_ids"),
        ({"image_ids": "[1"}, "not a clustering job"),
        ({"image_ids": ["x"]}, "image_ids"),
        ({"quality_score": 1.5}, "quality_score"),
        ({"quality_score": "high"}, "quality_score"),
        ({"force": "maybe"}, "force"),
        ({"reason": ""}, "reason"),
        ({"metadata": {"source": "auth-service"}}, "emitted_at"),
        ({"metadata": {"emitted_at": "yesterday", "source": "x"}}, "emitted_at"),
        ({"petId": "x"}, "petId"),
        ({"metadata": None}, "metadata"),
    ],
)
def test_what_is_no_job_is_told_by_its_field(change, named):
    with pytest.raises(MalformedMessage, match=named):
        read_job({**new_job(), **change})


@pytest.mark.parametrize("wrong", [None, 7, "text", [1], [], {}])
def test_what_is_no_object_is_no_job(wrong):
    with pytest.raises(MalformedMessage):
        read_job(wrong)


# -- the worker


async def test_a_job_is_produced_clustered_and_acknowledged(system, app, results):
    await system.worker(app)
    job = new_job(images=5)
    run = await system.adopted(await xadd(system, job, correlation_id=job["job_id"]))
    assert (run.id, run.status, run.result["fresh"]) == (job["job_id"], Status.SUCCEEDED, True)
    assert results.way_of(job["job_id"]) == "queue"
    await system.nothing_left()
    redis = system.queue.redis
    (group,) = await redis.xinfo_groups(STREAM)
    assert (group["name"].decode(), group["pending"]) == (GROUP, 0)
    assert await redis.xlen(STREAM) == 0


async def test_the_seeds_entry_without_any_word_of_ours_is_clustered_too(system, app, results):
    await system.worker(app)
    job = new_job()
    assert (await system.adopted(await xadd(system, job))).status is Status.SUCCEEDED
    assert results.way_of(job["job_id"]) == "queue"


async def test_the_same_job_twice_is_done_once(system, app, results):
    job = new_job()
    first = await xadd(system, job, correlation_id=job["job_id"])
    await xadd(system, job, correlation_id=job["job_id"])
    unnamed = await xadd(system, job)
    await system.worker(app)
    assert (await system.adopted(first)).status is Status.SUCCEEDED
    await system.adopted(unnamed)
    await system.nothing_left()
    assert results.ways() == {"queue": 1}


async def test_a_bad_message_is_a_dead_letter_at_once_with_its_reason(system, app):
    await system.worker(app)
    run = await system.adopted(await xadd(system, {**new_job(), "pet_id": "7"}))
    assert (run.status, run.attempt, run.error.kind) == (Status.FAILED, 1, "malformed")
    (letter,) = await letters(system)
    assert letter["reason"] == "malformed"
    assert "pet_id" in letter["error"]
    after = new_job()
    assert (await system.adopted(await xadd(system, after))).status is Status.SUCCEEDED


async def test_five_attempts_end_in_the_dead_letters(system, app):
    await system.worker(app)
    run_id = await xadd(system, new_job("drill:fail"))
    run = await system.adopted(run_id)
    assert (run.status, run.attempt) == (Status.FAILED, 5)
    (letter,) = await letters(system)
    assert (letter["run_id"], letter["attempts"]) == (run_id, "5")
    assert "this is a drill" in letter["error"]
    await system.nothing_left()


async def test_a_killed_workers_job_is_reclaimed(redis, redis_settings, results, app):
    async with system_of(redis_settings, ttl=4.0) as system:
        child = WorkerChild(
            system.settings,
            str(EXAMPLE / "app.py"),
            "media-clustering-worker-doomed",
            HOLDFAST_CONFIG=str(EXAMPLE / "holdfast.yaml"),
        )
        try:
            job = new_job("drill:slow 3600")
            run_id = await xadd(system, job, correlation_id=job["job_id"])
            await running(system, run_id)
            child.kill()
            await system.worker(app, "media-clustering-worker-next")
            run = await system.ended(run_id)
        finally:
            child.close()
        assert (run.status, run.attempt, run.fence > 1) == (Status.SUCCEEDED, 2, True)
        assert results.way_of(job["job_id"]) == "queue"
        assert "reclaimed" in await system.events(run_id)


async def running(system: System, run_id: str) -> Run:
    await until(lambda: system.queue.redis.exists(system.queue.keys.run(run_id)))
    return await system.reaches(run_id, Status.RUNNING)


async def test_no_more_is_claimed_than_the_worker_may_hold(redis, redis_settings, app):
    async with system_of(redis_settings, max_pending=3) as system:
        for _ in range(10):
            await xadd(system, new_job("drill:slow 3600"))
        worker = await system.worker(app)
        depth = await until(system.queue.depth, lambda depth: depth.pending >= 3)
        assert (depth.pending, depth.undelivered) == (3, 7), "16 slots, but MAX_PENDING_PER_WORKER = 3"
        worker.process.request_stop()
        worker.process.request_stop()
        await asyncio.wait_for(worker.task, 30)
        assert (await system.queue.depth()).depth == 10


# -- what is seen of it


async def test_logs_carry_job_pet_attempt_and_trace(system, app, log_lines):
    await system.worker(app)
    job = new_job(trace_id="cd" * 16)
    await system.adopted(await xadd(system, job, correlation_id=job["job_id"]))
    (line,) = [line for line in log_lines() if line["event"] == "clustered"]
    assert {name: line[name] for name in ("job_id", "pet_id", "attempt", "trace_id", "run_id")} == {
        "job_id": job["job_id"],
        "pet_id": job["pet_id"],
        "attempt": 1,
        "trace_id": "cd" * 16,
        "run_id": job["job_id"],
    }


async def test_the_variables_alone_make_the_pipeline(redis, redis_settings, app):
    """Without holdfast.yaml: the dead letters have their name, and plain entries go to the only agent."""
    variables = {"CLUSTER_STREAM_KEY": STREAM, "CLUSTER_CONSUMER_GROUP": GROUP}
    described = load(Path("/dev/null"), environ=variables).settings.queue
    given = {name: getattr(described, name) for name in ("name", "group", "deadletter", "default_agent")}
    async with System(redis_settings, ttl=30.0, **given) as system:
        await system.worker(app)
        run = await system.adopted(await xadd(system, new_job()))
        assert (run.status, run.agent) == (Status.SUCCEEDED, "cluster")
        await system.adopted(await xadd(system, {"job_id": "no ulid"}))
        assert [letter["agent_id"] for letter in await letters(system)] == ["cluster"]


def test_a_new_job_names_the_trace_that_it_is_made_in():
    with TracerProvider().get_tracer("x").start_as_current_span("POST /images") as handler:
        job = read_job(new_job())
    assert job.trace_id == f"{handler.get_span_context().trace_id:032x}"
    assert read_job(new_job()).trace_id == ""


async def test_the_jobs_of_the_producer_are_in_the_trace_of_their_ingest(system, app, log_lines):
    """Fails if the program opens no span, or starts no tracing: then nothing leads from a job to its request."""
    environ = {
        "REDIS_URL": system.settings.redis.url,
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(EXAMPLE.parent),
        "MEDIA_CLUSTER_HTTP_URL": "",
        "OTEL_TRACES_EXPORTER": "console",
    }
    produced = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "media_clustering.auth_service", "--count", "2", "--every", "0"],
        env=environ,
        cwd=EXAMPLE,
        check=False,
        capture_output=True,
        text=True,
    )
    assert produced.returncode == 0, produced.stderr
    lines = [json.loads(line) for line in produced.stderr.splitlines() if line.startswith("{")]
    spans = [line["context"]["trace_id"] for line in lines if line.get("name") == "ingest image"]
    jobs = [line.split()[0] for line in produced.stdout.splitlines()[:-1]]
    assert len(jobs) == len(set(spans)) == 2
    await system.worker(app)
    for job, trace_id in zip(jobs, spans, strict=True):
        await system.ended(job)
        settled = await until(
            lambda job=job: [
                line
                for line in log_lines()
                if line.get("run_id") == job and line["event"] in {"clustered", "run settled"}
            ],
            lambda found: len(found) == 2,
        )
        assert {line["trace_id"] for line in settled} == {trace_id.removeprefix("0x")}


def traced(work: Callable[[TracerProvider], None]) -> Any:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    work(provider)
    return exporter.get_finished_spans()


def test_a_jobs_span_is_in_the_trace_that_its_metadata_names():
    job = read_job(new_job(trace_id="ef" * 16))

    def work(provider: TracerProvider) -> None:
        with (
            provider.get_tracer("x").start_as_current_span("run cluster") as around,
            job_span(job, 2, provider),
        ):
            assert around.is_recording()

    span, around = traced(work)
    assert f"{span.context.trace_id:032x}" == "ef" * 16
    assert dict(span.attributes) == {"job_id": job.job_id, "pet_id": str(job.pet_id), "attempt": 2}
    assert [link.context.span_id for link in span.links] == [around.context.span_id]


def test_a_jobs_span_is_a_child_of_its_run_if_that_continues_the_trace():
    def work(provider: TracerProvider) -> None:
        with provider.get_tracer("x").start_as_current_span("run cluster") as around:
            trace_id = f"{around.get_span_context().trace_id:032x}"
            with job_span(read_job(new_job(trace_id=trace_id)), 1, provider):
                pass

    span, around = traced(work)
    assert span.parent.span_id == around.context.span_id
    assert not span.links


@pytest.mark.parametrize("way", ["producer", "xadd", "message_data"])
async def test_every_log_line_of_a_job_names_it(system, app, log_lines, way):
    """Fails if only the agent's own lines do: that of a dead letter would be found by no job, pet or trace."""
    await system.worker(app)
    done, failed = new_job(trace_id="ab" * 16), new_job(trace_id="cd" * 16)
    failed["quality_score"] = "high"  # is no job, so it is a dead letter at once
    for job in (done, failed):
        if way == "producer":
            run_id = await system.submit("cluster", job)
        elif way == "xadd":
            run_id = await xadd(system, job)
        else:
            entry = await system.queue.redis.xadd(STREAM, {"message_data": json.dumps(job)})
            run_id = f"entry-{entry.decode()}"
        run = await system.adopted(run_id)
        expected = {"job_id": job["job_id"], "pet_id": job["pet_id"], "trace_id": job["metadata"]["trace_id"]}
        last = "run settled" if job is done else "run failed"
        lines = await until(
            lambda run_id=run_id: [line for line in log_lines() if line.get("run_id") == run_id],
            lambda found, last=last: last in {line["event"] for line in found},
        )
        events = [line["event"] for line in lines if line["event"] != "run submitted"]
        assert events == ["run started", *(("clustering", "clustered") if job is done else ()), last]
        for line in lines:
            assert expected.items() <= line.items()
            assert (line["correlation_id"], line["attempt"]) == (run_id, 1)
        assert {line["message_id"] for line in lines} == {lines[0]["message_id"]}
        assert run.status is (Status.SUCCEEDED if job is done else Status.FAILED)


async def test_the_health_endpoint_tells_latency_and_group(system):
    serving = msgspec.structs.replace(system.settings.api, port=0, linger_seconds=0.0)
    api = await RunningApi(ApiProcess(msgspec.structs.replace(system.settings, api=serving))).ready()
    try:
        answer = await api.client().get("/internal/health/redis")
        assert answer.status_code == 200
        assert answer.json()["ping_ms"] >= 0
        assert answer.json()["queues"] == [{"queue": STREAM, "group": GROUP, "present": True}]
        await until(
            lambda: api.client().get("/metrics"),
            lambda found: f'holdfast_queue_depth{{queue="{STREAM}"}}' in found.text,
        )

        async def health_without_group() -> int:
            await system.queue.redis.xgroup_destroy(STREAM, GROUP)
            return (await api.client().get("/internal/health/redis")).status_code

        await until(
            health_without_group, lambda status: status == 503
        )  # a process that reads the queue makes it again
    finally:
        await api.close()


async def test_the_workers_metrics_count_acked_retried_and_dead(system, app):
    worker = await system.worker(app)
    await system.adopted(await xadd(system, new_job()))
    await system.adopted(await xadd(system, new_job("drill:fail")))

    def count(name: str, **labels: str) -> float:
        return worker.process.metrics.registry.get_sample_value(name, {"queue": STREAM, **labels}) or 0

    assert count("holdfast_runs_adopted_total") == 2
    assert count("holdfast_runs_finished_total", agent="cluster", status="succeeded") == 1
    assert count("holdfast_runs_retried_total", agent="cluster", reason="transient") == 4
    # Redis knows of an end a moment before the worker counts it.
    await until(lambda: count("holdfast_runs_dead_lettered_total", reason="transient") == 1)


# -- the roll-out


@pytest.fixture
async def old_way(results) -> AsyncIterator[str]:
    """The HTTP service, on a port of its own."""
    runner = web.AppRunner(HttpService(results).web)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/jobs"
    await runner.cleanup()


async def send_all(producer: Any, tenants: list[str]) -> dict[str, str]:
    paths = {}
    for tenant in tenants:
        job = new_job()
        paths[tenant] = (await producer.send(job, tenant=tenant, run_id=job["job_id"])).path
    return paths


async def test_a_canary_of_10_50_100_and_back_to_0(system, app, results, old_way):
    await system.worker(app)
    rollouts, metrics = Rollouts(system.queue.redis), Metrics()
    tenants = [f"tenant-{number}" for number in range(60)]
    sent = {"queue": 0, "fallback": 0}
    async with ingest(system.settings, metrics, old_way, patience=30.0) as producer:
        for percent in (10, 50, 100, 0):
            flag = await rollouts.set(ROLLOUT, percent)
            await seen(producer, percent)
            paths = await send_all(producer, tenants)
            assert paths == {t: "queue" if flag.includes(t) else "fallback" for t in tenants}
            for path in paths.values():
                sent[path] += 1
    await until(lambda: results.ways() == {"queue": sent["queue"], "http": sent["fallback"]})
    await settled(system)
    for path, count in sent.items():
        labels = {"producer": "auth-service", "path": path}
        assert metrics.registry.get_sample_value("holdfast_producer_sent_total", labels) == count


def test_the_page_says_how_many_of_its_tenants_are_rolled_out_at_half():
    page = (EXAMPLE / "README.md").read_text()
    ((given, some, all_of_them),) = re.findall(r"--tenants (\d+) +# (\d+) of the (\d+) tenants", page)
    assert given == all_of_them
    half = Rollout(name=ROLLOUT, percent=50)
    assert sum(half.includes(f"tenant-{number}") for number in range(int(given))) == int(some)


async def test_the_plain_producer_is_run_as_the_page_says(system, app):
    """By its command, with another REDIS_URL; without one it says where to find it."""
    page = (EXAMPLE / "README.md").read_text()
    (command,) = re.findall(
        r"^REDIS_URL=\S+ (PYTHONPATH=\.\. python -m .*plain_producer)$", page, re.MULTILINE
    )

    def produce(url: str) -> subprocess.CompletedProcess[str]:
        script = command.replace("python -m", f"{shlex.quote(sys.executable)} -m") + " --count 2"
        return subprocess.run(
            ["/bin/sh", "-c", script],
            env={"REDIS_URL": url, "PATH": "/usr/bin:/bin"},
            cwd=EXAMPLE,
            check=False,
            capture_output=True,
            text=True,
        )

    await system.worker(app)
    said = await asyncio.to_thread(produce, system.settings.redis.url)
    jobs = [line.split()[1] for line in said.stdout.splitlines()]
    assert len(jobs) == 2, said.stderr
    assert [(await system.adopted(job)).status for job in jobs] == [Status.SUCCEEDED] * 2
    unset = await asyncio.to_thread(produce, "")
    assert unset.stderr == "REDIS_URL is not set: it is the url that `holdfast dev` prints behind Redis\n"
    assert unset.returncode == 1


async def seen(producer: Any, percent: float) -> None:
    """Wait until the producer has read the flag: it does by itself, within a second."""
    await until(producer.rollout, lambda rollout: rollout is not None and rollout.percent == percent)


async def settled(system: System) -> None:
    await until(system.queue.depth, lambda found: not found.depth)


async def test_a_job_whose_reply_was_lost_goes_both_ways_and_is_done_once(
    system, app, results, old_way, fault_proxy
):
    await Rollouts(system.queue.redis).set(ROLLOUT, 100)
    redis = msgspec.structs.replace(system.settings.redis, url=fault_proxy.url)
    settings = msgspec.structs.replace(system.settings, redis=redis)
    async with ingest(settings, Metrics(), old_way, patience=30.0) as producer:
        await seen(producer, 100)
        # From here on the server has the script: a reply that is lost is not one that asks for it.
        await producer.send(before := new_job(), tenant="acme", run_id=before["job_id"])
        job = new_job()
        fault_proxy.drop_replies("EVALSHA", times=2)
        sent = await producer.send(job, tenant="acme", run_id=job["job_id"])
    assert (sent.path, sent.reason, fault_proxy.dropped) == ("fallback", "unavailable", 2)
    assert results.way_of(job["job_id"]) == "http"
    await system.worker(app)
    run = await system.ended(job["job_id"])
    assert (run.status, run.result["fresh"]) == (Status.SUCCEEDED, False), "the queue had it too"
    await system.ended(before["job_id"])
    assert results.ways() == {"http": 1, "queue": 1}


async def test_the_http_service_refuses_what_is_no_job(system, old_way):
    async with ingest(system.settings, Metrics(), old_way) as producer:
        with pytest.raises(Exception, match="422"):
            await producer.send({"job_id": "x"}, run_id="x")
