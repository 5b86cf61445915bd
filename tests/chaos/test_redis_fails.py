"""Redis restarts, hangs, resets and loses replies: workers go on by themselves, nothing is lost or doubled."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest

from holdfast import App
from holdfast.config import RedisSettings
from holdfast.errors import RedisUnavailable
from holdfast.leases.streams import StreamLeases
from holdfast.redis.scripts import load
from holdfast.runs.run import Status, Submission
from tests.support.outages import held_up_by_redis, outage_lines
from tests.support.runs.system import System
from tests.support.waiting import stays, until

pytestmark = pytest.mark.chaos


class Seen:
    """What agents of this process did, by run and fence."""

    def __init__(self) -> None:
        self.begun: Counter[tuple[str, int]] = Counter()
        self.going = 0
        self.release = asyncio.Event()
        self.app = App("test")

        @self.app.agent
        async def work(ctx, seconds):
            self.begun[ctx.run_id, ctx.fence] += 1
            self.going += 1
            try:
                await asyncio.sleep(seconds)
            finally:
                self.going -= 1
            return ctx.fence

        @self.app.agent
        async def hold(ctx):
            self.begun[ctx.run_id, ctx.fence] += 1
            self.going += 1
            try:
                await self.release.wait()
            finally:
                self.going -= 1

    def check(self) -> None:
        assert not {key: n for key, n in self.begun.items() if n > 1}, "a run was begun twice under one fence"


async def all_succeed(system: System, tickets, seconds: float = 40.0) -> None:
    for ticket in tickets:
        run = await system.ended(ticket.run_id, seconds)
        assert run.status is Status.SUCCEEDED, run
        assert (await system.events(ticket.run_id)).count("succeeded") == 1
    await system.nothing_left()


def at(server, **changes) -> RedisSettings:
    return RedisSettings(
        url=server.tcp_url, socket_timeout_seconds=1.0, connect_timeout_seconds=1.0, **changes
    )


@pytest.mark.parametrize("away_seconds", [0.0, 3.0])
async def test_redis_is_killed_and_comes_back(restartable_valkey, away_seconds):
    seen = Seen()
    settings = RedisSettings(url=restartable_valkey.tcp_url)
    async with System(settings, slots=10, ttl=2.0, max_attempts=20) as system:
        tickets = await system.queue.submit_many([Submission(agent="work", input=0.05) for _ in range(150)])
        workers = [await system.worker(seen.app, name) for name in ("a", "b")]
        await until(lambda: len(seen.begun) > 30)
        restartable_valkey.kill()
        await asyncio.sleep(away_seconds)
        restartable_valkey.start()
        await all_succeed(system, tickets)
        assert not any(worker.task.done() for worker in workers)
        seen.check()


async def test_redis_hangs_longer_than_the_lease(restartable_valkey):
    """Every body ends before the lease can be another's, and every run is done in the end."""
    seen = Seen()
    async with System(at(restartable_valkey), slots=5, ttl=8.0, max_attempts=20) as system:
        tickets = await system.queue.submit_many([Submission(agent="hold") for _ in range(8)])
        await system.worker(seen.app)
        await until(lambda: seen.going == 5)
        restartable_valkey.freeze()
        # Nothing but the trust window of their leases ends them before Redis answers.
        await until(lambda: seen.going == 0)
        seen.release.set()
        restartable_valkey.thaw()
        await all_succeed(system, tickets)
        seen.check()


async def test_connections_are_reset_again_and_again(redis, fault_proxy, proxied_settings, redis_settings):
    seen = Seen()
    settings = msgspec.structs.replace(proxied_settings, socket_timeout_seconds=1.0)
    async with (
        System(redis_settings) as direct,
        System(settings, slots=20, ttl=2.0, max_attempts=30) as system,
    ):
        tickets = await direct.queue.submit_many([Submission(agent="work", input=0.02) for _ in range(300)])
        worker = await system.worker(seen.app)
        for _ in range(10):
            await asyncio.sleep(0.05)
            fault_proxy.reset()
        await all_succeed(direct, tickets)
        assert not worker.task.done()
        seen.check()


