"""Relays that die or freeze: no event is lost, the order holds, and a zombie does not deliver beside the new owner."""

from __future__ import annotations

import asyncio
import time

import pytest

from holdfast.events.sinks import poster as _loaded_before_time_counts  # noqa: F401
from tests.support.events.event_receiver import Receiver, in_order
from tests.support.events.relays import Outside, RelayChild
from tests.support.waiting import until

pytestmark = pytest.mark.chaos


@pytest.fixture
async def receiver():
    async with Receiver() as receiver:
        yield receiver


@pytest.fixture
async def outside(redis, redis_settings, receiver, request):
    ttl = 4.0 if "short_leases" in request.fixturenames else 15.0
    # On a busy machine a receiver answers late, and a relay renews late: either would be a second delivery.
    async with Outside(
        redis_settings, receiver.url, ttl=ttl, concurrency=16, timeout_seconds=10.0
    ) as outside:
        yield outside


@pytest.fixture
def children(outside):
    started: list[RelayChild] = []

    def start() -> RelayChild:
        started.append(RelayChild(outside.settings))
        return started[-1]

    yield start
    for child in started:
        child.close()


def check(receiver, runs, count):
    """Everything arrived, in order; a repeat is only ever of the last one."""
    arrived = [got.event["id"] for got in receiver.got]
    assert in_order(arrived)
    for run in runs:
        assert list(dict.fromkeys(receiver.ids(run))) == [f"{run}/{number}" for number in range(1, count + 1)]


@pytest.mark.usefixtures("short_leases")
async def test_killed_relays_lose_nothing_and_keep_the_order(outside, receiver, children):
    runs = [await outside.run(f"r{number}") for number in range(20)]
    for round_ in range(1, 4):
        child = children()
        for run in runs:
            await outside.say(run, *["chunk"] * 40)
        wanted = (round_ - 1) * 800 + 200
        await until(lambda wanted=wanted: len(receiver.got) >= wanted)
        child.kill()
    children()
    await outside.emptied(30)
    check(receiver, runs, 120)
    repeats = len(receiver.taken) - 20 * 120
    assert repeats <= 3 * 16, "each death repeats at most what was being sent"


@pytest.mark.usefixtures("short_leases")
async def test_a_frozen_relay_that_wakes_up_moves_nothing_and_delivers_nothing_more(
    outside, receiver, children
):
    receiver.behave = lambda path, body: "hang" if len(receiver.got) == 30 else 204
    first = children()
    await outside.run("a")
    await outside.say("a", *["chunk"] * 100)
    await until(lambda: len(receiver.got) > 30)
    first.freeze()
    receiver.release()
    outside.relay("second")
    await outside.emptied(30)
    assert receiver.ids("a") == [f"a/{number}" for number in range(1, 101)]
    seen = len(receiver.got)
    await outside.say("a", *["chunk"] * 50)
    first.thaw()
    await outside.emptied(30)
    check(receiver, ["a"], 150)
    # The zombie may serve new lines now, but nothing came twice.
    assert len(receiver.got) == seen + 50


@pytest.mark.usefixtures("short_leases")
async def test_a_dead_relays_lines_are_taken_over_within_the_ttl(outside, receiver, children):
    receiver.behave = lambda path, body: "hang" if len(receiver.got) == 5 else 204
    first = children()
    await outside.run("a")
    await outside.say("a", *["chunk"] * 10)
    await until(lambda: len(receiver.got) == 6)
    first.kill()
    killed = time.monotonic()
    outside.relay("second")
    await until(lambda: len(receiver.got) > 6)
    assert time.monotonic() - killed < outside.settings.lease.ttl_seconds + 10
    await outside.emptied()
    check(receiver, ["a"], 10)


async def test_an_event_api_that_is_away_for_a_while_gets_all_of_it_in_order(outside, receiver, children):
    """Down, answering 500, hanging and resetting by turns, while events go on."""
    children()
    runs = [await outside.run(f"r{number}") for number in range(10)]
    said = 0
    for trouble in (204, 500, "hang", "reset", "down", 204):
        if trouble == "down":
            await receiver.die()
        else:
            receiver.status = trouble
        for _ in range(10):
            for run in runs:
                await outside.say(run, "chunk")
            said += 1
            await asyncio.sleep(0.02)
        if trouble == "down":
            await receiver.revive()
    await outside.emptied(40)
    check(receiver, runs, said)
    assert await outside.undelivered() == []
