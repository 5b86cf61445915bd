"""Scripts: assembled from files, and given again to a server that has forgotten them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.config import RedisSettings
from holdfast.errors import ScriptError
from holdfast.redis.client import DISCONNECTS, Redis, connect
from holdfast.redis.scripts import Script, load
from tests.support.redis.fault_proxy import FaultProxy
from tests.support.redis.valkey_process import ValkeyProcess
from tests.support.waiting import until

Write = Callable[..., str]


@pytest.fixture
def lua(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write files into ``lua/`` of a package and return the package's name."""
    package = tmp_path / "package_of_scripts"
    (package / "lua").mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(**files: str) -> str:
        for name, text in files.items():
            (package / "lua" / f"{name}.lua").write_text(text)
        return package.name

    yield write
    sys.modules.pop(package.name, None)


async def test_a_script_runs_with_its_keys_and_arguments(redis: Redis, lua: Write):
    script = load(lua(put="return {redis.call('SET', KEYS[1], ARGV[1]), #ARGV}"), "put")
    assert await script(redis, ["k"], ["v", "w"]) == [b"OK", 2]
    assert await redis.execute_command("GET", "k") == b"v"


def test_the_hash_is_the_one_the_server_uses():
    script = Script("one", "return 1")
    assert script.sha == hashlib.sha1(b"return 1").hexdigest()


def test_includes_are_resolved_in_place_and_once(lua: Write):
    package = lua(
        main="-- @include left\n  --  @include right  \nreturn 1",
        left="-- @include leaf\nlocal left = leaf",
        right="-- @include leaf\nlocal right = leaf",
        leaf="local leaf = 1",
    )
    lines = [line for line in load(package, "main").source.splitlines() if line]
    assert lines == ["local leaf = 1", "local left = leaf", "local right = leaf", "return 1"]


def test_markers_of_guards_are_not_sent(lua: Write):
    package = lua(
        main="-- why\n-- @include leaf\n-- guard: first\n  local x = 1 -- guard: second\nreturn x -- it is 1\n",
        leaf="local leaf = 1 -- guard: third\n",
    )
    assert load(package, "main").source == "-- why\nlocal leaf = 1\n\n  local x = 1\nreturn x -- it is 1\n"


def test_a_fragment_of_the_package_hides_a_shared_one(lua: Write, monkeypatch: pytest.MonkeyPatch):
    package = lua(main="-- @include shared\nreturn x", shared="local x = 'mine'")
    monkeypatch.setattr("holdfast.redis.scripts._SHARED", package)
    assert "mine" in load(package, "main").source


def test_a_fragment_is_found_in_the_shared_folder(
    tmp_path: Path, lua: Write, monkeypatch: pytest.MonkeyPatch
):
    other = tmp_path / "shared_scripts" / "lua"
    other.mkdir(parents=True)
    (other.parent / "__init__.py").touch()
    (other / "common.lua").write_text("local x = 'shared'")
    monkeypatch.setattr("holdfast.redis.scripts._SHARED", "shared_scripts")
    package = lua(main="-- @include common\nreturn x")
    assert load(package, "main").source == "local x = 'shared'\nreturn x"
    with pytest.raises(ScriptError, match=r"no lua/common\.lua in package_of_scripts \("):
        load(package, "common")  # a script of one's own is never taken from there by accident


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"no lua/main\.lua"),
        ({"main": "-- @include gone"}, r"no lua/gone\.lua .*main -> gone"),
        ({"main": "-- @include main"}, "main -> main"),
        ({"main": "-- @include a", "a": "-- @include b", "b": "-- @include a"}, "main -> a -> b -> a"),
        ({"main": "-- @include"}, "names no fragment"),
        ({"main": "-- @include ../keys"}, "names no fragment"),
    ],
)
def test_what_cannot_be_assembled_says_why(lua: Write, files: dict[str, str], message: str):
    with pytest.raises(ScriptError, match=message):
        load(lua(**files), "main")


@pytest.mark.parametrize("package", ["no_such_package", "", None])
def test_a_package_that_does_not_exist_is_a_script_error(package: str | None):
    with pytest.raises(ScriptError, match="main"):
        load(package, "main")


