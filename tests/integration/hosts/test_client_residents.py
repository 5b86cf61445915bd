"""``client.residents``, over Redis and over HTTP: the same residents, words and errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Client, InputError, NotFound, RunFailed, SyncClient
from holdfast.config import ApiSettings, ClientSettings, DatabaseSettings, RedisSettings, Settings
from holdfast.errors import Conflict, NoHost, Refused
from holdfast.hosts.agent import Needs
from holdfast.hosts.residents import resident_agent
from holdfast.services.api import ApiProcess
from tests.support.api.server import RunningApi
from tests.support.hosts.host_processes import Cluster, agent, cluster_of

APP = str(Path(__file__).with_name("residents.py")) + ":app"


@dataclass
class Shop:
    """What a Keeper is made with, as a program that starts one has it."""

    name: str
    open: bool = True


@pytest.fixture
async def cluster(redis, redis_settings) -> AsyncIterator[Cluster]:
    async with cluster_of(redis_settings) as cluster:
        yield cluster


@pytest.fixture(params=["redis", "http"])
async def given(request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path) -> AsyncIterator[Any]:
    """What a client is given to reach the system."""
    database = DatabaseSettings(path=str(tmp_path / "state.sqlite"))
    settings = msgspec.structs.replace(cluster.settings, database=database)
    if request.param == "redis":
        yield {"settings": settings}
        return
    serving = ApiSettings(port=0, linger_seconds=0.0, janitor=False, relay=False)
    api = await RunningApi(ApiProcess(msgspec.structs.replace(settings, api=serving))).ready()
    no_redis = Settings(redis=RedisSettings(url="redis://127.0.0.1:1"), client=ClientSettings(max_retries=0))
    yield {"api_url": api.url, "settings": no_redis}
    await api.close()


async def hosts(cluster: Cluster, tmp_path: Path, *names: str) -> None:
    database = {"HOLDFAST_DATABASE_PATH": str(tmp_path / "state.sqlite"), "MAX_ATTEMPTS": "1"}
    await cluster.start(*names, app=APP, **database)


async def test_a_resident_from_its_start_to_its_end(cluster, given, tmp_path):
    await hosts(cluster, tmp_path, "a", "b")
    async with Client(**given) as client:
        residents = client.residents
        made = await residents.start("Clerk", "front/clerk", "good day", needs=Needs(labels=("clerk",)))
        assert (made.id, made.name, made.status, made.entry) == (
            "front/clerk",
            "Clerk",
            "running",
            "resident",
        )
        again = await residents.start("Clerk", "front/clerk", "good day", needs=Needs(labels=("clerk",)))
        assert again.pid == made.pid
        with pytest.raises(Conflict, match="is taken"):
            await residents.start("Clerk", "front/clerk", "else")
        assert (await residents.ask("front/clerk", {"name": "Ada"}, 60))["said"] == "good day Ada"
        first = await residents.send("front/clerk", {"name": "Bob"}, idempotency_key="once")
        second = await residents.send("front/clerk", {"name": "Bob"}, idempotency_key="once")
        assert (await first.result(60), first.run_id) == (await second.result(60), second.run_id)
        assert first.queue == "mailbox:front.2Fclerk"
        with pytest.raises(RunFailed, match="no such form"):
            await residents.ask("front/clerk", {"fails": True}, 60)
        mailbox = (await residents.get("front/clerk")).mailbox
        assert (mailbox.queue, mailbox.waiting, mailbox.dead) == ("mailbox:front.2Fclerk", 0, 1)
        target = "a" if made.host == "b" else "b"
        assert (await residents.move("front/clerk", to=target)).host == target
        with pytest.raises(NotFound, match="there is no live host 'nowhere'"):
            await residents.move("front/clerk", to="nowhere")
        assert (await residents.get("front/clerk")).host == target
        stopped = await residents.stop("front/clerk")
        assert (stopped.status, stopped.host) == ("stopped", target)
        for call in (
            residents.get("front/clerk"),
            residents.stop("front/clerk"),
            residents.move("front/clerk"),
            residents.send("front/clerk", 1),
        ):
            with pytest.raises(NotFound, match="there is no resident 'front/clerk'"):
                await call


async def test_a_resident_is_made_with_the_model_that_its_class_takes(cluster, given, tmp_path):
    """Fails if a model is refused on one of the ways, or if the class gets a dict."""
    await hosts(cluster, tmp_path, "a")
    async with Client(**given) as client:
        made = await client.residents.start("Keeper", "keeper", Shop("corner"))
        assert made.input == {"name": "corner", "open": True}
        assert (await client.residents.start("Keeper", "keeper", Shop("corner"))).pid == made.pid
        assert await client.residents.ask("keeper", {"n": 1}, 60) == {"shop": "corner", "open": True, "n": 1}
        with pytest.raises(
            InputError, match=r"class of resident 'Keeper': the input does not fit Shop.*`name`"
        ):
            await client.residents.start("Keeper", "other", {"nam": "corner"})


async def test_a_resident_that_a_tenant_has_started_stays_the_tenants(cluster, tmp_path):
    await hosts(cluster, tmp_path, "a")
    await cluster.engine.run(resident_agent("clerk", "Clerk", "good day", tenant="acme"))
    async with Client(settings=cluster.settings) as client:
        again = await client.residents.start("Clerk", "clerk", "good day")
        assert (again.tenant, again.input) == ("acme", "good day")


async def test_agents_and_hosts_are_listed(cluster, given, tmp_path):
    await hosts(cluster, tmp_path, "a")
    await asyncio.gather(*(cluster.engine.run(agent(f"idle-{n}")) for n in range(5)))
    async with Client(**given) as client:
        await client.residents.start("Clerk", "clerk")
        found = await client.residents.list()
        assert (len(found), found[-1].id) == (6, "clerk")
        assert await client.agents.list() == []  # a resident's mailbox is read by a worker, of no agent
        assert [one.id for one in await client.residents.list(limit=2)] == [one.id for one in found[:2]]
        assert [one.id for one in await client.residents.list(name="Clerk", host="a")] == ["clerk"]
        assert await client.residents.list(status="crashed") == []
        with pytest.raises(InputError, match=r"placing, starting, running, stopping, crashed.*'bogus'"):
            await client.residents.list(status="bogus")
        (host,) = await client.residents.hosts()
        assert (host.name, host.state, host.capacity) == ("a", "ready", 100)
        with pytest.raises(Conflict, match="another framework"):
            await client.residents.send("idle-0", 1)


async def test_a_resident_whose_mailbox_can_not_be_read_is_shown_without(cluster, given, redis):
    await cluster.engine.registry.want(resident_agent("clerk", "Clerk", "good day"))
    await redis.set("mailbox:clerk", "not a stream")
    async with Client(**given) as client:
        found = await client.residents.get("clerk")
        assert (found.input, found.mailbox) == ("good day", None)


async def test_what_can_not_be_done_is_said(cluster, given, tmp_path):
    async with Client(**given) as client:
        with pytest.raises(NoHost, match="there is no live host"):
            await client.residents.start("Clerk", "clerk")
        assert await client.residents.hosts() == []
        with pytest.raises(InputError, match="is not an agent's id"):
            await client.residents.get("a b")
        with pytest.raises(InputError, match="JSON"):
            await client.residents.start("Clerk", "clerk", object())
        await hosts(cluster, tmp_path, "a")
        with pytest.raises(InputError, match="has no resident 'Clark'"):
            await client.residents.start("Clark", "clerk")


def test_scripts_have_the_same_words(redis, redis_settings):
    with SyncClient(settings=Settings(redis=redis_settings)) as client:
        assert client.residents.list() == []
        assert client.residents.hosts() == []
        for call in (client.residents.get, client.residents.stop, client.residents.move):
            with pytest.raises(NotFound, match="there is no resident 'x'"):
                call("x")
        for call in (client.residents.send, client.residents.ask):
            with pytest.raises(NotFound):
                call("x", 1)
        with pytest.raises(NoHost):
            client.residents.start("Clerk", "x")


async def test_redis_away_is_said():
    away = Settings(redis=RedisSettings(url="redis://127.0.0.1:1"))
    async with Client(settings=away) as client:
        for call in (client.residents.list(), client.residents.hosts(), client.residents.send("x", 1)):
            with pytest.raises(Refused, match="does not answer"):
                await call
