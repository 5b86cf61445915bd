"""Several queues, counting, and a queue on a Redis Cluster."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from redis.exceptions import ResponseError

from holdfast import App
from holdfast.config import QueueSettings, RedisSettings, SenderSettings, Settings, WorkerSettings
from holdfast.errors import RedisUnavailable
from holdfast.runs.run import Status, Submission
from holdfast.services.connections import Connections
from holdfast.services.worker import WorkerProcess
from holdfast.telemetry.metrics import Metrics
from tests.support.redis.valkey_process import free_port
from tests.support.runs.system import System
from tests.support.waiting import until


async def test_a_worker_serves_several_queues_each_with_its_own_settings(redis, redis_settings):
    app, going, most = App("test"), {}, {}
    slots = {"browser:jobs": 1, "tankpit:jobs": 3}
    full = {queue: asyncio.Event() for queue in slots}

    @app.agent
    async def note(queue: str) -> None:
        going[queue] = going.get(queue, 0) + 1
        most[queue] = max(most.get(queue, 0), going[queue])
        if going[queue] == slots[queue]:
            full[queue].set()
        await full[queue].wait()
        await asyncio.sleep(0.02)  # one too many would meet the others
        going[queue] -= 1

    queues = {
        "browser:jobs": QueueSettings(name="browser:jobs", slots=1, max_depth=10),
        "tankpit:jobs": QueueSettings(name="tankpit:jobs", slots=3, group="tanks"),
    }
    settings = Settings(redis=redis_settings, queues=queues, worker=WorkerSettings(queues=tuple(queues)))
    async with Connections(settings) as connections:
        senders = {name: connections.sender(queue) for name, queue in queues.items()}
        for name, sender in senders.items():
            await sender.submit_many([Submission(agent="note", input=name) for _ in range(9)])
        process = WorkerProcess(settings, app)
        task = asyncio.create_task(process.run())
        await until(lambda: sum(most.values()) and not task.done())
        for sender in senders.values():
            await until(sender.depth, lambda found: not found.depth)
        process.request_stop()
        await task
    assert most == slots
    assert [group["name"] for group in await redis.xinfo_groups("tankpit:jobs")] == [b"tanks"]


async def test_draining_one_of_two_queues_waits_quietly(redis, redis_settings, monkeypatch):
    """With the finished worker still among the watched, the drain would spin without end."""
    app, gate = App("test"), asyncio.Event()

    @app.agent
    async def wait():
        await gate.wait()

    queues = {name: QueueSettings(name=name) for name in ("one", "two")}
    worker = WorkerSettings(queues=tuple(queues), drain_seconds=1.0, progress_seconds=0.2)
    settings = Settings(redis=redis_settings, queues=queues, worker=worker)
    async with Connections(settings) as connections:
        await connections.sender(queues["one"]).submit(Submission(agent="wait"))
        process = WorkerProcess(settings, app)
        task = asyncio.create_task(process.run())
        await until(process.running)
        waits, wait_for_some = [], asyncio.wait

        async def counted(*given, **options):
            waits.append(1)
            return await wait_for_some(*given, **options)

        monkeypatch.setattr(asyncio, "wait", counted)
        process.request_stop()
        await task
        assert 1 <= len(waits) < 30, "it waits about five times, for 0.2 s each"


async def test_each_of_many_submissions_carries_its_own_trace(redis, redis_settings):
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    tracer = TracerProvider().get_tracer("test")
    settings = Settings(redis=redis_settings)
    async with Connections(settings) as connections:
        sender = connections.sender(settings.queue)

        async def submit(number: int) -> tuple[str, str]:
            with tracer.start_as_current_span(f"request {number}") as span:
                ticket = await sender.submit(Submission(agent="a"))
                return ticket.run_id, trace.format_trace_id(span.get_span_context().trace_id)

        for run_id, trace_id in await asyncio.gather(*(submit(number) for number in range(8))):
            message = await redis.hget(sender.keys.run(run_id), "message")
            assert trace_id.encode() in message


async def test_a_list_is_paged_filtered_and_bounded(redis, redis_settings):
    async with System(redis_settings, ttl=30.0) as system:
        await system.queue.submit_many(
            [Submission(agent=f"a{n % 3}", run_id=f"r{n:04}") for n in range(2500)]
        )
        await system.queue.cancel("r0007")
        seen, cursor = [], ""
        while True:
            page = await system.queue.list(limit=400, cursor=cursor)
            seen += [run.id for run in page.runs]
            cursor = page.cursor
            if not cursor:
                break
        assert sorted(seen) == [f"r{n:04}" for n in range(2500)]
        first = await system.queue.list(status=Status.CANCELLED)
        assert (first.runs, bool(first.cursor)) == ([], True)
        second = await system.queue.list(status=Status.CANCELLED, cursor=first.cursor)
        assert [run.id for run in second.runs] == ["r0007"]
        assert {run.agent for run in (await system.queue.list(agent="a1")).runs} == {"a1"}


async def test_what_is_submitted_refused_and_known_before_is_counted(redis, redis_settings):
    metrics = Metrics(["echo"])
    settings = Settings(redis=redis_settings, queue=QueueSettings(max_depth=2))
    async with Connections(settings, metrics) as connections:
        sender = connections.sender(settings.queue)
        await sender.submit_many([Submission(agent="echo", run_id="a"), Submission(agent="echo", run_id="a")])
        await sender.submit_many([Submission(agent="echo"), Submission(agent="echo"), Submission(agent="")])

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(f"holdfast_{name}_total", {"queue": "agent-queue", **labels})

    assert value("runs_submitted", agent="echo") == 2
    assert value("run_duplicates") == 1
    assert value("events_appended") == value("runs_submitted", agent="echo")
    assert value("runs_refused", reason="full") == 1
    assert value("runs_refused", reason="invalid") == 1


@pytest.mark.parametrize("partitions", [1, 2])
async def test_what_redis_does_not_answer_is_counted_as_refused(partitions):
    """Fails if a producer's outage shows in no counter, or as submissions that are invalid."""
    metrics = Metrics(["echo"])
    settings = Settings(
        redis=RedisSettings(url=f"redis://127.0.0.1:{free_port()}"),  # nobody listens there
        queue=QueueSettings(partitions=partitions),
        sender=SenderSettings(max_retries=0),
    )
    async with Connections(settings, metrics) as connections:
        sender = connections.sender(settings.queue)
        for _ in range(2):
            with pytest.raises(RedisUnavailable):
                await sender.submit(Submission(agent="echo"))
        with pytest.raises(RedisUnavailable):
            await sender.submit_many([Submission(agent="echo") for _ in range(500)])

    def value(reason: str) -> float | None:
        labels = {"queue": "agent-queue", "reason": reason}
        return metrics.registry.get_sample_value("holdfast_runs_refused_total", labels)

    assert (value("unavailable"), value("invalid")) == (502, None)


