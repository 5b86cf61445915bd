"""A: the scripts' contracts, and a server that forgets them."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from holdfast.redis.scripts import Script, load
from holdfast.schedules.acquisition import _acquired
from holdfast.schedules.replies import Ended, Registered, seconds, text, words
from tests.support.schedules.manual_scheduler import Board, registration

PACKAGE = "holdfast.schedules"
SCRIPTS = [
    "acquire",
    "backfill",
    "complete",
    "counts",
    "due",
    "entries",
    "give_back",
    "missing",
    "overlap",
]
SCRIPTS += ["pause", "reclaim", "register", "remove", "resume", "stop", "sweep", "trigger"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a1_every_script_says_what_it_takes_and_returns(name):
    source = load(PACKAGE, name).source
    header = source[: source.index("\nlocal ")]
    for word in ("-- KEYS ", "-- ARGV ", "-- returns"):
        assert word in header


@pytest.mark.parametrize("name", SCRIPTS)
async def test_a2_every_script_can_be_loaded(redis, name):
    script = load(PACKAGE, name)
    assert (await redis.script_load(script.source)) in {script.sha, script.sha.encode()}


async def test_a3_a_script_names_no_key_but_through_keys(redis):
    for name in SCRIPTS:
        source = load(PACKAGE, name).source
        for base in ("'waiting", "'working", "'schedule", "'cleanup-leader"):
            foreign = [line for line in source.splitlines() if base in line and "redis.call" in line]
            assert not foreign, f"{name}: {foreign}"


async def loads(redis) -> int:
    stats = await redis.info("commandstats")
    return stats.get("cmdstat_script|load", {"calls": 0})["calls"]


async def test_a4_a_forgotten_script_is_loaded_once_even_in_a_storm(redis):
    board = Board(redis)
    await board.add(*(f"s{n}" for n in range(50)))
    pods = [board.pod(f"pod{n}") for n in range(50)]
    await pods[0].acquire(0)
    await redis.script_flush("SYNC")
    before = await loads(redis)
    got = await asyncio.gather(*(pod.acquire(1) for pod in pods))
    assert sorted(run.name for runs in got for run in runs) == sorted(f"s{n}" for n in range(50))
    assert await loads(redis) - before == 1


def warnings_of_scripts(lines: list[dict]) -> list[str]:
    return [line["event"] for line in lines if line["logger"] == "holdfast.redis.scripts"]


async def test_a12_a_forgotten_script_is_told_and_one_that_is_new_to_a_server_is_not(redis, log_lines):
    script = Script("remembered", f"return {{KEYS[1], 'done'}} -- {uuid.uuid4()}")
    await script(redis, ["k"])
    assert warnings_of_scripts(log_lines()) == []
    await redis.script_flush("SYNC")
    await asyncio.gather(*(script(redis, ["k"]) for _ in range(20)))
    (said,) = warnings_of_scripts(log_lines())
    assert said.startswith("script remembered lost by Redis")


async def test_a13_a_script_that_others_have_loaded_and_that_is_forgotten_is_told(redis, log_lines):
    script = Script("shared", f"return {{KEYS[1], 'done'}} -- {uuid.uuid4()}")
    await redis.script_load(script.source)
    await script(redis, ["k"])
    await redis.script_flush("SYNC")
    await script(redis, ["k"])
    assert len(warnings_of_scripts(log_lines())) == 1


async def test_a14_sending_the_source_is_warned_of_but_not_each_time(redis, monkeypatch, log_lines):
    script = Script("forgotten", f"return {{KEYS[1], 'done'}} -- {uuid.uuid4()}")

    async def no_load(*_):
        return None

    monkeypatch.setattr(Script, "_load", no_load)
    monkeypatch.setattr("holdfast.redis.scripts._QUIET_SECONDS", 3600.0)
    script._warned_at = -3600.0
    for _ in range(3):
        await redis.script_flush("SYNC")
        await script(redis, ["k"])
    (said,) = warnings_of_scripts(log_lines())
    assert said == "script forgotten lost by Redis again: its source is sent by EVAL, which is slower"


async def test_a5_a_server_that_forgets_again_at_once_is_given_the_source(redis, monkeypatch):
    script = Script("forgotten", "return {KEYS[1], 'done'} -- never loaded")

    async def no_load(*_):
        return None

    monkeypatch.setattr(Script, "_load", no_load)
    assert await script(redis, ["k"]) == [b"k", b"done"]


async def test_a6_a_flush_between_acquire_and_complete_loses_nothing(redis):
    board = Board(redis)
    await board.add("a")
    pod = board.pod()
    run = await pod.one()
    await redis.script_flush("SYNC")
    assert await pod.complete(run) is Ended.COMPLETED


@pytest.mark.parametrize("kind", [bytes, str])
def test_a7_results_are_read_in_any_type(kind):
    def made(value):
        return value.encode() if kind is bytes else value

    reply = [made(part) for part in ("n", "17", "1.5", "2.5", "0", "3", "{}", "-", "", "2")]
    acquired = _acquired(reply, 0, 9.0)
    assert (acquired.name, acquired.fence, acquired.ready, acquired.runs) == ("n", 17, 1.5, 3)
    assert (acquired.triggered, acquired.beside, acquired.attempt) == (False, 0.0, 3)
    assert words(Registered, [made("created")]) == [Registered.CREATED]
    assert seconds(made("")) is None
    assert seconds(made("1.25")) == 1.25
    assert text(made("word")) == "word"


def test_a8_numbers_are_read_where_text_is_usual():
    acquired = _acquired([b"n", 17, 1.5, 2, 0, 3, b"{}", b"99.5", 98.5, 0], 0, 9.0)
    assert (acquired.fence, acquired.ready, acquired.deadline, acquired.triggered) == (17, 1.5, 2.0, True)
    assert acquired.beside == 98.5


async def test_a9_a_damaged_record_costs_nobody_else_anything(redis):
    """The mistake: one WRONGTYPE fails the whole batch, and every scheduler stands still."""
    board = Board(redis)
    await board.add("a", "b", "c")
    await redis.delete(board.keys.record("b"))
    await redis.set(board.keys.record("b"), "overwritten")
    runs = await board.pod().acquire()
    assert sorted(run.name for run in runs) == ["a", "b", "c"]


async def test_a10_numbers_that_are_none_are_zeros(redis):
    board = Board(redis)
    await board.add("a")
    damaged = {"fence": "abc", "streak": "many", "runs": "x", "timeout_ms": "soon", "beside": "y"}
    await redis.hset(board.keys.record("a"), mapping=damaged)
    pod = board.pod()
    run = await pod.one()
    assert (run.streak, run.runs) == (0, 0)
    assert run.fence > 0
    assert run.deadline == pytest.approx(run.acquired_at + 300)
    assert await pod.complete(run) is Ended.COMPLETED
    assert (await board.entry("a")).runs == 1


async def test_a11_large_batches_go_in_calls_that_redis_can_take(redis):
    """Lua's unpack fails near 8,000 values, and a call of many seconds stops everybody."""
    board = Board(redis)
    registered = await board.registry.put([registration(f"s{n}") for n in range(10_000)])
    assert registered == [Registered.CREATED] * 10_000
    assert len(await board.pod().acquire(10_000)) == 500
