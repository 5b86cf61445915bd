"""The janitor: its passes under a lease, one at a time; what fails is tried again; it runs alone or inside others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from holdfast.config import JanitorSettings, LeaseSettings, QueueSettings, Settings, WorkerSettings
from holdfast.config.scaling import ScalingSettings
from holdfast.errors import LeaseLost
from holdfast.leases.keeper import Keeper
from holdfast.leases.leadership import Leadership, LeaderTask
from holdfast.redis.client import connect
from holdfast.redis.members import Member, Members
from holdfast.services.connections import Connections
from holdfast.services.janitor import Janitor
from holdfast.telemetry.metrics import Metrics
from tests.support.processes import forked
from tests.support.runs.manual_worker import Hand, bury, open_queue, submit
from tests.support.waiting import until

LOCK_SECONDS = 30.0
"""A term that no test waits out: a process that gets no CPU for a second keeps its leadership."""


def settings_of(redis, **janitor: Any) -> Settings:
    janitor = {
        "lock_ttl_seconds": LOCK_SECONDS,
        "consumer_interval_seconds": 0.02,
        "stream_interval_minutes": 0.0005,
        "idle_threshold_seconds": 0,
        **janitor,
    }
    return Settings(
        redis=redis,
        lease=LeaseSettings(ttl_seconds=LOCK_SECONDS),
        worker=WorkerSettings(heartbeat_seconds=0.1),
        janitor=JanitorSettings(**janitor),
    )


@contextlib.asynccontextmanager
async def a_janitor(settings: Settings, metrics: Metrics | None = None):
    """A janitor that runs as a task of the test, inside a process that has more to do."""
    async with Connections(settings) as connections:
        janitor = Janitor(connections, metrics or Metrics())
        task = asyncio.create_task(janitor.run())
        yield janitor
        janitor.request_stop()
        await asyncio.wait_for(task, 30)


def sample(metrics: Metrics, name: str, **labels: str) -> float:
    labels = {"queue": "agent-queue", **labels}
    return metrics.registry.get_sample_value(f"holdfast_{name}", labels) or 0.0


async def test_it_removes_ghosts_and_sweeps_by_itself(redis, redis_settings):
    queue = await open_queue(redis)
    await (await Hand(queue, "ghost").join()).claim()
    await submit(queue, "r1")
    await redis.delete(queue.keys.run("r1"))
    metrics = Metrics()
    async with a_janitor(settings_of(redis_settings), metrics):
        await until(lambda: sample(metrics, "ghost_consumers_removed_total") == 1)
        await until(lambda: sample(metrics, "retention_removed_total", kind="index") == 1)
    assert await redis.xinfo_consumers(queue.keys.stream, queue.settings.group) == []
    assert not await redis.exists(queue.keys.cleanup)


async def test_nobody_leads_for_an_archive_that_has_nothing_to_do(redis, redis_settings):
    """Fails if an idle queue costs a term, eight commands, each few seconds."""

    async def calls(name: str) -> int:
        stats = await redis.info("commandstats")
        return stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]

    queue = await open_queue(redis)
    rarely = {"consumer_interval_seconds": 600.0, "stream_interval_minutes": 10.0}
    before = await calls("hmget")
    async with a_janitor(settings_of(redis_settings, archive_interval_seconds=0.02, **rarely)):
        # A campaign and a resignation read the leader's record: cleanup and sweep do so once, when it starts.
        await until(lambda: calls("hmget"), lambda now: now >= before + 4)
        looked, terms = await calls("llen"), await calls("hmget")
        await until(lambda: calls("llen"), lambda now: now > looked + 5)
        assert await calls("hmget") == terms
        await bury(await Hand(queue, "w").join(), "r1")
        await until(lambda: redis.exists(queue.keys.unarchived), lambda found: not found)


async def test_a_term_that_was_granted_while_the_janitor_was_told_to_stop_is_over(redis, redis_settings):
    """Fails if the answer to the campaign is thrown away: no janitor leads for a whole ttl."""
    queue = await open_queue(redis)
    async with Connections(settings_of(redis_settings)) as connections:
        janitor = Janitor(connections, Metrics())
        leader_task, asked = janitor._partitions[0].leader_task, asyncio.Event()
        campaign = leader_task._leadership.campaign

        async def slow(client):
            lease = await campaign(client)
            asked.set()
            await asyncio.sleep(0.05)
            return lease

        leader_task._leadership.campaign = slow
        task = asyncio.create_task(leader_task.perform(None, lambda: None))
        await asked.wait()
        assert await redis.exists(queue.keys.cleanup)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not await redis.exists(queue.keys.cleanup)


async def test_it_refreshes_the_gauges_of_every_queue(redis, redis_settings):
    hand = await Hand(await open_queue(redis), "w").join()
    await bury(hand, "r1")
    await submit(hand.queue, "r2")
    await submit(hand.queue, "r3")
    await submit(hand.queue, "r4", delay_seconds=60)
    await hand.claim()
    settings = msgspec.structs.replace(
        settings_of(redis_settings, enabled=False), queues={"other": QueueSettings(name="other")}
    )
    metrics = Metrics()
    async with a_janitor(settings, metrics):
        await until(lambda: sample(metrics, "queue_depth") == 2)
        await until(
            lambda: metrics.registry.get_sample_value("holdfast_queue_depth", {"queue": "other"}) == 0
        )
    seen = [sample(metrics, f"queue_{name}") for name in ("undelivered", "pending", "delayed", "dead")]
    assert seen == [1, 1, 1, 1]
    assert [sample(metrics, f"queue_{name}") for name in ("paused", "consumers", "max_pending")] == [
        0,
        1,
        256,
    ]


async def test_it_measures_the_streams_their_consumers_and_the_longest_running_attempt(redis, redis_settings):
    hand = await Hand(await open_queue(redis, delete_after_ack=False), "w").join()
    queue, metrics = hand.queue, Metrics()
    lost, longest, later = [await submit(queue, name) for name in ("lost", "longest", "later")]
    await redis.xadd(queue.keys.stream, {"message_data": "{}", "agent_id": "echo"})  # somebody else's
    claims = [await hand.claim() for _ in range(4)]
    for run_id, seconds in ((lost, 900), (longest, 600), (later, 60)):
        await redis.hincrby(queue.keys.run(run_id), "started_at", -seconds * 1000)
    await redis.xdel(queue.keys.stream, claims[0][0].entry)  # held, and nowhere else
    await hand.settle(hand.lease(claims[3][0]))
    await (await Hand(queue, "idler").join()).claim()
    for lane in queue.keys.lanes:
        await redis.xgroup_createconsumer(lane, queue.settings.group, "ghost")
    async with a_janitor(settings_of(redis_settings, enabled=False), metrics):
        await until(lambda: sample(metrics, "queue_longest_running_seconds") > 0)
        assert 600 <= sample(metrics, "queue_longest_running_seconds") < 900
        assert sample(metrics, "queue_length") == 3, "a finished one is kept"
        before = sample(metrics, "queue_consumer_idle_seconds")
        await until(lambda: sample(metrics, "queue_consumer_idle_seconds") > before)
        for run in (claims[1][0], claims[2][0]):
            await hand.settle(hand.lease(run))
        await until(lambda: sample(metrics, "queue_longest_running_seconds") == 0)


async def test_it_wants_no_number_of_workers_for_a_queue_that_nobody_scales(redis, redis_settings):
    """Fails if `scaling.enabled: false` lets HoldfastScaleDownStuck fire for ever."""
    fixed = QueueSettings(name="fixed", scaling=ScalingSettings(enabled=False))
    settings = msgspec.structs.replace(
        settings_of(redis_settings, enabled=False),
        queues={"fixed": fixed, "scaled": QueueSettings(name="scaled")},
    )
    metrics = Metrics()

    def wanted(queue: str) -> float | None:
        return metrics.registry.get_sample_value("holdfast_scaling_wanted", {"queue": queue})

    async with a_janitor(settings, metrics):
        await until(lambda: wanted("scaled") == 0)
        await until(
            lambda: metrics.registry.get_sample_value("holdfast_queue_depth", {"queue": "fixed"}) == 0
        )
    assert wanted("fixed") is None


async def test_it_counts_the_workers_that_live(redis, redis_settings):
    queue, metrics = await open_queue(redis), Metrics()
    await Hand(queue, "ghost").join()
    members = Members(prefix="", heartbeat_seconds=60)
    await members.announce(redis, Member("worker", "w1", {"queues": f"other,{queue.name}"}))
    await members.announce(redis, Member("worker", "w2", {"queues": "other"}))
    await members.announce(redis, Member("janitor", "j", {"queues": queue.name}))
    async with a_janitor(settings_of(redis_settings, enabled=False), metrics):
        await until(lambda: sample(metrics, "queue_workers") == 1)
        await until(lambda: sample(metrics, "queue_consumers") == 1)


async def test_it_is_a_member_while_it_runs(redis, redis_settings):
    members = Members(prefix="", heartbeat_seconds=0.1)
    async with a_janitor(settings_of(redis_settings)) as janitor:
        await until(lambda: members.alive(redis, "janitor", janitor.name))
    assert not await members.alive(redis, "janitor", janitor.name)


async def test_a_disabled_janitor_changes_nothing(redis, redis_settings):
    queue = await open_queue(redis)
    await Hand(queue, "ghost").join()
    metrics = Metrics()
    async with a_janitor(settings_of(redis_settings, enabled=False), metrics):
        await until(
            lambda: metrics.registry.get_sample_value("holdfast_queue_depth", {"queue": queue.name}) == 0
        )
    assert len(await redis.xinfo_consumers(queue.keys.stream, queue.settings.group)) == 1


async def test_a_dry_janitor_only_says_what_it_would_do(redis, redis_settings, log_lines):
    queue = await open_queue(redis)
    await Hand(queue, "ghost").join()
    metrics = Metrics()
    async with a_janitor(settings_of(redis_settings, dry_run=True), metrics):
        await until(lambda: sum("(dry run)" in line["event"] for line in log_lines()) > 2)
    assert sample(metrics, "ghost_consumers_found_total") == 1
    assert sample(metrics, "ghost_consumers_removed_total") == 0
    assert len(await redis.xinfo_consumers(queue.keys.stream, queue.settings.group)) == 1


async def test_a_pass_that_fails_is_counted_and_tried_again(redis, redis_settings):
    queue = await open_queue(redis)
    await redis.set(queue.keys.runs, "not an index")
    metrics = Metrics()
    async with a_janitor(settings_of(redis_settings), metrics):
        await until(lambda: sample(metrics, "cleanup_errors_total") >= 2)
        await redis.delete(queue.keys.runs)
        await submit(queue, "r1")
        await redis.delete(queue.keys.run("r1"))
        await until(lambda: sample(metrics, "retention_removed_total", kind="index") == 1)


async def test_it_outlives_an_absence_of_redis(restartable_valkey):
    settings = settings_of(msgspec.structs.replace(Settings().redis, url=restartable_valkey.url))
    metrics = Metrics()
    async with a_janitor(settings, metrics):
        await until(
            lambda: metrics.registry.get_sample_value("holdfast_queue_depth", {"queue": "agent-queue"}) == 0
        )
        restartable_valkey.kill()
        await until(lambda: sample(metrics, "cleanup_errors_total") > 0)
        restartable_valkey.start()
        client = connect(settings.redis)
        queue = await open_queue(client)
        await Hand(queue, "ghost").join()
        await until(lambda: sample(metrics, "ghost_consumers_removed_total") == 1)
        await client.aclose()


# -- once, by hand


async def test_one_round_by_hand_does_everything_and_reports(redis, redis_settings):
    queue = await open_queue(redis)
    await Hand(queue, "ghost").join()
    await submit(queue, "r1")
    await redis.delete(queue.keys.run("r1"))
    async with Connections(settings_of(redis_settings)) as connections:
        janitor = Janitor(connections, Metrics())
        (dry,) = await janitor.run_once(dry_run=True)
        assert (dry.cleaned.would_remove, dry.swept.forgotten) == (["ghost"], 1)
        (done,) = await janitor.run_once()
        assert (done.cleaned.removed, done.swept.forgotten) == (["ghost"], 1)
        (again,) = await janitor.run_once()
        assert (again.cleaned.removed, again.swept.forgotten) == ([], 0)
    assert not await redis.exists(queue.keys.cleanup)


async def test_one_round_by_hand_waits_for_nobody_but_says_that_another_is_at_it(redis, redis_settings):
    queue = await open_queue(redis)
    async with Connections(settings_of(redis_settings)) as connections:
        janitor = Janitor(connections, Metrics())
        await redis.hset(queue.keys.cleanup, mapping={"owner": "another", "fence": 1})
        (upkeep,) = await janitor.run_once()
        assert (upkeep.cleaned, upkeep.swept) == (None, None)
        (dry,) = await janitor.run_once(dry_run=True)
        assert dry.cleaned is not None


# -- leadership


class Floor:
    """Where passes go on: it sees whether two do at once."""

    def __init__(self) -> None:
        self.here = 0
        self.passes = 0
        self.crowded = False

    async def duty(self, seconds: float = 0.003) -> str:
        self.here += 1
        self.crowded |= self.here > 1
        self.passes += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self.here -= 1
        return "done"


def leader_task(redis, key: str, owner: str, ttl: float) -> LeaderTask:
    return LeaderTask(redis, Leadership(key, owner=owner, ttl_ms=int(ttl * 1000)))


@contextlib.asynccontextmanager
async def leader_tasks(redis_settings, *names: str, ttl: float = LOCK_SECONDS):
    settings = settings_of(redis_settings)
    lease = LeaseSettings(ttl_seconds=ttl)
    async with (
        Connections(settings) as connections,
        Keeper(lease, connections.for_keeper, Metrics()) as keeper,
    ):
        queue = connections.queue(settings.queue)
        yield (
            keeper,
            [leader_task(queue.redis, queue.keys.cleanup, name, ttl) for name in names],
        )


async def test_two_janitors_never_run_a_pass_at_once(redis, redis_settings):
    """Fails if lead.lua does not look whether somebody leads."""
    floor = Floor()

    async def serve(keeper: Keeper, task: LeaderTask) -> None:
        while floor.passes < 60:
            await task.perform(keeper, floor.duty)

    async with leader_tasks(redis_settings, "a", "b", "c") as (keeper, all_of_them):
        await asyncio.gather(*(serve(keeper, task) for task in all_of_them))
    assert not floor.crowded


async def test_two_duties_of_one_janitor_wait_for_each_other(redis, redis_settings):
    """Fails without the task's lock: the second duty is skipped, as if another janitor did it."""
    floor = Floor()
    async with leader_tasks(redis_settings, "a") as (keeper, (task,)):
        done = await asyncio.gather(*(task.perform(keeper, floor.duty) for _ in range(5)))
    assert done == ["done"] * 5
    assert not floor.crowded


