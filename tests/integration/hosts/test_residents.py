"""Residents: a class that lives in a process of its own, with a mailbox that outlives it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Client, Context
from holdfast.config import HostSettings, QueueSettings, RedisSettings, Settings
from holdfast.errors import Conflict, InputError, NotFound, RunFailed
from holdfast.hosts.mailbox import RECEIVE, copy_of, mailbox_of, mailbox_settings, reader_name, thread_of
from holdfast.leases.permits import Permits
from holdfast.runs.run import Status
from holdfast.services import resident
from holdfast.services.residents import Residents
from tests.support.hosts.host_processes import cluster_of
from tests.support.waiting import until

APP = str(Path(__file__).with_name("residents.py")) + ":app"


@pytest.fixture
def short_leases() -> None:
    """For tests that wait until a lease is over; in the others a busy machine must lose none."""


@pytest.fixture
async def cluster(redis, redis_settings, tmp_path, request):
    ttl_seconds = 4.0 if "short_leases" in request.fixturenames else 15.0
    async with cluster_of(redis_settings, ttl_seconds=ttl_seconds) as cluster:
        database = {"HOLDFAST_DATABASE_PATH": str(tmp_path / "state.sqlite"), "MAX_ATTEMPTS": "2"}
        await cluster.start("a", "b", app=APP, **database)
        yield cluster


@pytest.fixture
async def residents(cluster):
    async with Residents(cluster.settings) as residents:
        yield residents


async def test_a_resident_answers_and_remembers(residents):
    await residents.start("Clerk", "clerk/1", "good morning")
    first = await residents.ask("clerk/1", {"name": "Ada"})
    assert (first["said"], first["seen"], first["started"]) == ("good morning Ada", 1, True)
    second = await residents.ask("clerk/1", {"name": "Bob"})
    assert (second["seen"], second["pid"]) == (2, first["pid"])
    assert [each.agent.agent_id for each in await residents.list()] == ["clerk/1"]


async def test_a_resident_gets_the_model_that_its_receive_takes(residents):
    await residents.start("Reader", "reader")
    assert await residents.ask("reader", {"number": 1}) == {"number": 2}
    with pytest.raises(
        RunFailed, match=r"agent 'receive' of Reader: the input does not fit Letter.*`number`"
    ):
        await residents.ask("reader", {})


@pytest.mark.usefixtures("short_leases")
async def test_what_it_remembers_outlives_its_process_and_its_host(cluster, residents):
    placed = await residents.start("Clerk", "clerk")
    assert (await residents.ask("clerk", {"name": "Ada"}))["seen"] == 1
    os.kill(placed.pid, signal.SIGKILL)
    assert (await residents.ask("clerk", {"name": "Bob"}, 60))["seen"] == 2
    cluster.children[placed.host].kill()
    answer = await residents.ask("clerk", {"name": "Cid"}, 60)
    assert answer["seen"] == 3
    assert (await cluster.where("clerk")).host != placed.host


class Told:
    """What a resident's process hears of its host, and says to it."""

    agent_id, fence = "early", 1

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.said: list[str] = []
        self.until = float("inf")

    def trusted_until(self) -> float:
        return self.until

    def ready(self, **_: Any) -> None:
        self.said.append("ready")

    def report(self, kind: str, **_: Any) -> None:
        self.said.append(kind)

    async def stopped(self) -> None:
        await self.stop.wait()


async def test_one_that_is_stopped_while_it_waits_for_redis_ends_willingly(tmp_path):
    """Fails if it hears its host only once it has joined: it would have to be killed."""
    control = Told()
    app = App("early")
    ended = []

    @app.resident
    class Early:
        async def start(self) -> None:
            control.stop.set()

        async def receive(self, ctx: Context, message: Any) -> None:
            """Is never asked."""

        async def stop(self) -> None:
            ended.append(True)

    settings = Settings(redis=RedisSettings(url=f"unix://{tmp_path}/nobody"))
    async with asyncio.timeout(20):
        await resident._live(settings, app.residents["Early"], (), control)
    assert ended
    assert "ready" not in control.said


