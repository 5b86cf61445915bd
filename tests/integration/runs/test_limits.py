"""Limits: runs of one thread, key, tenant or agent that go on at once. The others are parked, in order."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.config import QueueSettings
from holdfast.errors import HoldfastError
from holdfast.runs.execution.claim import RunLease
from holdfast.runs.queue import RunQueue
from holdfast.runs.run import Multitask, Status, Submission
from tests.support.runs.manual_worker import Hand, events, next_ms, open_queue, submit


@pytest.fixture
async def queue(redis):
    return await open_queue(redis)


@pytest.fixture
async def hand(queue):
    return await Hand(queue, "w").join()


async def claimed(hand: Hand, count: int = 10) -> list[str]:
    return [run.run_id for run in await hand.claim(count)]


# -- agents, tenants, keys


async def test_an_agents_limit_holds_over_all_workers_and_is_first_come_first_served(queue):
    hands = [await Hand(queue, name, {"writer": 2}).join() for name in "ab"]
    for n in range(5):
        await submit(queue, f"r{n}", agent="writer")
    await submit(queue, "free", agent="reader")
    first = await hands[0].claim(10)
    assert [run.run_id for run in first] == ["r0", "r1", "free"]
    assert await claimed(hands[1]) == []
    await hands[0].settle(hands[0].lease(first[0]))
    assert await claimed(hands[1]) == ["r2"]


async def test_a_tenants_limit(redis):
    queue = await open_queue(redis, tenant_concurrency=1)
    hand = await Hand(queue, "w").join()
    for n in range(2):
        await submit(queue, f"a{n}", tenant="acme")
        await submit(queue, f"b{n}", tenant="bolt")
    assert await claimed(hand) == ["a0", "b0"]


async def test_a_concurrency_key_is_held_by_one_run(queue, hand):
    await submit(queue, "r1", concurrency_key="invoice/7")
    await submit(queue, "r2", concurrency_key="invoice/7")
    assert await claimed(hand) == ["r1"]
    await hand.settle(RunLease("r1", "w", 1), Status.FAILED)
    assert await claimed(hand) == ["r2"]


async def test_a_retry_gives_its_agents_permit_to_the_next(queue):
    hand = await Hand(queue, "w", {"writer": 1}).join()
    await submit(queue, "r1", agent="writer")
    await submit(queue, "r2", agent="writer")
    (run,) = await hand.claim(10)
    await hand.settle(hand.lease(run), Status.DELAYED, 60_000)
    assert await claimed(hand) == ["r2"]


@pytest.mark.parametrize("first", ["tenant", "agent"])
async def test_nobody_waits_for_ever_for_two_limits_that_are_never_free_together(redis, first):
    """Fails if a run that one limit turns away goes to the end of the other's line, or never keeps one for the other."""
    queue = await open_queue(redis, tenant_concurrency=1)
    hand = await Hand(queue, "w", {"writer": 1}).join()

    async def more(n: int) -> None:
        await submit(queue, f"reads{n}", agent="reader", tenant="acme")
        await submit(queue, f"writes{n}", agent="writer", tenant="bolt")

    await more(0)
    running = {run.run_id: hand.lease(run) for run in await hand.claim(10)}
    await submit(queue, "both", agent="writer", tenant="acme")
    for n in range(1, 20):
        await more(n)
        for kind in ("reads", "writes") if first == "tenant" else ("writes", "reads"):
            (ending,) = [run_id for run_id in running if run_id.startswith(kind)] or [None]
            if ending:
                await hand.settle(running.pop(ending))
            for _ in range(3):  # some are turned away, and the next in line is let in by that
                running |= {run.run_id: hand.lease(run) for run in await hand.claim(10)}
        if "both" in running:
            break
    assert n <= 4, await events(queue, "both")


async def test_a_run_that_is_turned_away_goes_before_those_that_came_later(redis):
    queue = await open_queue(redis, tenant_concurrency=1)
    hand = await Hand(queue, "w", {"writer": 1}).join()
    await submit(queue, "writes", agent="writer", tenant="bolt")
    await submit(queue, "reads", agent="reader", tenant="acme")
    leases = {run.run_id: hand.lease(run) for run in await hand.claim(10)}
    await submit(queue, "old", agent="writer", tenant="acme")
    await submit(queue, "young", agent="reader", tenant="acme")
    assert await claimed(hand) == []
    assert ((await queue.get("old")).parked, (await queue.get("young")).parked) == ("tenant:acme",) * 2
    await submit(queue, "younger", agent="writer", tenant="corp")
    assert await claimed(hand) == []
    await hand.settle(leases["reads"])
    assert await claimed(hand) == []  # the agent is busy: it keeps its place, and the tenant's permit
    assert (await queue.get("old")).parked == "agent:writer"
    await hand.settle(leases["writes"])
    assert await claimed(hand) == ["old"]