async def loads_of(redis: Redis) -> int:
    return (await redis.info("commandstats")).get("cmdstat_script|load", {}).get("calls", 0)


async def test_a_flush_during_a_hundred_calls_costs_one_load(redis: Redis):
    """The mistake: every call that meets NOSCRIPT loads the script, a storm just when Redis has restarted."""
    script = Script("count", "return redis.call('INCR', KEYS[1])")
    await script(redis, ["n"])
    await redis.execute_command("CONFIG", "RESETSTAT")
    for round_ in range(1, 6):
        await redis.execute_command("SCRIPT FLUSH")
        await asyncio.gather(*(script(redis, ["n"]) for _ in range(100)))
        assert await loads_of(redis) == round_
    assert await redis.execute_command("GET", "n") == b"501"


async def test_a_flush_between_calls_under_way_costs_one_load(redis: Redis):
    script = Script("count", "return redis.call('INCR', KEYS[1])")
    await script(redis, ["n"])
    await redis.execute_command("CONFIG", "RESETSTAT")

    async def flush() -> None:
        await redis.execute_command("SCRIPT FLUSH")

    calls = [script(redis, ["n"]) for _ in range(50)]
    await asyncio.gather(*calls, flush(), *(script(redis, ["n"]) for _ in range(50)))
    assert await redis.execute_command("GET", "n") == b"101"
    assert await loads_of(redis) <= 1


async def test_a_cancelled_loader_does_not_fail_the_others(fault_proxy: FaultProxy, redis: Redis):
    script = Script("one", "return 1 -- cancelled loader")
    client = connect(RedisSettings(url=fault_proxy.url))
    fault_proxy.stall("replies")
    first = asyncio.ensure_future(script(client))
    others = [asyncio.ensure_future(script(client)) for _ in range(10)]
    await until(lambda: fault_proxy.commands[b"CLIENT"] > 0)
    first.cancel()
    fault_proxy.heal()
    assert await asyncio.gather(*others) == [1] * 10
    await client.aclose()


async def test_a_script_that_is_forgotten_at_once_is_sent_whole(redis: Redis):
    """A server that forgets a script between its load and its call is asked with EVAL."""
    script = Script("one", "return tonumber(ARGV[1])")
    forgetful = _Forgetful(redis)
    assert await script(forgetful, [], [7]) == 7  # type: ignore[arg-type]
    assert forgetful.asked == ["EVALSHA", "SCRIPT LOAD", "EVALSHA", "EVAL"]


async def test_a_restarted_server_is_given_the_script_again(restartable_valkey: ValkeyProcess):
    client = connect(RedisSettings(url=restartable_valkey.url))
    script = Script("count", "return redis.call('INCR', KEYS[1])")
    assert await script(client, ["n"]) == 1
    restartable_valkey.restart()
    with contextlib.suppress(*DISCONNECTS):  # this one finds out
        await client.execute_command("PING")
    assert await script(client, ["n"]) == 2
    await client.aclose()


async def test_a_lost_reply_is_not_a_second_call(
    redis: Redis, patient_settings: RedisSettings, fault_proxy: FaultProxy
):
    script = Script("count", "return redis.call('INCR', KEYS[1])")
    await script(redis, ["n"])
    client = connect(patient_settings)
    fault_proxy.drop_replies("EVALSHA")
    with pytest.raises(DISCONNECTS):
        await script(client, ["n"])
    await client.aclose()
    assert await redis.execute_command("GET", "n") == b"2"


async def test_thousands_of_arguments_arrive(redis: Redis):
    script = Script("sum", "local n = 0 for _, a in ipairs(ARGV) do n = n + a end return n")
    assert await script(redis, ["k"], list(range(7000))) == sum(range(7000))


class _Forgetful:
    """Redis, with SCRIPT FLUSH before every EVALSHA."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.asked: list[str] = []

    async def execute_command(self, *args: object) -> object:
        self.asked.append(str(args[0]))
        if args[0] == "EVALSHA":
            await self._redis.execute_command("SCRIPT FLUSH")
        return await self._redis.execute_command(*args)