async def test_one_that_is_disowned_finishes_what_it_has_begun(redis, redis_settings):
    """The mistake: handed back in the middle, a message was received twice, and its calls paid twice."""
    control, app = Told(), App("early")
    begun, may_end = asyncio.Event(), asyncio.Event()

    @app.resident
    class Early:
        async def receive(self, ctx: Context, message: Any) -> int:
            begun.set()
            await may_end.wait()
            return ctx.attempt

    settings = Settings(redis=redis_settings, hosts=HostSettings(ttl_seconds=0.6))
    async with asyncio.timeout(60), Client(settings=settings) as client:
        living = asyncio.create_task(resident._live(settings, app.residents["Early"], (), control))
        queue, thread = mailbox_of("early"), thread_of("early")
        first = await client.submit(RECEIVE, 1, queue=queue, thread_id=thread)
        await begun.wait()
        await redis.hset("agent:early", "fence", 2)
        reader = f"member:worker:{reader_name('early', 1, os.getpid())}"
        await until(lambda: redis.hget(reader, "state"), lambda found: found == b"draining")
        second = await client.submit(RECEIVE, 2, queue=queue, thread_id=thread)
        may_end.set()
        assert await first.result() == 1
        await living
        assert await second.status() is Status.QUEUED


async def test_one_takes_no_step_after_the_end_of_the_lease_that_its_host_holds(redis, redis_settings):
    """As after a freeze: its lease on the message is kept, but the next copy may have taken that over."""
    control, app = Told(), App("early")
    steps = []

    @app.resident
    class Early:
        async def receive(self, ctx: Context, message: Any) -> None:
            steps.append("begun")
            control.until = 0.0
            await asyncio.sleep(0)
            steps.append("gone on")

    settings = Settings(redis=redis_settings, hosts=HostSettings(ttl_seconds=60.0))
    async with asyncio.timeout(60), Client(settings=settings) as client:
        living = asyncio.create_task(resident._live(settings, app.residents["Early"], (), control))
        queue, thread = mailbox_of("early"), thread_of("early")
        run = await client.submit(RECEIVE, 1, queue=queue, thread_id=thread)
        await until(lambda: steps)
        await until(run.run, lambda found: found.fence > 2 or found.status.ended, what="the next attempt")
        control.stop.set()
        await living
        assert await run.status() is Status.QUEUED
        assert steps == ["begun"], "it neither went on nor began again"


@pytest.mark.usefixtures("short_leases")
async def test_the_copy_of_a_host_that_is_stuck_leaves_when_there_is_a_later_one(cluster, residents):
    """Fails if only its host may end it: both copies would take messages, each with memories of its own."""
    placed = await residents.start("Clerk", "clerk")
    cluster.children[placed.host].freeze()  # it alone: its agents go on
    try:
        async with asyncio.timeout(60):
            await until(lambda: cluster.where("clerk"), lambda found: found.host != placed.host)
            await until(lambda: _state(placed.pid) == "Z")
        pids = {(await residents.ask("clerk", {"name": "Ada"}, 60))["pid"] for _ in range(4)}
        assert pids == {(await cluster.where("clerk")).pid}
    finally:
        cluster.children[placed.host].thaw()


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"


async def test_what_a_dead_copy_had_begun_goes_on_at_once_in_the_next(redis, redis_settings, tmp_path):
    async with cluster_of(redis_settings) as cluster:
        await cluster.start("a", app=APP, HOLDFAST_LEASE_TTL_SECONDS="600")
        async with Residents(cluster.settings) as residents:
            await residents.start("Clerk", "clerk")
            # Its lease is good for ten minutes more, and nobody waits for that.
            answer = await residents.ask("clerk", {"dies_once": str(tmp_path / "once"), "name": "Ada"}, 60)
            assert answer["said"] == "hello Ada"