async def test_a_long_pass_keeps_its_leadership(redis, redis_settings):
    """Fails without the keeper: the lease ends after its ttl, and the second janitor begins beside the first."""
    floor, ttl = Floor(), 4.0  # renewed every second, trusted for three
    async with leader_tasks(redis_settings, "a", "b", ttl=ttl) as (keeper, (first, second)):
        first._longest_seconds = 60
        long_pass = asyncio.create_task(first.perform(keeper, lambda: floor.duty(ttl * 1.25)))
        await until(lambda: floor.here)

        async def the_other_tries() -> bool:
            await second.perform(keeper, floor.duty)
            return long_pass.done()

        await until(the_other_tries)
    assert long_pass.result() == "done"
    assert not floor.crowded


async def test_a_janitor_that_is_late_does_not_end_anothers_term(redis, redis_settings):
    """Fails if resign.lua does not ask whose term it is."""
    async with leader_tasks(redis_settings, "a", "b") as (keeper, (first, second)):
        key = second._leadership.key

        async def lose_the_term() -> None:
            await redis.delete(key)
            assert await second._leadership.campaign(redis)

        with contextlib.suppress(LeaseLost):  # the keeper may find out before the pass has ended
            await first.perform(keeper, lose_the_term)
    assert await redis.hget(key, "owner") == b"b"


