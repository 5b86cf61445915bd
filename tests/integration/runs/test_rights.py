"""The rights that docs/operate/workers.md gives to Holdfast's user are enough, and ask for nothing that is refused."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from redis.asyncio import Redis

from holdfast.agents.app import App
from holdfast.agents.catalogue import list_agents
from holdfast.config import RedisSettings
from holdfast.errors import ConfigError
from holdfast.redis.members import Members
from holdfast.runs.run import Status
from tests.support.runs.manual_worker import expiry_without_retention, retention_of
from tests.support.runs.system import System

GUIDE = Path(__file__).parents[3] / "docs" / "operate" / "workers.md"


def rights() -> list[str]:
    """The command of the guide, as it is given there."""
    (command,) = re.findall(r"redis-cli (ACL SETUSER (?:.*\\\n)*.*)\n", GUIDE.read_text())
    return shlex.split(command.replace("\\\n", ""))


async def test_the_rights_in_the_guide_are_enough(start_valkey):
    server = start_valkey(append_only=False)
    root = Redis.from_url(server.tcp_url)
    await root.execute_command(*rights())
    app = App("test")

    @app.agent
    async def echo(value):
        return value

    url = server.tcp_url.replace("127", "holdfast:secret@127", 1)
    async with root, System(RedisSettings(url=url), ttl=30.0) as system:
        worker = await system.worker(app)
        runs = [
            await system.submit("echo", 1),
            await system.submit("echo", 2, thread_id="t", delay_seconds=0.01),
        ]
        for run_id in runs:
            assert (await system.ended(run_id)).status is Status.SUCCEEDED
        await retention_of(system.queue).run_once()
        await root.delete(system.queue.keys.unarchived)
        await expiry_without_retention(system.queue).run_once()
        worker.process.request_stop()
        await worker.task
        assert await root.execute_command("ACL", "LOG") == []
        # Whoever looks at what is left may do more.
        await root.execute_command("ACL", "SETUSER", "holdfast", "allkeys", "+@all")


async def test_a_user_that_may_not_register_the_store_is_told_which_right_it_lacks(start_valkey):
    server = start_valkey(append_only=False)
    root = Redis.from_url(server.tcp_url)
    await root.execute_command(*(word for word in rights() if word != "~registered-store"))
    url = server.tcp_url.replace("127", "holdfast:secret@127", 1)
    async with root, System(RedisSettings(url=url)) as system:
        with pytest.raises(ConfigError, match="`~registered-store` in its ACL"):
            await system.worker(App("test"))
        system.workers.clear()
        await root.execute_command("ACL", "SETUSER", "holdfast", "allkeys", "+@all")


async def test_a_user_that_may_not_write_catalogues_has_its_agents_listed_by_name(start_valkey):
    server = start_valkey(append_only=False)
    root = Redis.from_url(server.tcp_url)
    await root.execute_command(*(word for word in rights() if word != "~catalogue:*"))
    url = server.tcp_url.replace("127", "holdfast:secret@127", 1)
    app = App("test")

    @app.agent
    async def echo(value):
        """Repeat it."""
        return value

    async with root, System(RedisSettings(url=url)) as system:
        await system.worker(app)
        run_id = await system.submit("echo", 1)
        assert (await system.ended(run_id)).status is Status.SUCCEEDED
        (found,) = (await list_agents(root, Members.of(system.settings))).agents
        assert (found.name, found.description, found.workers) == ("echo", "", 1)
        await root.execute_command("ACL", "SETUSER", "holdfast", "allkeys", "+@all")


async def test_a_user_that_may_use_no_channels_ends_its_runs_once(start_valkey):
    """New users may use none. Fails if a run's end waits for its telling: it was run again and again, and never ended."""
    server = start_valkey(append_only=False)
    root = Redis.from_url(server.tcp_url)
    await root.execute_command("ACL", "SETUSER", "silent", "on", ">secret", "~*", "+@all", "resetchannels")
    app, began = App("test"), []

    @app.agent
    async def echo(ctx, value):
        began.append(value)
        await ctx.emit("said", value)
        return value

    url = server.tcp_url.replace("127", "silent:secret@127", 1)
    async with root, System(RedisSettings(url=url), ttl=30.0) as system:
        await system.worker(app)
        for value in range(50):  # so many that it is asked first who listens, too
            await system.submit("echo", value, run_id=f"r{value}")
        for value in range(50):
            assert (await system.ended(f"r{value}")).status is Status.SUCCEEDED
            assert await system.events(f"r{value}") == ["submitted", "started", "said", "succeeded"]
        await system.queue.pause("a while")
        await system.queue.resume()
        assert sorted(began) == list(range(50))
        await root.execute_command("ACL", "SETUSER", "silent", "&*")