async def test_a_settlement_whose_reply_is_lost_is_settled_once(
    redis, fault_proxy, proxied_settings, redis_settings
):
    """Sent again, it finds its own fence settled; without that answer the result would be called stale."""
    seen = Seen()
    async with System(redis_settings) as direct, System(proxied_settings, slots=1, ttl=20.0) as system:
        running = await system.worker(seen.app)
        await direct.ended(await direct.submit("work", 0))  # so that the script is loaded
        run_id = await direct.submit("hold")
        await until(lambda: seen.going)
        fault_proxy.drop_replies(f"EVALSHA {load('holdfast.runs', 'settle').sha}")
        seen.release.set()
        run = await direct.ended(run_id)
        await until(lambda: fault_proxy.dropped)
        assert (run.status, run.attempt) == (Status.SUCCEEDED, 1)
        assert (await direct.ended(await direct.submit("work", 0))).attempt == 1
        assert (await direct.events(run_id)).count("succeeded") == 1
        assert fault_proxy.dropped == 1
        stale = "holdfast_stale_settles_refused_total", {"queue": system.settings.queue.name}
        assert running.process.metrics.registry.get_sample_value(*stale) == 0
        seen.check()


async def test_runs_that_redis_does_not_settle_are_not_more_than_the_slots(
    redis, fault_proxy, proxied_settings, redis_settings
):
    """Their slots go to other partitions then; their own, which can be claimed from, begins nothing more."""
    seen = Seen()
    silent = msgspec.structs.replace(proxied_settings, socket_timeout_seconds=60.0)
    async with System(redis_settings) as direct, System(silent, slots=2, ttl=60.0) as system:
        await system.worker(seen.app)
        await direct.ended(await direct.submit("work", 0))
        fault_proxy.drop_replies(f"EVALSHA {load('holdfast.runs', 'settle').sha}", times=100, silently=True)
        tickets = await direct.queue.submit_many([Submission(agent="work", input=0.05)] * 6)
        await until(lambda: fault_proxy.dropped)
        await stays(lambda: len(seen.begun) <= 1 + 2, seconds=3.0)
        fault_proxy.heal()
        fault_proxy.reset()
        await all_succeed(direct, tickets)
        seen.check()


async def test_a_submission_whose_reply_is_lost_is_one_run(redis, fault_proxy, proxied_settings):
    async with System(proxied_settings) as system:
        await system.submit("work")  # so that the script is loaded
        fault_proxy.drop_replies(command="EVALSHA", times=1)
        ticket = await system.queue.submit(Submission(agent="work"))
        assert ticket.fresh
        assert await redis.xlen(system.queue.keys.stream) == 2


async def test_an_event_whose_reply_is_lost_is_in_the_feed_once(
    redis, fault_proxy, proxied_settings, redis_settings
):
    app, go = App("test"), asyncio.Event()

    @app.agent
    async def talk(ctx, payload):
        await ctx.emit("first", 1)
        fault_proxy.drop_replies(command="EVALSHA", times=1)
        await ctx.emit("second", 2)
        await ctx.emit("third", 3)
        go.set()

    async with System(redis_settings) as direct, System(proxied_settings, slots=1, ttl=8.0) as system:
        await system.worker(app)
        run_id = await direct.submit("talk")
        await direct.ended(run_id)
        assert await direct.events(run_id) == [
            "submitted",
            "started",
            "first",
            "second",
            "third",
            "succeeded",
        ]