async def test_no_two_runs_wait_for_what_the_other_has(redis):
    """Fails if one that waits keeps a limit that comes after the one it waits for in their order."""
    queue = await open_queue(redis, tenant_concurrency=1)
    hand = await Hand(queue, "w", {"writer": 1}).join()
    await submit(queue, "writes", agent="writer", tenant="bolt")
    (writes,) = await hand.claim(10)
    await submit(queue, "first", agent="writer", tenant="acme")  # waits for the agent
    await submit(queue, "reads", agent="reader", tenant="acme")
    (reads,) = await hand.claim(10)
    await submit(queue, "second", agent="writer", tenant="acme")  # waits for the tenant
    assert await claimed(hand) == []
    await hand.settle(hand.lease(reads))
    assert await claimed(hand) == []  # the second has the tenant's permit now, and waits for the agent
    await hand.settle(hand.lease(writes))
    assert await claimed(hand) == []  # the first has the agent's, and waits for the tenant: it lets it go
    (second,) = await hand.claim(10)
    assert second.run_id == "second"
    await hand.settle(hand.lease(second))
    assert await claimed(hand) == ["first"]


async def parked_and_holding(queue, count: int, limit: int) -> tuple[Hand, list]:
    """A line of runs behind a limit of one worker, which goes before any has ended."""
    old = await Hand(queue, "old", {"writer": limit}).join()
    for n in range(count):
        await submit(queue, f"r{n}", agent="writer")
    return old, await old.claim(count)


async def test_a_lowered_limit_holds_for_those_that_wait_and_for_those_that_come_back(queue):
    """Fails if whoever ends lets the next one go on whatever the limit is by now."""
    old, runs = await parked_and_holding(queue, 12, 5)
    assert len(runs) == 5
    for run in runs:
        await old.hand_back(old.lease(run))  # a deployment: the same app with another limit
    new = await Hand(queue, "new", {"writer": 2}).join()
    for _ in range(6):
        running = []
        while found := await new.claim(20):
            running += found
        assert len(running) == 2
        for run in running:
            await new.settle(new.lease(run))
    assert await claimed(new) == []


async def test_a_raised_limit_is_told_by_the_first_that_goes_on(queue):
    """Fails if only one that is turned away tells the line."""
    old, (first,) = await parked_and_holding(queue, 6, 1)
    new = await Hand(queue, "new", {"writer": 4}).join()
    await old.settle(old.lease(first))
    assert await claimed(new) == ["r1"]
    assert await claimed(new) == ["r2", "r3", "r4"]


async def test_nobody_waits_for_a_limit_that_is_none_any_more(queue, redis):
    old, (first,) = await parked_and_holding(queue, 6, 1)
    new = await Hand(queue, "new").join()
    await old.settle(old.lease(first))
    (second,) = await new.claim(10)
    rest = await new.claim(10)
    assert [run.run_id for run in (second, *rest)] == ["r1", "r2", "r3", "r4", "r5"]
    for run in (second, *rest):
        await new.settle(new.lease(run))
    left = [
        key
        for key in await redis.keys("*")
        if b"holding:" in key or b"parked:" in key or key.endswith(b":most")
    ]
    assert left == []


async def test_those_that_wait_go_on_in_the_order_they_came_whoever_read_them_first(queue):
    """Fails if the line is in the order of parking: two workers that read side by side would mix it."""
    one, other = [await Hand(queue, name, {"writer": 1}).join() for name in "ab"]
    for n in range(6):
        await submit(queue, f"r{n}", agent="writer")
    woken = await other.wake() + await other.wake()  # delivered to the other one, which is slow to claim
    (first,) = await one.claim(10)
    assert first.run_id == "r2"
    await next_ms(queue)  # or the order of parking is that of their names, which is right by chance
    assert await other.claim(10, woken) == []
    order, run = [], first
    for _ in range(5):
        await one.settle(one.lease(run))
        (run,) = await one.claim(10)
        order.append(run.run_id)
    assert order == ["r0", "r1", "r3", "r4", "r5"]


