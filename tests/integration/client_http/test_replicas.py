"""Replicas of the API come and go, links break: every event comes once and in order, a result comes once."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from holdfast import ApiUnavailable, App, Client, Conflict, Context
from holdfast.runs.run import Status
from tests.support.api.load_balancer import Balancer
from tests.support.redis.valkey_process import free_port
from tests.support.waiting import PATIENCE_SECONDS, stays, until

COUNT = 200


def agents(gate: asyncio.Event) -> App:
    app = App("tests")

    @app.agent
    async def count(ctx: Context, value):
        for number in range(COUNT // 2):
            await ctx.emit("number", number)
        await gate.wait()
        for number in range(COUNT // 2, COUNT):
            await ctx.emit("number", number)
        return "done"

    @app.agent
    async def ask(ctx: Context, value):
        return [await ctx.interrupt(1), await ctx.interrupt(2)]

    return app


class Following:
    """Follows a run on a task, and keeps what it sees."""

    def __init__(self, handle) -> None:
        self.events = []
        self.task = asyncio.create_task(self._follow(handle))

    async def _follow(self, handle) -> None:
        async for event in handle.events():
            self.events.append(event)

    async def numbers(self) -> list[int]:
        """Everything that was seen, once it has ended."""
        await asyncio.wait_for(self.task, 30)
        assert self.events[-1].type == "succeeded"
        return [event.data for event in self.events if event.type == "number"]

    async def half(self) -> Following:
        await until(lambda: len(self.events) >= COUNT // 2)
        assert not self.task.done()
        return self


async def test_a_replica_is_killed_while_events_are_followed(system, settings, replica):
    gate = asyncio.Event()
    first, second = replica(), replica()
    await system.worker(agents(gate))
    async with (
        Balancer(first.url, second.url) as balancer,
        Client(api_url=balancer.url, settings=settings) as client,
    ):
        handle = await client.submit("count")
        waiting = asyncio.create_task(handle.result(timeout=30))
        following = await Following(handle).half()
        await handle.status()
        first.kill()
        gate.set()
        assert await following.numbers() == list(range(COUNT))
        assert await waiting == "done"


async def test_a_replica_leaves_while_events_are_followed(system, settings, replica):
    gate = asyncio.Event()
    first, second = replica(), replica()
    await system.worker(agents(gate))
    async with (
        Balancer(first.url, second.url) as balancer,
        Client(api_url=balancer.url, settings=settings) as client,
    ):
        handle = await client.submit("count")
        waiting = asyncio.create_task(handle.result(timeout=30))
        following = await Following(handle).half()
        await handle.status()
        first.terminate()
        await until(lambda: first.process.poll() is not None)
        gate.set()
        assert await following.numbers() == list(range(COUNT))
        assert await waiting == "done"


async def test_no_replica_is_there_for_a_while(system, settings, api):
    gate = asyncio.Event()
    await system.worker(agents(gate))
    only = await api()
    async with Balancer(only.url) as balancer, Client(api_url=balancer.url, settings=settings) as client:
        handle = await client.submit("count")
        waiting = asyncio.create_task(handle.result(timeout=30))
        following = await Following(handle).half()
        await handle.status()
        await only.close()
        gate.set()
        await system.ended(handle.run_id)
        attempts = balancer.attempts
        await until(lambda: balancer.attempts > attempts + 5)
        assert not following.task.done()
        assert not waiting.done()
        balancer.ports = [int((await api()).url.rpartition(":")[2])]
        assert await following.numbers() == list(range(COUNT))
        assert await waiting == "done"


async def test_links_that_break_all_the_time_cost_no_event(system, settings, api):
    gate = asyncio.Event()
    await system.worker(agents(gate))
    # The first look may fail as often as links are cut; only after it is the API waited for without end.
    patient = msgspec.structs.replace(
        settings, client=msgspec.structs.replace(settings.client, max_retries=20)
    )
    async with (
        Balancer((await api()).url) as balancer,
        Client(api_url=balancer.url, settings=patient) as client,
    ):
        handle = await client.submit("count")
        following = Following(handle)
        waiting = asyncio.create_task(handle.result(timeout=30))
        for cuts in range(12):
            if cuts == 6:
                gate.set()
            links = balancer.links
            balancer.cut()
            await until(lambda links=links: balancer.links > links or following.task.done())
        assert await following.numbers() == list(range(COUNT))
        assert await waiting == "done"


async def test_a_redis_that_is_away_for_a_while_costs_no_event(
    system, settings, api, fault_proxy, proxied_settings
):
    gate = asyncio.Event()
    await system.worker(agents(gate))
    url = (await api(changes={"redis": proxied_settings})).url
    async with Client(api_url=url, settings=settings) as client:
        handle = await client.submit("count")
        waiting = asyncio.create_task(handle.result(timeout=30))
        following = await Following(handle).half()
        await handle.status()
        fault_proxy.refuse()
        fault_proxy.reset()
        gate.set()
        await system.ended(handle.run_id)
        fault_proxy.heal()
        assert await following.numbers() == list(range(COUNT))
        assert await waiting == "done"


# -- answers that are lost


async def test_a_run_whose_receipt_is_lost_is_accepted_once(system, settings, api):
    async with (
        Balancer((await api()).url) as balancer,
        Client(api_url=balancer.url, settings=settings) as client,
    ):
        for options in ({}, {"run_id": "a"}, {"idempotency_key": "k"}):
            balancer.lose_answers = 2
            handle = await client.submit("count", **options)
            assert balancer.lose_answers == 0
            assert await handle.status() is Status.QUEUED
            # With an id or key of the caller's own nobody can tell whether it was there before.
            assert handle.fresh is not bool(options)
        assert (await system.queue.depth()).undelivered == 3


async def test_what_would_not_be_the_same_twice_is_not_done_twice(system, settings, api):
    await system.worker(agents(asyncio.Event()))
    async with (
        Balancer((await api()).url) as balancer,
        Client(api_url=balancer.url, settings=settings) as client,
    ):
        handle = await client.submit("ask")
        await system.reaches(handle.run_id, Status.INTERRUPTED)
        balancer.lose_answers = 1
        with pytest.raises(ApiUnavailable):
            await handle.resume("one")
        run = await until(handle.run, lambda run: run.interrupt == 2)
        assert run.status is Status.INTERRUPTED
        balancer.lose_answers = 1
        assert await handle.cancel() == "cancelled"
        balancer.lose_answers = 1
        with pytest.raises(ApiUnavailable):
            await handle.retry()
        await system.reaches(handle.run_id, Status.INTERRUPTED)
        with pytest.raises(Conflict, match="interrupted"):
            await handle.retry()


async def test_what_never_arrived_is_sent_again(system, settings, api):
    only = await api(port=free_port())  # else somebody may have it before the second one
    await system.worker(agents(asyncio.Event()))
    patient = msgspec.structs.replace(settings.client, max_retries=100)
    async with Client(api_url=only.url, settings=msgspec.structs.replace(settings, client=patient)) as client:
        handle = await client.submit("ask")
        await system.reaches(handle.run_id, Status.INTERRUPTED)
        await only.close()
        answering = asyncio.create_task(handle.resume("one"))
        await stays(lambda: not answering.done(), seconds=0.2)
        await api(port=only.process.port)
        await asyncio.wait_for(answering, 30)
        assert (await handle.run()).interrupt in (None, 2)


async def test_an_api_that_never_answers_is_left(system, settings, api):
    hasty = msgspec.structs.replace(settings.client, timeout_seconds=0.1, max_retries=1)
    async with Balancer((await api()).url) as balancer:
        balancer.hold_answers = True
        hasty_settings = msgspec.structs.replace(settings, client=hasty)
        async with (
            Client(api_url=balancer.url, settings=hasty_settings) as client,
            asyncio.timeout(PATIENCE_SECONDS),
        ):
            for work in (
                client.submit("count"),
                client.handle("a").status(),
                client.cancel("a"),
                anext(client.handle("a").events()),
            ):
                with pytest.raises(ApiUnavailable, match="HOLDFAST_API_URL"):
                    await work