async def test_a_claim_whose_reply_is_lost_comes_back_at_once(
    redis, fault_proxy, proxied_settings, redis_settings
):
    """Fails if the worker does not ask what it holds: nobody else would begin it before its lease is over."""
    seen = Seen()
    # With a longer timeout no other claim is asked meanwhile, whose reply could be the one that is lost.
    patient = msgspec.structs.replace(proxied_settings, socket_timeout_seconds=30.0)
    async with System(redis_settings) as direct, System(patient, slots=2, ttl=24.0) as system:
        await system.worker(seen.app)
        await direct.ended(await direct.submit("work", 0))
        fault_proxy.drop_replies(f"EVALSHA {load('holdfast.runs', 'claim').sha}")
        run_id = await direct.submit("work", 0)
        run = await direct.ended(run_id)
        assert run.fence > 1, "the reply that was lost was that of its claim"
        assert (run.status, run.attempt) == (Status.SUCCEEDED, 1), "a claim nobody heard of is no attempt"
        assert run.finished_at - run.submitted_at < 12, "it waited for its lease to end"
        seen.check()


async def test_redis_away_is_said_to_the_submitter_with_a_time_to_retry(restartable_valkey):
    async with System(RedisSettings(url=restartable_valkey.tcp_url)) as system:
        sender = msgspec.structs.replace(system.settings.sender, max_retries=1, retry_delay_seconds=0.05)
        system.queue.partitions[0]._submitter._sender = sender
        restartable_valkey.kill()
        with pytest.raises(RedisUnavailable, match="agent-queue") as refused:
            await system.submit("work")
        assert refused.value.retry_after > 0
        restartable_valkey.start()
        assert (await system.queue.submit(Submission(agent="work"))).fresh


async def test_a_run_that_comes_back_to_a_worker_still_unwinding_it_does_no_harm(redis, redis_settings):
    """Known by run id alone, the new attempt is taken for the old one, and starts only when its lease has ended."""
    app, fences, unwinding = App("test"), [], asyncio.Event()

    @app.agent
    async def slow_to_end(ctx):
        fences.append(ctx.fence)
        try:
            await unwinding.wait() if len(fences) > 1 else await asyncio.Event().wait()
        finally:
            unwinding.set()
            await asyncio.sleep(1)

    async with System(redis_settings, slots=3, ttl=10.0) as system:
        worker = await system.worker(app)
        run_id = await system.submit("slow_to_end")
        await until(lambda: fences)
        keys, group = system.queue.keys, system.queue.settings.group
        impatient = StreamLeases(keys, group=group, owner="other", ttl_ms=1, turn_ms=0)
        await until(lambda: impatient.reclaim(redis))
        run = await system.ended(run_id)
        assert (run.status, fences) == (Status.SUCCEEDED, [1, 3])  # 2 was the reclaim
        assert not worker.task.done()


async def test_a_run_whose_lease_lapsed_with_redis_away_starts_again_at_once(restartable_valkey):
    """Its body ended by the trust window; nobody else took it, so it goes back as soon as Redis answers.

    A quarter of the ttl is left then for Redis to start and for the worker to notice, before anybody could reclaim it.
    """
    seen = Seen()
    async with System(at(restartable_valkey), slots=1, ttl=16.0) as system:
        await system.worker(seen.app)
        run_id = await system.submit("hold")
        await until(lambda: seen.going)
        restartable_valkey.kill()
        await until(lambda: not seen.going)
        seen.release.set()
        restartable_valkey.start()
        run = await system.ended(run_id)
        assert (run.status, run.attempt) == (Status.SUCCEEDED, 1)
        seen.check()


async def test_a_record_of_another_type_does_not_stop_the_queue(redis, redis_settings):
    """Somebody SETs a run's key: its entry goes by its own name, and neither claim nor recovery dies of it."""
    seen = Seen()
    async with System(redis_settings, slots=4, ttl=1.0, max_attempts=50) as system:
        fields = {"message_data": '{"input":0}', "agent_id": "work", "correlation_id": "abc"}
        await redis.set(system.queue.keys.run("abc"), "x")
        entry = (await redis.xadd(system.queue.keys.stream, fields)).decode()
        worker = await system.worker(seen.app)
        assert (await system.adopted(f"entry-{entry}")).status is Status.SUCCEEDED
        assert (await system.ended(await system.submit("work", 0))).status is Status.SUCCEEDED
        assert not worker.task.done()
        await redis.delete(system.queue.keys.run("abc"))