async def test_a_raised_limit_lets_the_parked_ones_go_on(queue):
    tight = await Hand(queue, "tight", {"writer": 1}).join()
    for n in range(3):
        await submit(queue, f"r{n}", agent="writer")
    assert await claimed(tight) == ["r0"]
    wide = await Hand(queue, "wide", {"writer": 3}).join()
    await submit(queue, "r3", agent="writer")
    assert await claimed(wide) == []  # it is behind those that wait, and has let them go on
    assert await claimed(wide) == ["r1", "r2"]


# -- whatever happens, in whatever order

STEPS = (
    "submit",
    "claim",
    "settle",
    "retry",
    "interrupt",
    "hand_back",
    "reclaim",
    "cancel",
    "promote",
    "resume",
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(STEPS), st.integers(0, 7), st.integers(0, 2)), min_size=5, max_size=50
    )
)
async def test_no_limit_is_ever_passed_and_everything_ends(redis, steps):
    await redis.flushall()
    queue = RunQueue(QueueSettings(tenant_concurrency=2), redis)
    await queue.ensure()
    hands = [await Hand(queue, name, {"writer": 2}).join() for name in "ab"]
    leases, count = [], 0
    for step, a, b in steps:
        hand = hands[a % 2]
        try:
            match step:
                case "submit":
                    count += 1
                    await queue.submit(
                        Submission(
                            agent=("writer", "reader")[a % 2],
                            run_id=f"r{count}",
                            thread_id=("", "s", "t")[b],
                            tenant=("", "acme")[a // 2 % 2],
                            concurrency_key=("", "k")[a // 4 % 2],
                            multitask=list(Multitask)[a % 4],
                        )
                    )
                case "claim":
                    leases += [(hand, hand.lease(run)) for run in await hand.claim(1 + b)]
                case "settle" | "retry" | "interrupt" if leases:
                    holder, lease = leases.pop(a % len(leases))
                    status = {
                        "settle": Status.SUCCEEDED,
                        "retry": Status.DELAYED,
                        "interrupt": Status.INTERRUPTED,
                    }[step]
                    await holder.settle(lease, status, 1)
                case "hand_back" if leases:
                    holder, lease = leases.pop(a % len(leases))
                    await holder.hand_back(lease)
                case "reclaim":
                    await hand.reclaim_all()
                case "cancel":
                    await queue.cancel(f"r{1 + a % max(count, 1)}")
                case "resume":
                    await queue.resume_run(f"r{1 + a % max(count, 1)}", b)
                case "promote":
                    await hand.promote()
        except HoldfastError:
            pass  # refused: busy, ended, not there
        await check_limits(redis, queue)
    await finish(queue, hands, count)


async def check_limits(redis, queue) -> None:
    running: dict[str, list[str]] = {}
    for raw in await redis.keys("*:run:*"):
        if raw.endswith(b":events"):
            continue
        have = await redis.hgetall(raw)
        if have[b"status"] != b"running":
            continue
        run_id = raw.partition(b":run:")[2].decode()
        for kind, field in (
            ("thread", b"thread"),
            ("tenant", b"tenant"),
            ("key", b"key"),
            ("agent", b"agent"),
        ):
            if have.get(field):
                running.setdefault(f"{kind}:{have[field].decode()}", []).append(run_id)
    most = {"thread": 1, "key": 1, "tenant": 2, "agent": 2}
    for name, runs in running.items():
        kind, _, value = name.partition(":")
        if kind != "agent" or value == "writer":
            assert len(runs) <= most[kind], f"{name} is held by {runs}"


async def finish(queue, hands, count) -> None:
    """Let everything that is left go on: nothing is stuck."""
    for _ in range(60 + 10 * count):
        for hand in hands:
            await hand.reclaim_all()
            await hand.promote()
            for run in await hand.claim(10):
                await hand.settle(hand.lease(run))
        waiting = []
        for n in range(1, count + 1):
            try:
                run = await queue.get(f"r{n}")
            except HoldfastError:
                continue  # it was refused
            if run.status is Status.INTERRUPTED:
                await queue.resume_run(run.id, 1)
            if not run.status.ended:
                waiting.append((run.id, run.status, run.parked))
        if not waiting:
            break
    assert waiting == []
    for name in await queue.redis.smembers(queue.keys.limits):
        raise AssertionError(f"the limit {name} is still in use")
