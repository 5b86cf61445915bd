"""``client.schedules``, over Redis and over HTTP: the same schedules, words and errors."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from datetime import UTC, date, datetime, timedelta

import pydantic
import pytest

from holdfast import Client, Conflict, HoldfastError, InputError, NotFound, SyncClient
from holdfast.schedules.history import past_turn
from holdfast.schedules.schedule import Schedule, decoded, turn_name
from holdfast.schedules.trigger import Cron, Every
from holdfast.views.schedules import OnceView
from tests.support.schedules.manual_scheduler import Board

NIGHTLY = Schedule(name="nightly", agent="report", trigger=Cron(expression="0 3 * * *", zone="Europe/Berlin"))
HOURLY = Schedule(name="team/hourly", agent="report", trigger=Every(seconds=3600), starts_at=2_000_000_000)


@pytest.fixture
async def board(redis):
    board = Board(redis)
    await board.registry.register([NIGHTLY, HOURLY])
    return board


async def test_they_are_listed_and_read(client, board):
    assert [one.name for one in await client.schedules.list()] == ["nightly", "team/hourly"]
    assert [one.name for one in await client.schedules.list("team/*")] == ["team/hourly"]
    assert len(await client.schedules.list(limit=1)) == 1
    found = await client.schedules.get("nightly")
    assert (found.agent, found.state, found.source, found.trigger) == (
        "report",
        "waiting",
        "code",
        NIGHTLY.trigger,
    )
    assert found.next_at is not None
    assert found.next_at > time.time()


async def test_a_state_that_there_is_not_is_refused_with_those_that_there_are(client, board):
    with pytest.raises(InputError, match=r"waiting, running, paused, done, missing.*'bogus'"):
        await client.schedules.list(state="bogus")
    for state in ("", "waiting", "running", "paused", "done", "missing"):
        assert len(await client.schedules.list(state=state)) == (2 if state in {"", "waiting"} else 0)


async def test_many_are_listed_once(client, board):
    await board.add(*(f"s-{n}" for n in range(450)))
    names = [one.name for one in await client.schedules.list("s-*", limit=1000)]
    assert names == sorted(f"s-{n}" for n in range(450))


@pytest.mark.parametrize(
    ("when", "trigger"),
    [
        ({"every": "5m"}, Every(seconds=300)),
        ({"every": timedelta(minutes=5), "since": "completion"}, Every(seconds=300, since="completion")),
        ({"cron": "30 3 * * *", "tz": "Europe/Berlin"}, Cron(expression="30 3 * * *", zone="Europe/Berlin")),
        ({"at": datetime(2090, 1, 31, 7, tzinfo=UTC)}, OnceView(at=3789529200.0)),
    ],
)
async def test_one_is_made_once_and_removed(client, board, when, trigger):
    made = await client.schedules.create("made", "report", **when, input={"day": 1}, timeout="1m", priority=3)
    assert (made.name, made.agent, made.source, made.state) == ("made", "report", "api", "waiting")
    assert (made.trigger, made.priority) == (trigger, 3)
    again = await client.schedules.create(
        "made", "report", **when, input={"day": 1}, timeout="1m", priority=3
    )
    assert again == made
    with pytest.raises(Conflict, match="made"):
        await client.schedules.create("made", "report", every="6m")
    await client.schedules.remove("made")
    with pytest.raises(NotFound, match="made"):
        await client.schedules.get("made")


class Report(pydantic.BaseModel):
    day: date
    shop_id: int = pydantic.Field(serialization_alias="shop")


@dataclasses.dataclass
class Order:
    id: int
    closed_at: datetime


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (Report(day=date(2030, 1, 31), shop_id=7), {"day": "2030-01-31", "shop": 7}),
        (
            {"orders": [Order(1, datetime(2030, 1, 31, tzinfo=UTC))]},
            {"orders": [{"id": 1, "closed_at": "2030-01-31T00:00:00Z"}]},
        ),
    ],
    ids=["pydantic", "dataclass"],
)
async def test_its_input_may_be_a_model(client, board, given, stored):
    """Fails if only one of the two ways takes it."""
    made = await client.schedules.create("made", "report", every="5m", input=given)
    assert await client.schedules.create("made", "report", every="5m", input=given) == made
    assert decoded((await board.entry("made")).spec).input == stored


async def test_an_input_that_can_not_be_json_is_refused(client, board):
    with pytest.raises(InputError, match="can't be written as JSON"):
        await client.schedules.create("made", "report", every="5m", input=object())


async def test_one_is_made_that_waits_to_be_resumed(client, board):
    made = await client.schedules.create("made", "report", every=60, paused=True, reason="not yet")
    assert (made.state, made.paused) == ("paused", "not yet")
    assert (await client.schedules.resume("made")).state == "waiting"


async def test_what_can_not_be_a_schedule_is_named(client, board, subtests):
    refused = [
        ({}, "every"),
        ({"every": "5m", "cron": "* * * * *"}, "every"),
        ({"every": "soon"}, "soon"),
        ({"cron": "every day"}, "cron"),
        ({"cron": "* * * * *", "tz": "Mars/Base"}, "Mars/Base"),
        ({"at": datetime(2090, 1, 31, 7)}, "no time zone"),
        ({"every": "5m", "bogus": 1}, "bogus"),
        ({"cron": "* * * * *", "timezone": "UTC"}, r"timezone.*: did you mean `?tz`?\?$"),
        ({"every": "5m", "time_out": "1m"}, r"time_out.*: did you mean `?timeout`?\?$"),
        ({"every": "5m", "queue": "media"}, r"queue.*: did you mean `?target`?\?$"),
        ({"every": "5m", "priority": 10}, "priority"),
        ({"every": "5m", "target": "two words"}, "target"),
        ({"every": "5m", "trigger": 1}, "trigger"),
        ({"at": "soon"}, "soon"),
    ]
    for options, named in refused:
        with subtests.test(str(options)), pytest.raises(InputError, match=named):
            await client.schedules.create("made", "report", **options)
    with pytest.raises(InputError, match="empty"):
        await client.schedules.create("", "report", every=60)


async def test_a_target_that_no_settings_name_is_refused_with_those_that_they_do(client, board):
    assert (await client.schedules.create("made", "report", every=60, target="media")).target == "media"
    with pytest.raises(
        NotFound, match=r"no queue 'medai' is configured here: did you mean 'media'\? There are"
    ):
        await client.schedules.create("lost", "report", every=60, target="medai")
    assert await client.schedules.list("lost") == []


async def test_a_script_makes_and_removes_one(face, board):
    def script():
        with SyncClient(**face.here) as client:
            made = client.schedules.create("made", "report", every=60, paused=True, reason="not yet")
            client.schedules.remove("made")
            return made

    assert (await asyncio.to_thread(script)).paused == "not yet"
    assert [entry.name for entry in (await board.entries.list("made*")).entries] == []


async def test_one_of_the_code_is_not_removed(client, board):
    with pytest.raises(Conflict, match="nightly"):
        await client.schedules.remove("nightly")
    with pytest.raises(NotFound, match="nobody"):
        await client.schedules.remove("nobody")


async def test_one_is_paused_and_resumed_with_a_reason(client, board):
    paused = await client.schedules.pause("team/hourly", "the database moves")
    assert (paused.state, paused.paused) == ("paused", "the database moves")
    assert [one.name for one in await client.schedules.list(state="paused")] == ["team/hourly"]
    assert (await client.schedules.resume("team/hourly")).state == "waiting"


async def test_one_is_triggered_and_its_turns_stay(client, board):
    turn = (await board.waiting())["nightly"]
    assert await client.schedules.trigger("nightly") == "triggered"
    pod = board.pod()
    run = await pod.one()
    assert (run.name, run.triggered) == ("nightly", True)
    assert await client.schedules.trigger("nightly") == "buffered"
    assert (await client.schedules.get("nightly")).owner == "pod"
    await pod.complete(run)
    await pod.complete(await pod.one())
    assert (await board.waiting())["nightly"] == turn


async def test_the_last_error_is_told(client, board):
    await client.schedules.trigger("nightly")
    pod = board.pod()
    await pod.complete(await pod.one(), outcome="failed", error="ValueError: no", streak=1)
    found = await client.schedules.get("nightly")
    assert (found.last_outcome, found.last_error) == ("failed", "ValueError: no")
    assert found.last_error_at == found.last_end


async def test_the_next_turns_are_told(client, board):
    times = await client.schedules.next("team/hourly", 3)
    assert times == [2_000_000_000 + 3600 * n for n in range(3)]
    for count in (0, 1001):
        with pytest.raises(InputError, match="count"):
            await client.schedules.next("nightly", count)


async def test_the_past_turns_are_told(client, board):
    assert await client.schedules.turns("nightly") == []
    pod = board.pod()
    for outcome in ("succeeded", "failed"):
        await client.schedules.trigger("nightly")
        run = await pod.one()
        fault = {"error_kind": "unknown", "error": "ValueError: no"} if outcome == "failed" else {}
        await pod.complete(run, outcome=outcome, history=past_turn(run, NIGHTLY, outcome, 12.5, **fault))
    last, first = await client.schedules.turns("nightly")
    assert (first.outcome, first.error, first.duration_ms, first.manual) == ("succeeded", "", 12.5, True)
    assert (last.outcome, last.error_kind, last.error) == ("failed", "unknown", "ValueError: no")
    assert (last.turn, last.owner, last.fence) == (turn_name("nightly", run.ready), "pod", run.fence)
    assert last.planned_at <= last.started_at <= last.ended_at
    assert await client.schedules.turns("nightly", 1) == [last]
    for limit in (0, 1001):
        with pytest.raises(InputError, match="limit"):
            await client.schedules.turns("nightly", limit)


async def test_a_script_reads_the_past_turns(face, board):
    await board.make_due("team/hourly")
    pod = board.pod()
    await pod.complete(await pod.one())

    def script():
        with SyncClient(**face.here) as client:
            return client.schedules.turns("team/hourly", limit=5)

    assert [turn.outcome for turn in await asyncio.to_thread(script)] == ["succeeded"]


async def test_one_that_can_t_be_read_is_shown_all_the_same(client, board):
    await board.add("broken")
    found = await client.schedules.get("broken")
    assert (found.trigger, found.agent, found.state) == (None, "", "waiting")
    assert await client.schedules.next("broken") == []


async def test_one_that_is_not_there_is_not_found_whatever_is_asked(client, board):
    schedules = client.schedules
    reads = (schedules.get, schedules.next, schedules.turns)
    for ask in (*reads, schedules.trigger, schedules.pause, schedules.resume):
        with pytest.raises(NotFound, match="there is no schedule 'nobody'"):
            await ask("nobody")
        with pytest.raises(InputError, match="must not be empty"):
            await ask("")


async def test_what_is_away_is_said(face):
    async with Client(**face.away) as client:
        with pytest.raises(face.error):
            await client.schedules.list()


async def test_a_closed_client_has_no_schedules(face):
    with pytest.raises(HoldfastError, match="not open"):
        await Client(**face.here).schedules.get("nightly")


def test_a_script_uses_the_same_names(redis_url, redis):
    with SyncClient(redis_url) as client:
        assert client.schedules.list() == []
        for ask in (
            client.schedules.get,
            client.schedules.trigger,
            client.schedules.pause,
            client.schedules.resume,
            client.schedules.next,
            client.schedules.turns,
        ):
            with pytest.raises(NotFound):
                ask("nobody")