@pytest.mark.parametrize("key", ["delayed", "gate", "high", "returned"])
async def test_a_key_of_another_type_is_said_and_outlived(redis, redis_settings, key, capfd):
    seen = Seen()
    async with System(redis_settings, slots=4, ttl=1.0) as system:
        worker = await system.worker(seen.app)
        await system.ended(await system.submit("work", 0))
        name = getattr(system.queue.keys, key)
        await redis.delete(name)
        await redis.set(name, "x")
        await system.queue.redis.xadd(system.queue.keys.stream, {"agent_id": "work", "message_data": "0"})
        await stays(lambda: not worker.task.done(), seconds=1.5)
        await redis.delete(name)
        assert (await system.ended(await system.submit("work", 0), 20)).status is Status.SUCCEEDED


async def test_a_group_that_is_destroyed_under_load_comes_back(redis, redis_settings):
    seen = Seen()
    async with System(redis_settings, slots=4, ttl=1.0, max_attempts=50) as system:
        tickets = await system.queue.submit_many([Submission(agent="work", input=0.05) for _ in range(60)])
        workers = [await system.worker(seen.app, name) for name in ("a", "b")]
        for _ in range(15):
            await asyncio.sleep(0.05)
            await redis.xgroup_destroy(system.queue.keys.stream, system.queue.settings.group)
        assert not any(worker.task.done() for worker in workers)
        for ticket in tickets:
            await system.ended(ticket.run_id)
        seen.check()


async def test_a_worker_of_a_flushed_redis_leaves_in_order(redis, redis_settings):
    seen = Seen()
    async with System(redis_settings, slots=2, ttl=2.0) as system:
        worker = await system.worker(seen.app)
        await system.ended(await system.submit("work", 0))
        await redis.flushall()
        await worker.stop()


async def test_a_flushed_redis_does_not_end_its_workers(redis, redis_settings):
    seen = Seen()
    async with System(redis_settings, slots=2, ttl=2.0) as system:
        worker = await system.worker(seen.app)
        await system.ended(await system.submit("work", 0))
        await redis.flushall()
        run_id = await system.submit("work", 0)
        assert (await system.ended(run_id)).status is Status.SUCCEEDED
        assert not worker.task.done()


REFUSALS = {
    "full": (
        ("CONFIG", "SET", "maxmemory", "1mb"),
        ("CONFIG", "SET", "maxmemory", "0"),
        "raise its maxmemory",
    ),
    "a replica": (
        ("REPLICAOF", "127.0.0.1", "1"),
        ("REPLICAOF", "NO", "ONE"),
        "redis.url must lead to the master",
    ),
    "alone": (
        ("CONFIG", "SET", "min-replicas-to-write", "1"),
        ("CONFIG", "SET", "min-replicas-to-write", "0"),
        "lower its min-replicas-to-write",
    ),
}


@pytest.mark.parametrize("how", REFUSALS)
async def test_a_result_outlives_a_redis_that_takes_no_writes(restartable_valkey, how, log_lines):
    """Fails if the refusal of a settlement is taken for that of a damaged run: its work would be done again."""
    seen = Seen()
    begin, end, advice = REFUSALS[how]
    async with System(at(restartable_valkey), slots=4, ttl=30.0) as system:
        await system.worker(seen.app)
        run_ids = [await system.submit("hold") for _ in range(3)]
        await until(lambda: seen.going == 3)
        await system.queue.redis.execute_command(*begin)
        seen.release.set()
        await until(lambda: not seen.going)
        await until(lambda: "results of runs" in held_up_by_redis())
        # Not always in the first line: on a busy machine a connection may have timed out before.
        await until(
            lambda: [line.get("error", "") for line in outage_lines(log_lines())],
            lambda errors: any(advice in error for error in errors),
            what="a line that names what to mend",
        )
        await system.queue.redis.execute_command(*end)
        for run_id in run_ids:
            run = await system.ended(run_id, 30)
            assert (run.status, run.attempt, run.fence) == (Status.SUCCEEDED, 1, 1)
        assert sum(seen.begun.values()) == 3
