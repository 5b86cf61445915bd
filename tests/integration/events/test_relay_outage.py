"""A receiver that is away for long: everything arrives in the end, once each but for what was in doubt, in order.

The pauses are scaled down, not the outage: each way of failing lasts many times the longest pause, the breaker
included, so that the relay has gone through all of its steps and sits at the longest of them.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.events.event_receiver import Receiver, in_order
from tests.support.events.relays import Outside
from tests.support.waiting import until

RUNS = 10
MOST_SECONDS = 0.1
"""The longest pause between two tries, here and in ``relays.QUICK``; by default it is 60 s."""
OUTAGE_SECONDS = 12 * MOST_SECONDS
"""Each way of failing: as if a receiver failed for 12 minutes in each of them."""
TIMEOUT_SECONDS = 2.0
"""How long an answer may take: longer than one of a receiver that is well takes on a busy machine."""
WAYS = ("down", 500, "hang", "reset", 503, "down")


@pytest.fixture
async def receiver():
    async with Receiver() as receiver:
        yield receiver


async def fail(receiver: Receiver, way: int | str) -> None:
    """Fail in this way from now on."""
    if way == "down":
        await receiver.die()
        return
    receiver.status = way
    if not receiver.listens:
        await receiver.revive()


async def heal(receiver: Receiver) -> None:
    receiver.status = 204
    receiver.release()
    if not receiver.listens:
        await receiver.revive()


async def talk(outside: Outside, runs: list[str], seconds: float, count: list[int]) -> None:
    """Let every run say something now and then for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for run in runs:
            await outside.say(run, "chunk")
        count[0] += 1
        await asyncio.sleep(seconds / 20)


def check(receiver: Receiver, runs: list[str], count: int) -> None:
    wanted = list(range(1, count + 1))
    assert in_order([got.event["id"] for got in receiver.got]), (
        "no event was tried before its predecessor was taken"
    )
    for run in runs:
        taken = receiver.ids(run)
        assert [int(each.rpartition("/")[2]) for each in taken] == wanted, "each was taken once"


async def outage(
    outside: Outside, receiver: Receiver, seconds: float, *, wait: float, tried: bool = True
) -> None:
    """Every way of failing in turn while runs go on talking, then a receiver that is well.

    ``tried`` if the pauses are so short that each way is met.
    """
    runs = [await outside.run(f"r{number}") for number in range(RUNS)]
    said = [0]
    running = outside.relay()
    await talk(outside, runs, seconds / 10, said)
    await outside.emptied()
    for way in WAYS:
        await fail(receiver, way)
        before = len(receiver.got)
        await talk(outside, runs, max(seconds, 2.5 * TIMEOUT_SECONDS) if way == "hang" else seconds, said)
        if tried and way != "down":
            await until(lambda before=before: len(receiver.got) > before)
        assert await outside.waiting() >= RUNS
    await heal(receiver)
    await outside.emptied(wait)
    check(receiver, runs, said[0])
    assert await outside.undelivered() == []
    # The last pause of every run is over, and so is the breaker's: what comes now goes at once.
    await outside.say(runs[0], "chunk")
    await until(lambda: receiver.ids(runs[0])[-1:] == [f"{runs[0]}/{said[0] + 1}"])
    await running.stop()


async def test_an_outage_far_longer_than_every_pause_loses_and_reorders_nothing(
    redis, redis_settings, receiver
):
    quick = {"retry_most_seconds": MOST_SECONDS, "timeout_seconds": TIMEOUT_SECONDS}
    async with Outside(redis_settings, receiver.url, **quick) as outside:
        await outage(outside, receiver, OUTAGE_SECONDS, wait=30)


@pytest.mark.long
async def test_an_outage_of_a_minute_with_the_pauses_of_every_day(redis, redis_settings, receiver):
    """Nothing scaled down but the timeout: the settings that people run, and a real minute of failing."""
    usual = {
        "retry_first_seconds": 0.5,
        "retry_most_seconds": 60.0,
        "breaker_failures": 5,
        "breaker_seconds": 5.0,
        "poll_seconds": 0.05,
        "timeout_seconds": TIMEOUT_SECONDS,
    }
    async with Outside(redis_settings, receiver.url, **usual) as outside:
        await outage(outside, receiver, 60.0 / len(WAYS), wait=150, tried=False)