async def test_an_app_that_starts_threads_runs_when_it_is_not_preloaded(redis, redis_settings, tmp_path):
    source = Path(APP.removesuffix(":app")).read_text()
    threaded = tmp_path / "threaded.py"
    threaded.write_text(
        f"{source}\nimport threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    async with cluster_of(redis_settings, ready_seconds=30.0) as cluster:
        with pytest.raises(AssertionError, match=r"starts a thread .* hosts.preload_app"):
            await cluster.start("a", app=f"{threaded}:app")
        await cluster.start("b", app=f"{threaded}:app", HOLDFAST_HOSTS_PRELOAD_APP="false")
        async with Residents(cluster.settings) as residents:
            await residents.start("Clerk", "clerk")
            assert (await residents.ask("clerk", {"name": "Ada"}))["said"] == "hello Ada"


async def test_messages_are_received_one_after_the_other_and_the_last_one_last(residents):
    await residents.start("Clerk", "clerk")
    await residents.stop("clerk")
    with pytest.raises(NotFound, match="There is no resident clerk"):
        await residents.send("clerk", {"name": "x"})
    await residents.start("Clerk", "clerk")
    for n in range(9):
        await residents.send("clerk", {"name": str(n)})
    assert (await residents.ask("clerk", {"name": "last"}, 60))["seen"] == 10


async def test_a_message_that_can_not_be_received_is_told_and_the_next_one_goes_on(residents):
    await residents.start("Clerk", "clerk")
    with pytest.raises(RunFailed, match="no such form"):
        await residents.ask("clerk", {"fails": True}, 60)
    assert (await residents.ask("clerk", {"name": "Ada"}, 60))["said"] == "hello Ada"


async def test_a_message_that_kills_is_given_up_before_the_resident_is(redis, redis_settings):
    async with cluster_of(redis_settings) as cluster:
        await cluster.start("a", app=APP)
        async with Residents(cluster.settings) as residents:
            await residents.start("Clerk", "clerk")
            with pytest.raises(RunFailed):
                await residents.ask("clerk", {"dies": True}, 60)
            assert (await residents.ask("clerk", {"name": "Ada"}, 60))["said"] == "hello Ada"
            assert (await cluster.where("clerk")).restarts == cluster.settings.hosts.max_restarts


async def test_to_ask_one_that_has_crashed_fails_at_once_and_what_is_sent_waits_for_it(
    redis, redis_settings, tmp_path
):
    async with cluster_of(redis_settings) as cluster:
        own = {"HOLDFAST_DATABASE_PATH": str(tmp_path / "state.sqlite"), "HOLDFAST_HOSTS_MAX_RESTARTS": "0"}
        await cluster.start("a", app=APP, **own)
        async with Residents(cluster.settings) as residents, Client(settings=cluster.settings) as client:
            placed = await residents.start("Clerk", "clerk")
            os.kill(placed.pid, signal.SIGKILL)
            await until(lambda: client.residents.get("clerk"), lambda found: found.status == "crashed")
            async with asyncio.timeout(30):  # a tenth of the time that an answer is waited for
                for ask in (residents.ask, client.residents.ask):
                    with pytest.raises(Conflict, match=r"'clerk' crashed.*was killed by SIGKILL"):
                        await ask("clerk", {"name": "Ada"}, 300)
            sent = await client.residents.send("clerk", {"name": "Bob"})
            await residents.start("Clerk", "clerk")
            answer = await sent.result(60)
            assert (answer["said"], answer["seen"]) == ("hello Bob", 1), "nobody was asked before"


async def test_what_is_wrong_with_a_resident_is_said(residents):
    with pytest.raises(
        InputError, match="has no resident 'Clark'; its residents: Clerk, Keeper, Mute, Reader, sick"
    ):
        await residents.start("Clark", "x")
    with pytest.raises(InputError, match="must be JSON"):
        await residents.start("Clerk", "x", object())
    with pytest.raises(InputError, match="is not an agent's id"):
        await residents.start("Clerk", "a b")
    assert await residents.list() == []


@pytest.mark.parametrize("resident", ["sick", "Mute"])
async def test_one_that_is_not_well_is_started_again(redis, redis_settings, resident):
    async with cluster_of(redis_settings, health_seconds=0.3) as cluster:
        await cluster.start("a", "b", app=APP)
        async with Residents(cluster.settings) as residents:
            placed = await residents.start(resident, "s")
            again = await until(lambda: cluster.where("s"), lambda again: again.pid != placed.pid, seconds=60)
            assert (again.host, again.restarts >= 1) == (placed.host, True)


@pytest.mark.parametrize(
    ("agent_id", "name"),
    [
        ("clerk", "mailbox:clerk"),
        ("o/g/a", "mailbox:o.2Fg.2Fa"),
        ("a.b", "mailbox:a.2Eb"),
        ("ä", "mailbox:.C3.A4"),
    ],
)
def test_every_id_has_a_mailbox_of_its_own(agent_id, name):
    assert mailbox_of(agent_id) == name


def test_a_mailbox_is_read_one_message_at_a_time_whatever_the_queues_say():
    """Not by its thread alone: that is free again when a lease is lost, and the call that had it may go on."""
    for pending in (0, 1, 256):
        settings = Settings(queue=QueueSettings(slots=50, max_pending=pending))
        mailbox = mailbox_settings(settings, "clerk")
        assert Permits(min(mailbox.slots, mailbox.max_pending)).free == 1


@pytest.mark.parametrize("agent_id", ["clerk", "o/g/a", "a:1:2", "ä" * 512, "x"])
def test_a_copy_is_known_by_the_name_of_its_reader(agent_id):
    name = reader_name(agent_id, 7, 4711)
    assert copy_of(agent_id, name) == (7, 4711)
    assert len(name) <= 200
    for other in ("", "x", "mailbox:x:7", f"{name}0:1", f"x{name}", f"{name}:", "mailbox:other:7:4711"):
        assert copy_of(agent_id, other) is None
