"""One queue over several partitions: one queue to everybody who uses it, and order per thread."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import msgspec
import pytest

from holdfast import App
from holdfast.agents.loader import load_app
from holdfast.config import BreakerSettings, QueueSettings, RedisSettings, SenderSettings
from holdfast.errors import NotFound, QueuePaused, RedisUnavailable
from holdfast.redis.breaker import breaker_for_redis
from holdfast.redis.client import DISCONNECTS, connect
from holdfast.runs.deadletter import DeadLetters
from holdfast.runs.execution.claiming import CLAIM_MOST_SECONDS, ClaimLoop
from holdfast.runs.feeds import Feeds
from holdfast.runs.queue import COUNT_SECONDS, RunQueue
from holdfast.runs.run import Priority, Status, Submission
from holdfast.services.connections import Connections
from holdfast.services.janitor import Janitor
from holdfast.telemetry.metrics import Metrics
from tests.support.runs.manual_worker import next_ms
from tests.support.runs.partitions import echo_app, in_every_partition, resized, thread_in
from tests.support.runs.system import System, WorkerChild
from tests.support.waiting import until

PATIENT = {"socket_timeout_seconds": 30.0, "connect_timeout_seconds": 30.0}
"""Where no test waits until a connection is given up: a slow machine is no outage."""


async def test_a_partitioned_queue_is_one_queue(redis, redis_settings):
    async with System(redis_settings, partitions=4, slots=4, ttl=30.0) as system:
        queue = system.queue
        ids = await in_every_partition(system, "echo")
        ids += [(await queue.submit(Submission(agent="echo", input=n))).run_id for n in range(8)]
        assert [await redis.xlen(f"agent-queue{end}") for end in ("", ".p1", ".p2", ".p3")] == [3] * 4
        depth = await queue.depth()
        assert (depth.depth, depth.undelivered) == (12, 12)
        assert {run.id for run in (await queue.list(limit=50)).runs} == set(ids)

        seen, cursor = [], ""
        while len(seen) < 12:
            page = await queue.list(limit=5, cursor=cursor)
            seen, cursor = seen + [run.id for run in page.runs], page.cursor
        assert sorted(seen) == sorted(ids), "every run once, over pages"
        assert not (await queue.list(limit=5, cursor=cursor)).runs if cursor else True
        submitted = [(await queue.get(run_id)).submitted_at for run_id in seen]
        assert submitted == sorted(submitted, reverse=True), "newest first"

        await system.worker(echo_app(), "w")
        for run_id in ids:
            assert (await system.ended(run_id)).status is Status.SUCCEEDED
            assert (await queue.get(run_id)).queue == "agent-queue"
        await system.nothing_left()
        with pytest.raises(NotFound):
            await queue.get("nobody")


async def test_what_is_done_to_a_run_finds_it_in_its_partition(redis, redis_settings):
    async with System(redis_settings, partitions=4, slots=20, ttl=30.0) as system:
        queue = system.queue
        await system.worker(echo_app(), "w")
        feeds = Feeds(queue, redis_settings)
        for run_id in await in_every_partition(system, "asks"):
            await system.reaches(run_id, Status.INTERRUPTED)
            await queue.resume_run(run_id, {"yes": run_id})
            assert (await system.ended(run_id)).result == {"yes": run_id}
            types = [event.type async for event in feeds.follow(run_id)]
            assert (types[0], types[-1]) == ("submitted", "succeeded")
            assert [event.type for event in await feeds.read(run_id)] == types
        for run_id in await in_every_partition(system, "endless"):
            await system.reaches(run_id, Status.RUNNING)
            await queue.cancel(run_id)
            assert (await system.ended(run_id)).status is Status.CANCELLED
            await queue.replay(run_id)
            await system.reaches(run_id, Status.RUNNING)
            await queue.cancel(run_id)
            await system.ended(run_id)


async def test_the_dead_letters_of_all_partitions_are_one_list(redis, redis_settings):
    async with System(redis_settings, partitions=4, max_attempts=1, ttl=30.0) as system:
        await system.worker(echo_app(), "w")
        ids = await in_every_partition(system, "fails")
        for run_id in ids:
            await system.ended(run_id)
        letters = DeadLetters(system.queue)
        page = await letters.list(limit=3)
        rest = await letters.list(limit=3, cursor=page.cursor)
        assert {letter.run_id for letter in (*page.letters, *rest.letters)} == set(ids)
        assert (await system.queue.depth()).dead == 4
        for run_id in ids:
            letter = await letters.show(run_id)
            assert letter.partition == ids.index(run_id)
            await letters.replay_letter(letter)
        # they fail again
        await until(system.queue.depth, lambda found: found.dead >= 4)
        assert len((await letters.drop_all()).done) == 4
        assert (await system.queue.depth()).dead == 0


async def test_the_gate_is_that_of_the_whole_queue(redis, redis_settings):
    async with System(redis_settings, partitions=4, ttl=30.0) as system:
        await system.queue.pause("upgrade")
        assert (await system.queue.gate()).mode == "paused"
        for n in range(4):
            with pytest.raises(QueuePaused):
                await system.submit("echo", thread_id=thread_in(n))
        await system.queue.resume()
        await system.worker(echo_app(), "w")
        for run_id in await in_every_partition(system, "echo"):
            await system.ended(run_id)
        # One partition that somebody closed alone is seen, and opened with the others.
        await system.queue.partitions[2].drain("by hand")
        assert ((await system.queue.gate()).mode, (await system.queue.depth()).paused) == ("draining", False)
        await system.queue.resume()
        assert (await system.queue.gate()).mode == "open"


async def test_a_pause_reaches_partitions_that_only_others_count_on(redis, redis_settings):
    """Fails if it goes by what was known some seconds ago."""
    async with System(redis_settings, ttl=30.0) as system:
        await system.queue.depth()  # looks around, and knows of one
        wide = resized(system, 4)
        await wide.submit("echo")
        await system.queue.pause("upgrade")
        for n in range(4):
            with pytest.raises(QueuePaused):
                await wide.submit("echo", thread_id=thread_in(n))
        await wide._connections.__aexit__(None, None, None)


async def test_the_janitor_looks_after_partitions_whoever_heard_of_them_first(redis, redis_settings):
    """Fails if what the gauges learn is no news to the rounds: nobody would sweep them."""
    async with System(redis_settings, ttl=30.0) as system, Connections(system.settings) as connections:
        janitor = Janitor(connections, Metrics())
        wide = resized(system, 4)
        await wide.submit("echo")
        await janitor._queues[0].depth()
        assert len(await janitor.run_once()) == 4
        assert len(await janitor.run_once()) == 4
        await wide._connections.__aexit__(None, None, None)


async def test_nothing_is_sent_before_it_was_said_how_many_partitions_there_are(
    redis, redis_settings, proxied_settings, fault_proxy
):
    """Fails if the word may get lost: a worker or reader that counts on one would never find the run."""
    patient = msgspec.structs.replace(proxied_settings, **PATIENT)
    async with System(redis_settings, ttl=30.0) as narrow, System(patient, partitions=4, ttl=30.0) as wide:
        fault_proxy.refuse()
        with pytest.raises(RedisUnavailable, match="did not answer"):
            await wide.submit("echo", thread_id=thread_in(3))
        fault_proxy.heal()
        run_id = await wide.submit("echo", thread_id=thread_in(3))
        assert (await narrow.queue.get(run_id)).id == run_id
        # Once it is known, the others' partitions need not wait for the first.
        wide.queue._announced_at -= COUNT_SECONDS + 1
        fault_proxy.refuse()
        with pytest.raises(RedisUnavailable, match=r"did not answer|the next try is in"):
            await wide.submit("echo", thread_id=thread_in(3))
        fault_proxy.heal()


async def test_a_run_in_a_partition_that_is_new_is_found_at_once(redis, redis_settings):
    """Fails if it is told that there is no such run, for as long as the number of partitions is trusted."""
    async with (
        System(redis_settings, ttl=30.0) as narrow,
        System(redis_settings, partitions=4, ttl=30.0) as wide,
    ):
        await narrow.queue.depth()  # from here on it counts on one, for some seconds
        run_id = await wide.submit("echo", thread_id=thread_in(3))
        assert (await narrow.queue.get(run_id)).id == run_id
        assert await narrow.queue.cancel(run_id) == "cancelled"


async def test_a_look_that_failed_is_not_what_is_known(redis, redis_settings, proxied_settings, fault_proxy):
    """Fails if nothing is asked for some seconds after it: the depth would be 0 with a run in the fourth."""
    patient = msgspec.structs.replace(proxied_settings, **PATIENT)
    async with System(redis_settings, partitions=4, ttl=30.0) as wide, System(patient, ttl=30.0) as narrow:
        run_id = await wide.submit("echo", thread_id=thread_in(3))
        fault_proxy.refuse()
        with pytest.raises(DISCONNECTS):
            await narrow.queue.depth()
        fault_proxy.heal()
        assert (await narrow.queue.depth()).undelivered == 1
        assert (await narrow.queue.get(run_id)).id == run_id
        # What somebody wrote there who is none of us says nothing.
        await redis.zadd(narrow.queue.keys.partitions, {"inf": 1, "1e300": 1, "-3": 1, "many": 1})
        assert len(await RunQueue(narrow.settings.queue, redis).all_partitions()) == 4


async def test_asking_twice_finds_the_same_run(redis, redis_settings):
    """By its id, by its idempotency key, and with a concurrency key too."""
    async with System(redis_settings, partitions=8, ttl=30.0) as system:
        queue = system.queue
        for n in range(20):
            for given in (
                {"run_id": f"run-{n}"},
                {"idempotency_key": f"key-{n}"},
                {"idempotency_key": f"other-{n}", "concurrency_key": f"c-{n}"},
                {"idempotency_key": f"third-{n}", "thread_id": f"t-{n}"},
            ):
                first, again = [await queue.submit(Submission(agent="echo", **given)) for _ in range(2)]
                assert (first.run_id, first.fresh, again.fresh) == (again.run_id, True, False)
        many = [Submission(agent="echo", run_id=f"run-{n}") for n in range(40)]
        answers = await queue.submit_many(many)
        assert [answer.fresh for answer in answers] == [n >= 20 for n in range(40)]
        assert [answer.run_id for answer in answers] == [one.run_id for one in many]
        assert len({partition.settings.partition for partition in queue.partitions}) == 8
        assert len({(await queue.home(f"run-{n}")).keys.stream for n in range(40)}) > 4, "spread"


async def test_the_slots_are_the_workers_and_taken_in_turn(redis, redis_settings):
    """A long backlog in one partition holds up nobody, and no partition has slots of its own."""
    app, going, most, order = App("test"), 0, 0, []

    @app.agent
    async def note(partition):
        nonlocal going, most
        going += 1
        most = max(most, going)
        order.append(partition)
        await asyncio.sleep(0.002)
        going -= 1

    async with System(redis_settings, partitions=4, slots=3, ttl=30.0) as system:
        # Not by thread, which would be one after the other anyway.
        for n, count in enumerate((200, 5, 5, 5)):
            await system.queue.partitions[n].submit_many([Submission(agent="note", input=n)] * count)
        worker = await system.worker(app, "w")
        await until(lambda: len(order) == 215)
        assert most <= 3
        for n in (1, 2, 3):
            last = max(at for at, partition in enumerate(order) if partition == n)
            assert last < 120, f"partition {n} had to wait for the backlog of another: {order}"
        assert worker.process.workers[0].slots.permits.limit == 3


async def test_what_wakes_a_worker_without_a_slot_goes_to_another(redis, redis_settings):
    """All partitions are waited at with the same slots: whoever is woken with none left must not keep it."""
    app, gate, began = App("test"), asyncio.Event(), []

    @app.agent
    async def block(ctx, name):
        began.append(name)
        await gate.wait()

    # Reads and leases of a minute: nothing but the hand-back can bring a run from one worker to the other.
    async with System(redis_settings, partitions=4, slots=1, block_ms=60_000, ttl=60.0) as system:
        for number in range(4):
            await system.worker(app, f"w{number}")
        # Every reader of every worker waits, which is the harder case.
        await until(lambda: redis.info("clients"), lambda found: found["blocked_clients"] >= 16)
        for n in range(4):
            await system.submit("block", n, thread_id=thread_in(n))
        await until(lambda: len(began) == 4)
        assert sorted(began) == [0, 1, 2, 3]
        gate.set()


@pytest.mark.parametrize("seed", range(3))
async def test_the_order_of_a_thread_is_kept(redis, redis_settings, seed):
    """Whatever the threads, priorities, producers and workers: one at a time, and as they were accepted."""
    dice = random.Random(seed)
    app, begun, going = App("test"), {}, Counter()

    @app.agent
    async def note(ctx, number):
        going[ctx.thread_id] += 1
        assert going[ctx.thread_id] == 1, "two of one thread at once"
        begun.setdefault(ctx.thread_id, []).append(number)
        await asyncio.sleep(dice.choice((0, 0, 0.001, 0.003)))
        going[ctx.thread_id] -= 1

    numbers = {"partitions": dice.choice((2, 4, 7)), "slots": dice.choice((2, 5))}
    async with System(redis_settings, ttl=30.0, **numbers) as system:
        for name in ("a", "b"):
            await system.worker(app, name)
        senders = [system.queue, resized(system, system.settings.queue.partitions).queue]
        counts = {f"thread-{n}": dice.randrange(1, 12) for n in range(25)}

        async def converse(thread: str) -> None:
            for number in range(counts[thread]):
                priority = dice.choice(list(Priority))
                asked = Submission(agent="note", input=number, thread_id=thread, priority=priority)
                await dice.choice(senders).submit(asked)

        await asyncio.gather(*(converse(thread) for thread in counts))
        await until(lambda: sum(map(len, begun.values())) == sum(counts.values()))
        assert begun == {thread: list(range(count)) for thread, count in counts.items()}
        await senders[1].redis.aclose()


async def test_growing_with_work_in_flight_loses_nothing(redis, redis_settings):
    """Producers grow first, workers that count on one partition find the others; then the workers grow."""
    app, done = App("test"), Counter()

    @app.agent
    async def note(number):
        await asyncio.sleep(0.001)
        done[number] += 1

    async with System(redis_settings, partitions=1, slots=4, ttl=30.0) as system:
        old = await system.worker(app, "old")
        ids = [await system.submit("note", n, thread_id=f"t{n % 20}") for n in range(100)]
        grown = resized(system, 4)
        ids += [await grown.submit("note", n, thread_id=f"t{n % 20}") for n in range(100, 200)]
        for run_id in ids:  # also those of partitions that this worker was never told of
            assert (await grown.ended(run_id)).status is Status.SUCCEEDED
        assert {worker.partition.keys.stream for worker in old.process.workers} == {
            "agent-queue",
            *(f"agent-queue.p{n}" for n in (1, 2, 3)),
        }
        # Whoever counts on one partition sees what others have put elsewhere.
        assert (await system.queue.get(ids[-1])).status is Status.SUCCEEDED
        assert len((await system.queue.list(limit=300)).runs) == 200
        await grown.worker(app, "new")
        await old.stop()
        more = [await grown.submit("note", n) for n in range(200, 260)]
        for run_id in more:
            await grown.ended(run_id)
        assert done == dict.fromkeys(range(260), 1)
        await grown._connections.__aexit__(None, None, None)


async def test_shrinking_serves_what_is_left(redis, redis_settings):
    async with System(redis_settings, partitions=4, slots=2, ttl=30.0) as system:
        ids = [await system.submit("echo", n, thread_id=f"t{n}") for n in range(40)]
        waiting = [await system.submit("echo", 1, thread_id=thread_in(3), delay_seconds=1.5)]
        shrunk = resized(system, 2)
        await shrunk.worker(echo_app(), "w")
        for run_id in ids + waiting:
            assert (await shrunk.ended(run_id)).status is Status.SUCCEEDED
        new = [await shrunk.submit("echo", n, thread_id=f"t{n}") for n in range(40)]
        homes = {(await shrunk.queue.home(run_id)).keys.stream for run_id in new}
        assert homes == {"agent-queue", "agent-queue.p1"}, "nothing new goes to those that were removed"
        for run_id in new:
            await shrunk.ended(run_id)
        await shrunk._connections.__aexit__(None, None, None)


async def test_a_number_is_kept_while_something_is_left_or_somebody_says_it(
    redis, redis_settings, monkeypatch
):
    async with System(redis_settings, partitions=4, ttl=30.0) as system:
        await system.submit("echo", thread_id=thread_in(3))
        small = RunQueue(QueueSettings(partitions=2), redis)
        await small.look_around()
        assert await small.forget_partitions() == 4, "it was said a moment ago"
        monkeypatch.setattr("holdfast.runs.queue.FORGET_SECONDS", 0.0)
        await next_ms(small)
        assert await small.forget_partitions() == 4, "a run waits there"
        # As when it has ended, was archived and its time is over.
        await redis.delete(*await redis.keys("*agent-queue.p3*"))
        assert await small.forget_partitions() == 2
        assert len(await RunQueue(QueueSettings(), redis).all_partitions()) == 1


async def test_a_queue_without_surplus_partitions_asks_nothing_to_forget_them(redis):
    async def scripts() -> int:
        stats = await redis.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))

    queue = RunQueue(QueueSettings(partitions=2), redis)
    await queue.look_around(say=True)
    before = await scripts()
    assert await queue.forget_partitions() == 2
    assert await scripts() == before


async def test_a_killed_workers_runs_go_on_in_every_partition(redis, redis_settings, tmp_path):
    agents = tmp_path / "agents.py"
    agents.write_text(
        "import asyncio, os\n"
        "from holdfast import App\n"
        "app = App('t')\n"
        "@app.agent\n"
        "async def slow(ctx, n):\n"
        "    await ctx.emit('began', n)\n"
        "    await asyncio.sleep(float(os.environ['SLOW_SECONDS']))\n"
        "    return ctx.attempt\n"
    )
    async with System(redis_settings, partitions=4, slots=8, ttl=2.0) as system:
        partitions = {"HOLDFAST_QUEUE_PARTITIONS": "4", "WORKER_POD_MESSAGES_BATCH_SIZE": "8"}
        # Not by the attempt: on a busy machine the first worker may lose a lease, and begins that run again.
        first = WorkerChild(system.settings, f"{agents}:app", "first", SLOW_SECONDS="600", **partitions)
        second = None
        try:
            ids = await in_every_partition(system, "slow")
            ids += [await system.submit("slow", n) for n in range(4)]
            for run_id in ids:
                await system.reaches(run_id, Status.RUNNING, 30)
            second = WorkerChild(system.settings, f"{agents}:app", "second", SLOW_SECONDS="0.2", **partitions)
            first.kill()
            for run_id in ids:
                run = await system.ended(run_id, 30)
                assert run.status is Status.SUCCEEDED
                assert run.result > 1
            await system.nothing_left()
        finally:
            for child in (first, second):
                if child is not None:
                    child.close()


async def test_an_agent_in_its_own_process_speaks_in_its_runs_partition(redis, redis_settings, tmp_path):
    agents = tmp_path / "isolated.py"
    agents.write_text(
        "from holdfast import App\n"
        "app = App('t')\n"
        "@app.agent(isolation='process')\n"
        "async def asks(ctx, n):\n"
        "    await ctx.emit('began', n)\n"
        "    return await ctx.interrupt(n)\n"
    )
    async with System(redis_settings, partitions=4, slots=4, ttl=30.0) as system:
        await system.worker(load_app(f"{agents}:app"), "w")
        feeds = Feeds(system.queue, redis_settings)
        for n, run_id in enumerate(await in_every_partition(system, "asks")):
            await system.reaches(run_id, Status.INTERRUPTED, 30)
            assert "began" in [event.type for event in await feeds.read(run_id)]
            await system.queue.resume_run(run_id, n + 10)
            assert (await system.ended(run_id, 30)).result == n + 10


async def test_producers_do_not_each_wait_for_a_redis_that_hangs(restartable_valkey):
    """Saying how many partitions there are is behind the breaker too."""
    settings = RedisSettings(url=restartable_valkey.url, socket_timeout_seconds=0.1)
    breaker = breaker_for_redis(BreakerSettings(failure_threshold=3, cooldown_seconds=60))
    sender = SenderSettings(max_retries=1, retry_delay_seconds=0.01)
    redis = connect(settings)
    queue = RunQueue(QueueSettings(partitions=2), redis, sender=sender, breaker=breaker)
    restartable_valkey.freeze()
    try:
        for _ in range(2):
            with pytest.raises(RedisUnavailable):
                await queue.submit(Submission(agent="echo"))
        assert breaker.trips == 1
        with pytest.raises(RedisUnavailable, match="the next try is in"):
            await queue.submit(Submission(agent="echo"))
    finally:
        restartable_valkey.thaw()
        await redis.aclose()


async def test_many_producers_at_once_say_how_many_partitions_there_are_for_each_other(redis):
    queue = RunQueue(QueueSettings(partitions=2), redis)
    await redis.config_resetstat()
    await asyncio.gather(*(queue.submit(Submission(agent="echo", input=n)) for n in range(200)))
    calls = (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"]
    assert calls < 20, "200 runs are a few batches, and one says it for all"


async def test_a_slow_server_is_not_taken_for_a_hanging_one(
    redis_settings, proxied_settings, fault_proxy, monkeypatch
):
    """Three partitions share one slot, and every answer takes longer than a hanging server would keep it."""
    released: list[tuple[float, float]] = []
    release_unanswered = ClaimLoop.release_unanswered

    def release(loop: ClaimLoop, silent_seconds: float) -> int:
        claiming, last_claim_seconds = loop._claiming, loop._claim_seconds
        slots = release_unanswered(loop, silent_seconds)
        if claiming and not loop._claiming:
            released.append((time.monotonic() - loop._claiming_since, last_claim_seconds))
        return slots

    monkeypatch.setattr(ClaimLoop, "release_unanswered", release)
    slow = msgspec.structs.replace(proxied_settings, **PATIENT)
    async with (
        System(redis_settings, partitions=3, slots=1, ttl=60.0) as system,
        System(slow, partitions=3, slots=1, ttl=60.0) as beside,
    ):
        await beside.worker(echo_app())
        fault_proxy.delay(0.8)
        ids = [await system.submit("echo", n, thread_id=thread_in(n % 3, 3)) for n in range(6)]
        for run_id in ids:
            assert (await system.ended(run_id, 60)).status is Status.SUCCEEDED
        fault_proxy.heal()
    assert all(waited > min(2 * last, CLAIM_MOST_SECONDS) for waited, last in released), released


async def test_a_server_that_did_not_answer_a_claim_is_no_slow_one(patient_settings, fault_proxy):
    async with System(patient_settings, slots=1, ttl=30.0) as system:
        running = await system.worker(echo_app())
        (worker,) = running.process.workers
        await system.ended(await system.submit("echo", 1))
        await until(lambda: worker.claim_loop._claim_seconds)
        fault_proxy.refuse()
        await until(lambda: worker.claim_loop._claim_seconds == 0)
        fault_proxy.heal()


async def test_runs_of_a_thread_that_moves_to_another_partition_do_not_shut_each_other_out(
    redis, redis_settings
):
    """While the number of partitions is raised two runs of a thread may go on at once: both end.

    Fails if the store has one order for both partitions: each would refuse the other's writes again and again.
    """
    app, begun, go_on = App("test"), [], asyncio.Event()

    @app.agent
    async def talk(ctx, name):
        await ctx.state.set(name, 1)
        begun.append(name)
        await go_on.wait()
        await ctx.state.set(name, 2)
        return name

    async with System(redis_settings, partitions=1, slots=4, ttl=30.0) as system:
        grown = resized(system, 2)
        try:
            worker = await grown.worker(app, "w")
            thread = thread_in(1, 2)
            runs = [await system.submit("talk", "old", thread_id=thread)]  # a producer with the old number
            await until(lambda: "old" in begun)
            runs.append(await grown.submit("talk", "new", thread_id=thread))
            await until(lambda: "new" in begun)
            go_on.set()
            assert [(await grown.ended(run)).result for run in runs] == ["old", "new"]
            assert begun == ["old", "new"]
            await worker.stop()
        finally:
            await grown._connections.__aexit__(None, None, None)
