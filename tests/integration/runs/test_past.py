"""What is said of a run that Redis does not know while the archive, which may know it, can't be asked."""

from __future__ import annotations

import msgspec
import pytest

from holdfast import Client, NotFound
from holdfast.config import ApiSettings, DatabaseSettings
from holdfast.services.api import ApiProcess
from tests.support.api.server import RunningApi, key_line
from tests.support.runs.system import System

AWAY = DatabaseSettings(url="postgresql://me:secret@127.0.0.1:1/x", timeout_seconds=0.2)
WRONG = DatabaseSettings(url="postgresql://host/x?nonsense=1")
UNASKED = "the archive, which may have it, could not be read"


@pytest.fixture
async def system(redis, redis_settings):
    async with System(redis_settings) as system:
        yield system


@pytest.mark.parametrize("database", [AWAY, WRONG], ids=["away", "wrong"])
async def test_a_client_says_that_the_archive_could_not_be_asked(system, database):
    settings = msgspec.structs.replace(system.settings, database=database)
    async with Client(settings=settings) as client:
        for call in (
            client.handle("nobody").run(),
            client.handle("nobody").result(),
            anext(client.handle("nobody").events()),
            client.cancel("nobody"),
            client.resume("nobody"),
            client.retry("nobody"),
        ):
            with pytest.raises(NotFound, match=f"nobody.*{UNASKED}") as caught:
                await call
            assert "secret" not in str(caught.value)
        # What Redis knows needs no archive.
        handle = await client.submit("echo", 1)
        assert await handle.cancel() == "cancelled"


async def test_the_api_says_that_the_archive_can_not_be_asked(system):
    """It can't know whether there was such a run, and neither says so nor where the database is."""
    serving = ApiSettings(
        port=0, linger_seconds=0.0, janitor=False, relay=False, keys=[key_line("ada", "acme", "read+submit")]
    )
    settings = msgspec.structs.replace(system.settings, api=serving, database=AWAY)
    api = await RunningApi(ApiProcess(settings)).ready()
    try:
        client = api.client("ada")
        for method, path in (
            ("GET", "nobody"),
            ("GET", "nobody/result"),
            ("GET", "nobody/explain"),
            ("GET", "nobody/events"),
            ("POST", "nobody/cancel"),
            ("POST", "nobody/resume"),
            ("POST", "nobody/retry"),
        ):
            answer = await client.request(method, f"/runs/{path}")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), answer.text
            problem = answer.json()
            assert problem["type"] == "urn:holdfast:problem:unavailable"
            assert (
                "'nobody' is not in Redis, and the archive, which may have it, can't be read now"
                in (problem["detail"])
            )
            assert "127.0.0.1" not in problem["detail"]
    finally:
        await api.close()
