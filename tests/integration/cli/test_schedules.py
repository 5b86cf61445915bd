"""``holdfast schedules`` and ``holdfast scheduler``, as an operator uses them."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.config import DatabaseSettings, RedisSettings
from holdfast.redis.client import connect
from holdfast.redis.keys import ScheduleKeys
from holdfast.schedules.history import past_turn
from holdfast.schedules.registry import ScheduleRegistry
from holdfast.schedules.schedule import Schedule
from holdfast.schedules.trigger import Cron, Every, Once, Trigger
from holdfast.store.open import migrate_store
from holdfast.views.schedule_options import ScheduleRequest
from tests.support.processes import forked
from tests.support.schedules.manual_scheduler import Board
from tests.support.waiting import PATIENCE_SECONDS, wait_until

APP = """
from holdfast import App
app = App("test")

@app.schedule(every="1h")
async def hello():
    print("hello from a schedule", flush=True)
"""


@pytest.fixture
def registered(redis_url):
    """Three schedules, of which nothing is due but one."""

    async def register() -> None:
        client = connect(RedisSettings(url=redis_url))
        await ScheduleRegistry(client, ScheduleKeys.of()).register(
            [
                Schedule(name="due", agent="work", trigger=Every(seconds=60)),
                Schedule(name="nightly-a", agent="work", trigger=Cron(expression="0 3 * * *")),
                Schedule(name="nightly-b", agent="work", trigger=Once(at=time.time() + 9000)),
            ]
        )
        await client.aclose()

    asyncio.run(register())


def test_they_are_listed(cli, registered):
    lines = cli("schedules", "list").out.splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [
        ["due", "waiting"],
        ["nightly-a", "waiting"],
        ["nightly-b", "waiting"],
    ]
    found = cli("schedules", "list", "nightly-*", "--json").json["schedules"]
    assert [one["name"] for one in found] == ["nightly-a", "nightly-b"]
    assert found[0]["trigger"] == {"kind": "cron", "expression": "0 3 * * *"}


def test_one_is_created_once(cli, registered):
    wanted = (
        "schedules",
        "create",
        "made",
        "work",
        '{"day": 1}',
        "--cron",
        "30 3 * * *",
        "--tz",
        "Europe/Berlin",
    )
    assert cli(*wanted).out.startswith("made created, next ")
    assert cli(*wanted).out.startswith("made already exists, next ")
    found = cli(*wanted, "--json").json
    assert (found["state"], found["input"]) == ("waiting", {"day": 1})
    assert found["trigger"] == {
        "kind": "cron",
        "expression": "30 3 * * *",
        "zone": "Europe/Berlin",
    }
    again = cli(*("--timezone" if word == "--tz" else word for word in wanted))
    assert again.out.startswith("made already exists, next ")
    assert again.err == "holdfast: no scheduler is alive now: it waits for one\n"
    another = cli("schedules", "create", "made", "work", "--every", "5m")
    assert (another.code, "made" in another.err) == (1, True)
    paused = cli("schedules", "create", "later", "work", "--every", "5m", "--paused", "--reason", "not yet")
    assert paused.out == "later created, paused\n"
    assert "not yet" in cli("schedules", "explain", "later").out


def test_one_is_created_with_every_option_that_http_has(cli, registered, place):
    """Fails if POST /schedules has an option that the command lacks."""
    (place / "holdfast.yaml").write_text("queues: {media: {}}")
    given = {
        "--every": "5m",
        "--since": "completion",
        "--queue": "media",
        "--priority": "2",
        "--timeout": "1m",
        "--error-interval": "30s",
        "--pause-after-failures": "3",
        "--starts-at": "2030-01-31T07:00Z",
        "--ends-at": "2031-01-31T07:00Z",
        "--max-runs": "9",
        "--misfire": "catch_up",
        "--catch-up-most": "4",
        "--overlap": "buffer",
        "--overlap-most": "6",
        "--metadata": "team=sales",
        "--tenant": "acme",
        "--reason": "not yet",
    }
    words = [word for pair in given.items() for word in pair]
    made = cli("schedules", "create", "made", "work", '{"day": 1}', *words, "--paused", "--json").json
    assert {name: made[name] for name in EXPECTED} == EXPECTED
    options = {option.removeprefix("--").replace("-", "_") for option in given}
    options = options - {"queue"} | {"target", "paused", "name", "agent", "input", "cron", "at", "tz"}
    assert options == set(ScheduleRequest.__struct_fields__)


EXPECTED = {
    "name": "acme/made",
    "trigger": {"kind": "every", "seconds": 300.0, "since": "completion"},
    "target": "media",
    "priority": 2,
    "timeout_seconds": 60.0,
    "error_seconds": 30.0,
    "pause_after_failures": 3,
    "starts_at": 1896073200.0,
    "ends_at": 1927609200.0,
    "max_runs": 9,
    "misfire": "catch_up",
    "catch_up_most": 4,
    "overlap": "buffer",
    "overlap_most": 6,
    "metadata": {"team": "sales"},
    "tenant": "acme",
    "paused": "not yet",
    "input": {"day": 1},
}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "give exactly one of every, cron and at"),
        (("--every", "5m", "--at", "2030-01-31T07:00Z"), "give exactly one of every, cron and at"),
        (("--every", "soon"), "soon"),
        (("--at", "2030-01-31T07:00"), "--at: '2030-01-31T07:00' has no time zone"),
        (("--every", "5m", "--tz", "Europe/Berlin"), "tz"),
        (("--every", "5m", "--queue", "two words"), "two words"),
        (("--every", "5m", "--misfire", "bogus"), "misfire"),
        (("--every", "5m", "--reason", "x"), "--paused"),
        (("{", "--every", "5m"), "JSON"),
    ],
)
def test_what_can_not_be_created_is_told(cli, registered, words, told):
    refused = cli("schedules", "create", "made", "work", *words)
    assert (refused.code != 0, told in refused.err) == (True, True), refused.err
    assert cli("schedules", "list", "made", "--json").json == {"schedules": []}


def test_one_is_shown(cli, registered):
    said = cli("schedules", "show", "nightly-a")
    assert said.code == 0
    assert "0 3 * * * UTC" in said.out
    assert "misfire coalesce, overlap skip" in said.out
    assert cli("schedules", "show", "nightly-a", "--json").json["state"] == "waiting"
    missing = cli("schedules", "show", "nobody")
    assert (missing.code, "no schedule" in missing.err) == (1, True)


def test_they_are_paused_and_resumed_by_pattern(cli, registered):
    said = cli("schedules", "pause", "nightly-*", "--reason", "the database moves")
    assert said.out == "nightly-a paused\nnightly-b paused\n"
    assert "the database moves" in cli("schedules", "explain", "nightly-a").out
    assert cli("schedules", "list", "due", "--json").json["schedules"][0]["state"] == "waiting"
    resumed = cli("schedules", "resume", "--all", "--json").lines
    assert [(one["name"], one["state"]) for one in resumed] == [
        ("due", "waiting"),
        ("nightly-a", "waiting"),
        ("nightly-b", "waiting"),
    ]
    assert cli("schedules", "resume", "due").out == "due is not paused\n"


def test_one_that_can_not_be_changed_spares_the_others(cli, registered):
    said = cli("schedules", "pause", "due", "nobody")
    assert (said.code, said.out) == (1, "due paused\n")
    assert said.err.startswith("holdfast: there is no schedule 'nobody'")
    said = cli("schedules", "remove", "due", "nobody", "--json")
    declared, missing = said.lines
    assert (said.code, said.err) == (1, "")
    assert (declared["name"], "declared in the code" in declared["error"]) == ("due", True)
    assert (missing["name"], "there is no schedule" in missing["error"]) == ("nobody", True)
    assert cli("schedules", "pause", "due", "--json").json["paused_since_iso"]


@pytest.mark.parametrize("wanted", ["due", "du*"])
def test_a_resume_counts_failures_anew(cli, redis_url, registered, wanted):
    async def fail() -> None:
        redis = connect(RedisSettings(url=redis_url))
        pod = Board(redis).pod()
        await pod.complete(await pod.one(), outcome="failed", streak=3, pause_after=3)
        await redis.aclose()

    asyncio.run(fail())
    assert cli("schedules", "show", "due", "--json").json["streak"] == 3
    assert cli("schedules", "resume", wanted).out == "due resumed\n"
    assert cli("schedules", "show", "due", "--json").json["streak"] == 0


def test_without_names_nothing_is_paused(cli, registered):
    said = cli("schedules", "pause")
    assert (said.code, "--all" in said.err) == (2, True)
    assert cli("schedules", "pause", "xyz-*").code == 1


def test_the_next_turns_are_told(cli, registered):
    times = cli("schedules", "next", "nightly-a", "--count", "3", "--json").json["times"]
    assert len(times) == 3
    assert [b - a for a, b in itertools.pairwise(times)] == [86400, 86400]
    assert len(cli("schedules", "next", "nightly-b", "--json").json["times_iso"]) == 1


def test_times_are_told_with_their_zone(cli, registered):
    """Those of a cron expression by its own clocks, others by those here."""
    assert " 03:00:00 UTC (in " in cli("schedules", "next", "nightly-a", "--count", "1").out
    assert " 03:00:00 UTC (in " in cli("schedules", "show", "nightly-a").out
    here = datetime.now().astimezone().tzname()
    assert f" {here} (in 2h)" in cli("schedules", "next", "nightly-b").out


def test_a_backfill_tells_its_turns_by_the_clocks_of_their_schedule(cli, redis_url):
    register(redis_url, Cron(expression="30 3 * * *", zone="Asia/Tokyo"))
    window = ("--from", "2026-03-01T00:00Z", "--to", "2026-03-02T00:00Z")
    for options in (("--dry-run",), ()):
        (line,) = cli("schedules", "backfill", "night", *window, *options).out.splitlines()
        assert " 2026-03-02 03:30:00 JST (" in line


def test_a_target_that_nobody_serves_is_explained(cli, redis_url):
    register(redis_url, Every(seconds=60), target="medya")
    said = cli("schedules", "explain", "night").out
    assert "nobody serves queue 'medya' by these settings; known are " in said


def register(redis_url: str, trigger: Trigger, **options: Any) -> None:
    async def work() -> None:
        client = connect(RedisSettings(url=redis_url))
        schedule = Schedule(name="night", agent="work", trigger=trigger, **options)
        await ScheduleRegistry(client, ScheduleKeys.of()).register([schedule])
        await client.aclose()

    asyncio.run(work())


def test_the_last_error_is_shown_with_its_time(cli, redis_url, registered):
    async def fail() -> None:
        redis = connect(RedisSettings(url=redis_url))
        pod = Board(redis).pod()
        await pod.complete(await pod.one(), outcome="failed", error="ValueError: no such city", streak=1)
        await redis.aclose()

    asyncio.run(fail())
    (line,) = [one for one in cli("schedules", "show", "due").out.splitlines() if "last error" in one]
    assert "ValueError: no such city, 20" in line
    shown = cli("schedules", "show", "due", "--json").json
    assert shown["last_error_at"] == shown["last_end"]


def test_a_store_other_than_the_registered_one_is_refused(cli, redis_url, registered, tmp_path):
    """The mistake: a schedule is paused in a database that no process of the system reads."""
    asyncio.run(migrate_store(DatabaseSettings()))
    assert cli("store", "register").code == 0
    asyncio.run(migrate_store(DatabaseSettings(path=str(tmp_path / "other.sqlite"))))
    wanted = ("schedules", "pause", "due")
    with pytest.MonkeyPatch.context() as settings:
        settings.setenv("HOLDFAST_DATABASE_PATH", str(tmp_path / "other.sqlite"))
        for command in (
            wanted,
            ("schedules", "create", "made", "work", "--every", "1m"),
            ("runs", "show", "gone"),
        ):
            refused = cli(*command)
            assert refused.code == 1
            assert "this process uses the store" in refused.err, refused.err
            assert "other.sqlite" in refused.err
        assert "other.sqlite" in cli("store", "show").out
        registered = cli("store", "show", "--json").json["registered"]
        assert registered["registered_at_iso"].startswith(f"{datetime.now(UTC):%Y-%m}")
        assert registered["registered_at"] == pytest.approx(time.time(), abs=600)
        settings.setenv("HOLDFAST_DATABASE_PER_WORKER", "true")
        assert cli("schedules", "resume", "due").code == 0
    assert cli("schedules", "show", "due", "--json").json["state"] == "waiting"
    assert cli(*wanted).out == "due paused\n"


def test_past_turns_are_listed_and_the_last_ones_shown(cli, redis_url, registered):
    assert cli("schedules", "turns", "due").out == "no past turns\n"

    async def work() -> None:
        redis = connect(RedisSettings(url=redis_url))
        pod = Board(redis).pod("scheduler-1")
        for n in range(6):
            run = await pod.one()
            fault = {"error_kind": "unknown", "error": "ValueError: no such city"} if n == 5 else {}
            outcome = "failed" if fault else "succeeded"
            history = past_turn(run, None, outcome, 1500.0, **fault)
            await pod.complete(run, after=-1, outcome=outcome, history=history)
        await redis.aclose()

    asyncio.run(work())
    listed = cli("schedules", "turns", "due", "--json").json["turns"]
    assert [turn["outcome"] for turn in listed] == ["failed", *["succeeded"] * 5]
    assert datetime.fromisoformat(listed[0]["started_at_iso"]).timestamp() == pytest.approx(
        listed[0]["started_at"], abs=0.001
    )
    _, newest, *_ = lines = cli("schedules", "turns", "due", "--limit", "3").out.splitlines()
    assert len(lines) == 4
    for shown in (listed[0]["turn"], "failed", "1.5s", "scheduler-1", "unknown: ValueError: no such city"):
        assert shown in newest
    assert "unknown: ValueError: no such city" in cli("schedules", "show", "due").out
    missing = cli("schedules", "turns", "nobody")
    assert (missing.code, "no schedule" in missing.err) == (1, True)


def test_a_trigger_makes_it_due_now(cli, registered):
    assert cli("schedules", "trigger", "nightly-b").out == "nightly-b triggered\n"
    assert "no live scheduler runs schedules" in cli("schedules", "explain", "nightly-b").out
    assert cli("schedules", "trigger", "nobody").code == 1


def test_it_is_explained_why_one_does_not_run(cli, registered):
    assert "not due" in cli("schedules", "explain", "nightly-b", "--json").json["because"][0]
    assert "no live scheduler runs schedules" in cli("schedules", "explain", "due").out


def test_a_window_is_backfilled_once(cli, registered):
    window = ("--from", "2026-03-01T00:00Z", "--to", "1772582400")  # 2026-03-04T00:00Z
    planned = cli("schedules", "backfill", "nightly-a", *window, "--dry-run").out.splitlines()
    assert [line.split()[:2] for line in planned] == [
        ["planned", f"nightly-a@{1772334000 + 86400 * n}.000"] for n in range(3)
    ]
    words = [
        one["status"] for one in cli("schedules", "backfill", "nightly-a", *window, "--json").json["turns"]
    ]
    assert words == ["placed"] * 3
    words = [
        one["status"] for one in cli("schedules", "backfill", "nightly-a", *window, "--json").json["turns"]
    ]
    assert words == ["already"] * 3
    listed = cli("schedules", "list", "nightly-a*", "--json").json["schedules"]
    assert [one["name"] for one in listed] == ["nightly-a", "nightly-a@1772334000.000"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--from", "2026-03-01", "--to", "2026-03-02T00:00Z"),
            "--from: '2026-03-01' has no time zone",
        ),
        (("--from", "2026-03-01T00:00Z", "--to", "soon"), "--to: 'soon' is not a time"),
        (("--from", "2026-03-02T00:00Z", "--to", "2026-03-01T00:00Z"), "must end after it begins"),
        (("--from", "2025-03-01T00:00Z", "--to", "2026-03-01T00:00Z"), "holds more turns of"),
    ],
)
def test_a_backfill_that_is_not_meant_is_refused(cli, registered, arguments, said):
    done = cli("schedules", "backfill", "nightly-a", *arguments)
    assert done.code == 2
    assert said in done.err


def test_one_that_the_code_declares_is_only_removed_by_force(cli, registered):
    refused = cli("schedules", "remove", "due")
    assert (refused.code, refused.out) == (1, "due is not removed: the code declares it\n")
    assert "declared in the code" in refused.err
    assert "--force" in refused.err
    assert cli("schedules", "remove", "due", "--force").out == "due removed\n"
    assert [one["name"] for one in cli("schedules", "list", "--json").json["schedules"]] == [
        "nightly-a",
        "nightly-b",
    ]


def test_a_scheduler_runs_until_it_is_told_to_stop(cli, place):
    (place / "app.py").write_text(APP)
    process = forked.Popen(
        [sys.executable, "-m", "holdfast", "scheduler", "--app", "app.py:app"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "hello from a schedule\n"
        members = wait_until(lambda: cli("members", "--json").json["members"])
        assert [member["kind"] for member in members] == ["scheduler"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()
    assert cli("members", "--json").json == {"members": []}
    assert cli("schedules", "show", "hello", "--json").json["runs"] == 1