async def test_a_queue_lives_in_one_slot_of_a_cluster(start_valkey):
    """Every script, the blocking read and the control channel, on a real cluster."""
    bus = str(free_port())  # the default, the port + 10000, may be none
    server = start_valkey("--cluster-enabled", "yes", "--cluster-port", bus, append_only=False)
    server.ask("CLUSTER ADDSLOTSRANGE 0 16383")
    server.wait_for("CLUSTER INFO", "cluster_state:ok")
    app = App("test")

    @app.agent
    async def flaky(ctx, payload):
        await ctx.emit("hello", payload)
        if ctx.attempt == 1:
            raise ConnectionError("once")
        return payload

    @app.agent
    async def endless(payload):
        await asyncio.Event().wait()

    async with System(
        RedisSettings(url=f"redis+cluster://127.0.0.1:{server.port}"), slots=3, ttl=30.0
    ) as system:
        worker = await system.worker(app)
        run = await system.ended(await system.submit("flaky", 5))
        assert (run.status, run.result, run.attempt) == (Status.SUCCEEDED, 5, 2)
        run_id = await system.submit("endless")
        await system.reaches(run_id, Status.RUNNING)
        await system.queue.cancel(run_id)
        assert (await system.ended(run_id)).status is Status.CANCELLED
        run_id = await system.submit("endless")
        await system.reaches(run_id, Status.RUNNING)
        worker.process.request_stop()
        worker.process.request_stop()
        await worker.task
        assert (await system.queue.get(run_id)).status is Status.QUEUED


async def test_a_prefix_goes_before_every_key(redis, redis_settings):
    app = App("test")

    @app.agent
    async def echo(payload):
        return payload

    prefixed = msgspec.structs.replace(redis_settings, key_prefix="team:")
    async with System(prefixed, ttl=30.0) as system:
        await system.worker(app, "w")
        await system.ended(await system.submit("echo", 1))
        keys = [key.decode() for key in await redis.keys("*")]
    assert keys
    assert all(key.startswith(("team:", "{team:")) for key in keys), keys


async def test_a_partition_that_is_damaged_does_not_keep_others_from_their_groups(redis, redis_settings):
    settings = Settings(redis=redis_settings, queue=QueueSettings(name="jobs", partitions=3))
    async with Connections(settings) as connections:
        queue = connections.queue(settings.queue)
        first, *others = [partition.keys.lanes for partition in queue.partitions]
        await redis.set(first[0], "no stream")
        with pytest.raises(ResponseError, match="WRONGTYPE"):
            await queue.ensure()
        for lanes in others:
            assert [len(await redis.xinfo_groups(lane)) for lane in lanes] == [1] * len(lanes)