async def test_a_hung_pass_is_cancelled_and_another_janitor_may_lead(redis, redis_settings):
    """Its lease is kept by the keeper all the time. Fails without a limit on the pass itself."""
    async with leader_tasks(redis_settings, "a", "b") as (keeper, (kept, second)):
        first = LeaderTask(redis, kept._leadership, longest_seconds=1.0)
        async with asyncio.timeout(20):
            with pytest.raises(TimeoutError):
                await first.perform(keeper, asyncio.Event().wait)
        assert await second.perform(keeper, Floor().duty) == "done"


async def test_a_janitor_that_loses_redis_stops_before_another_can_begin(
    redis, redis_settings, proxied_settings, fault_proxy
):
    """Fails without the trust window: the pass goes on while the second janitor leads."""
    floor = Floor()
    queue = await open_queue(redis)
    patient = msgspec.structs.replace(
        proxied_settings, socket_timeout_seconds=30.0, connect_timeout_seconds=30.0
    )
    async with leader_tasks(patient, "cut off", ttl=8.0) as (keeper, (first,)):
        first._longest_seconds = 60
        lonely = asyncio.create_task(first.perform(keeper, lambda: floor.duty(30)))
        await until(lambda: floor.here)
        fault_proxy.stall()
        async with leader_tasks(redis_settings, "next") as (other_keeper, (second,)):
            await until(lambda: second.perform(other_keeper, floor.duty), lambda found: found is not None)
        with pytest.raises(LeaseLost):
            await lonely
        fault_proxy.heal()
    assert not floor.crowded
    assert not await redis.exists(queue.keys.cleanup)


# -- as a process


def test_the_process_leaves_on_sigterm_with_exit_0(redis_settings, valkey_server):
    code = (
        "import sys; from holdfast.config import load; from holdfast.services.janitor import run_janitor; "
        "from holdfast.telemetry.logs import configure; s = load().settings; configure(s.log); sys.exit(run_janitor(s))"
    )
    environ = {"PATH": os.environ["PATH"], "REDIS_URL": redis_settings.url, "HOLDFAST_LOG_FORMAT": "json"}
    process = forked.Popen([sys.executable, "-c", code], env=environ, stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        assert b"janitor ready" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()
