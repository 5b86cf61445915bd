"""Runs that agents submit: a child knows its parent, and why it waits if all slots are its parents'."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from holdfast import App, Client, SyncClient
from holdfast.config import ApiSettings
from holdfast.redis.members import Members
from holdfast.runs.explain import explain, parents_of_waiting_runs
from holdfast.runs.run import Status
from holdfast.services.api import ApiProcess
from tests.support.api.server import RunningApi
from tests.support.runs.system import System
from tests.support.waiting import until

SLOTS = 2


def app_of(system: System, release: asyncio.Event, parents: int = 1, api_url: str = "") -> App:
    """Agents; parents submit their children once so many parents have begun, or a child would have a slot."""
    app, begun = App("families"), asyncio.Barrier(parents)

    @app.agent
    async def child(value=None):
        return value

    @app.agent
    async def parent(queue):
        async with Client(api_url=api_url or None, settings=system.settings) as client:
            await begun.wait()
            await client.submit("child", 1, queue=queue or None)
            await release.wait()

    @app.agent
    def sync_parent(run_id):
        with SyncClient(settings=system.settings) as client:
            return client.submit("child", 1, run_id=run_id).run_id

    return app


async def because(system: System, run_id: str) -> str:
    """What `holdfast runs explain` prints of a run."""
    queue = system.queue
    run, depth = await queue.get(run_id), await queue.depth()
    members = await Members.of(system.settings).all(queue.redis)
    parents = await parents_of_waiting_runs(run, queue, depth)
    return "\n".join(explain(run, await queue.gate(), depth, members, parents=parents))


async def waiting(system: System, many: int) -> list[str]:
    """The children that wait, once there are so many; parents that wait to begin are none."""

    async def children() -> list[str]:
        return [
            run.id for run in (await system.queue.list(status=Status.QUEUED)).runs if run.agent == "child"
        ]

    return await until(children, lambda found: len(found) == many)


@pytest.mark.parametrize("partitions", [1, 3])
async def test_a_child_and_parents_that_hold_every_slot_are_explained_by_the_deadlock(
    redis, redis_settings, partitions
):
    release = asyncio.Event()
    async with System(redis_settings, slots=SLOTS, partitions=partitions, ttl=30.0) as system:
        await system.worker(app_of(system, release, parents=SLOTS))
        parents = [await system.submit("parent", "") for _ in range(SLOTS)]
        child, *_ = await waiting(system, SLOTS)
        said = await until(lambda: because(system, child), lambda text: "submitted children" in text)
        assert f"all {SLOTS} running runs of queue '{system.queue.name}' have submitted children" in said
        assert "if they wait for those children, no slot will ever get free" in said
        assert "a queue of their own" in said
        for parent in parents:
            assert f"all {SLOTS} running runs of queue '{system.queue.name}'" in await because(system, parent)
        release.set()
        for run_id in (*parents, child):
            assert (await system.ended(run_id)).status is Status.SUCCEEDED


async def test_it_is_told_so_over_http_too_where_its_parents_submit_over_http(redis, redis_settings):
    release = asyncio.Event()
    async with System(redis_settings, slots=SLOTS, ttl=30.0) as system:
        serving = ApiSettings(port=0, linger_seconds=0.0, janitor=False, relay=False)
        process = ApiProcess(msgspec.structs.replace(system.settings, api=serving))
        api = await RunningApi(process).ready()
        await system.worker(app_of(system, release, parents=SLOTS, api_url=api.url))
        for _ in range(SLOTS):
            await system.submit("parent", "")
        child, *_ = await waiting(system, SLOTS)

        async def explained() -> str:
            return (await api.client().get(f"/runs/{child}/explain")).text

        await until(explained, lambda text: f"all {SLOTS} running runs" in text)
        assert "submitted children" in await because(system, child)
        release.set()
        await system.ended(child)
        await api.close()


async def test_a_run_that_waits_for_others_than_parents_is_not_told_so(redis, redis_settings):
    release = asyncio.Event()
    async with System(redis_settings, slots=SLOTS, ttl=30.0) as system:
        app = app_of(system, release)

        @app.agent
        async def alone(value=None):
            await release.wait()

        await system.worker(app)
        await system.submit("alone")
        await system.submit("parent", "")
        (child,) = await waiting(system, 1)
        await until(system.queue.depth, lambda depth: depth.oldest_seconds > 1)
        assert "submitted children" not in await because(system, child)
        release.set()
        await system.ended(child)


async def test_a_child_of_a_thread_knows_its_parent_too(redis, redis_settings):
    async with System(redis_settings, slots=SLOTS, ttl=30.0) as system:
        await system.worker(app_of(system, asyncio.Event()))
        parent = await system.submit("sync_parent", "the-child")
        await system.ended(parent)
        assert (await system.ended("the-child")).parent == parent
        assert (await system.queue.get(parent)).parent == ""
