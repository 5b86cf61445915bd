from __future__ import annotations

import asyncio
import json
import re
import shlex
import time

import pytest
import redis as redis_py

from holdfast.config import DatabaseSettings
from holdfast.events.relay.undelivered import UndeliveredEvent
from holdfast.redis.keys import QueueKeys, member_key, members_key
from holdfast.store.archive import ArchivedRun
from holdfast.store.open import open_store
from holdfast.views.agents import AgentList
from holdfast.views.dead_letters import LetterView
from holdfast.views.members import MemberView
from holdfast.views.queues import QueueView
from holdfast.views.runs import Accepted, Changed, EventLine, Explained, RunRow, RunView
from holdfast.views.schedules import (
    Backfilled,
    ScheduleChanged,
    ScheduleExplained,
    ScheduleTimes,
    ScheduleTurns,
    ScheduleView,
)
from holdfast.views.undelivered import UndeliveredView
from tests.support.waiting import wait_until


@pytest.fixture
def store(redis_url):
    with redis_py.Redis.from_url(redis_url) as client:
        yield client


def announce_relay(store, sinks):
    """Have a relay that delivers to these sinks live, for whoever asks."""
    store.hset(member_key("relay", "one"), mapping={"queues": "agent-queue", "sinks": sinks})
    store.expire(member_key("relay", "one"), 600)
    store.zadd(members_key(), {"relay:one": time.time() + 600})


def test_a_run_is_submitted_and_listed(cli):
    said = cli("submit", "echo", '{"a": 1}', "--run-id", "first", "--metadata", "user=ada")
    assert (said.code, said.out) == (0, "first submitted to agent-queue\n")
    assert "no worker serves queue 'agent-queue' now" in said.err
    listed = cli("runs", "list")
    assert listed.out.splitlines()[1].split()[:4] == ["first", "queued", "echo", "0"]
    (row,) = cli("runs", "list", "--json").json["runs"]
    assert row["id"] == "first"
    assert not row.keys() & {"input", "interrupt", "metadata", "result"}  # a list does not read these
    run = cli("runs", "show", "first", "--json").json
    assert (run["input"], run["metadata"], run["status"]) == ({"a": 1}, {"user": "ada"}, "queued")


def test_a_submission_says_if_it_was_known_before(cli):
    cli("submit", "echo", "1", "--idempotency-key", "k", "--run-id", "a")
    said = cli("submit", "echo", "2", "--idempotency-key", "k")
    assert said.out == "a already exists in agent-queue: queued\n"
    again = cli("submit", "echo", "--run-id", "a", "--thread-id", "t", "--json").json
    assert again == {
        "status": "queued",
        "run_id": "a",
        "correlation_id": "a",
        "message_id": again["message_id"],
        "thread_id": "",  # of the run that is there
        "queue": "agent-queue",
        "fresh": False,
    }


def test_metadata_may_be_json(cli):
    said = cli("submit", "echo", "--run-id", "a", "--metadata", '{"n": 1}', "--metadata", "k=v=w")
    assert said.code == 0
    assert cli("runs", "show", "a", "--json").json["metadata"] == {"n": 1, "k": "v=w"}


def test_a_delayed_run_of_low_priority(cli):
    cli("submit", "echo", "--run-id", "a", "--delay", "330s", "--priority", "low")
    run = cli("runs", "show", "a", "--json").json
    assert (run["status"], run["lane"]) == ("delayed", "{agent-queue}:low")
    assert "in 5m" in cli("runs", "show", "a").out


def test_runs_are_filtered_and_paged(cli):
    for number in range(5):
        cli("submit", "even" if number % 2 == 0 else "odd", "--run-id", f"r{number}")
    cli("runs", "cancel", "r1")
    assert [run["id"] for run in cli("runs", "list", "--agent", "even", "--json").json["runs"]] == [
        "r4",
        "r2",
        "r0",
    ]
    assert [run["id"] for run in cli("runs", "list", "--status", "cancelled", "--json").json["runs"]] == [
        "r1"
    ]
    page = cli("runs", "list", "--limit", "3", "--json").json
    rest = cli("runs", "list", "--cursor", page["cursor"], "--json").json
    assert [run["id"] for run in page["runs"] + rest["runs"]] == ["r4", "r3", "r2", "r1", "r0"]
    assert f"--cursor {page['cursor']}" in cli("runs", "list", "--limit", "3").err


def test_runs_of_all_queues_are_listed_and_found(cli, place):
    (place / "holdfast.yaml").write_text("queues: {media: {slots: 4}}")
    cli("submit", "echo", "--run-id", "a")
    cli("submit", "echo", "--run-id", "b", "--queue", "media")
    assert [run["id"] for run in cli("runs", "list", "--json").json["runs"]] == ["b", "a"]
    assert [run["id"] for run in cli("runs", "list", "--queue", "media", "--json").json["runs"]] == ["b"]
    assert cli("runs", "show", "b", "--json").json["queue"] == "media"
    assert cli("runs", "show", "b", "--queue", "agent-queue").code == 1
    first = cli("runs", "list", "--limit", "1", "--json").json
    rest = cli("runs", "list", "--cursor", first["cursor"], "--json").json
    assert [run["id"] for run in first["runs"] + rest["runs"]] == ["b", "a"]
    assert "was not given out by a previous page" in cli("runs", "list", "--cursor", "1.1").err


def test_runs_are_cancelled_and_retried(cli):
    for run_id in ("a", "b"):
        cli("submit", "echo", "--run-id", run_id)
    assert cli("runs", "cancel", "a", "b", "--reason", "enough").out == "a cancelled\nb cancelled\n"
    assert "enough" in cli("runs", "show", "a").out
    assert cli("runs", "retry", "a").out == "a queued\n"
    again = cli("runs", "retry", "a", "b", "--json")
    assert again.code == 1
    assert again.lines[0]["run_id"] == "a"
    assert "queued" in again.lines[0]["error"]
    assert again.lines[1] == {"run_id": "b", "status": "queued"}


def test_an_archived_run_is_shown_explained_and_not_changed(cli, place):
    async def archive() -> None:
        path = place / ".holdfast" / "holdfast.sqlite"
        path.parent.mkdir(exist_ok=True)
        async with await open_store(DatabaseSettings(path=str(path))) as store:
            await store.archive(
                [ArchivedRun(id="old", queue="agent-queue", agent="echo", status="failed", finished_at=9.0)]
            )

    assert cli("runs", "explain", "old").code == 1  # and looking leaves no empty file behind
    assert not (place / ".holdfast").exists()
    asyncio.run(archive())
    assert cli("runs", "show", "old", "--json").json["status"] == "failed"
    told = cli("runs", "explain", "old", "--json").json
    assert (told["status"], "in the archive" in told["because"][-1]) == ("failed", True)
    assert "given up" in cli("runs", "explain", "old").out
    for words, said in (
        (("cancel", "old"), "has already ended: failed"),
        (("resume", "old", "1"), "only an interrupted run"),
        (("retry", "old"), "submit its input again"),
        (("events", "old"), "not kept any more"),
    ):
        answer = cli("runs", *words)
        assert (answer.code, said in answer.err) == (1, True), answer
        assert "/runs" not in answer.err
    assert "no run 'new'" in cli("runs", "explain", "new").err


def test_the_id_of_a_turn_is_no_run_and_its_schedule_is_named(cli):
    for verb in ("show", "explain", "cancel"):
        said = cli("runs", verb, "reports/daily@1772332200.000")
        assert said.code == 1
        assert "this is the id of a schedule's turn, see `holdfast schedules turns reports/daily`" in said.err
    assert "check the id" in cli("runs", "show", "me@example.org").err


def test_a_run_is_not_known_if_the_archive_can_not_be_asked_and_that_is_said(cli, monkeypatch):
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:secret@127.0.0.1:1/x")
    monkeypatch.setenv("HOLDFAST_DATABASE_TIMEOUT_SECONDS", "0.2")
    for words in (("show", "a"), ("explain", "a"), ("events", "a"), ("cancel", "a"), ("retry", "a")):
        said = cli("runs", *words)
        assert said.code == 1
        assert "run 'a' is not in Redis" in said.err
        assert "the archive, which may have it, can't be read now" in said.err
        assert "secret" not in said.err


def test_what_is_said_of_a_run_names_no_path_of_the_api(cli, place, store):
    keys = QueueKeys.of("agent-queue")
    cli("submit", "echo", "1", "--run-id", "a")
    store.hset(keys.run("a"), mapping={"status": "interrupted", "interrupt": '{"approve":7}'})
    said = cli("runs", "explain", "a").out
    assert 'the agent asked {"approve":7} and goes on when it has the answer: ' in said
    assert """`holdfast runs resume a '"ANSWER"'`, where ANSWER is JSON""" in said
    cli("submit", "echo", "1", "--run-id", "b")
    cli("runs", "cancel", "b")
    assert "`holdfast runs retry b` queues it again" in cli("runs", "explain", "b").out
    for run in ("a", "b"):
        assert "/runs" not in cli("runs", "explain", run).out


def test_the_question_of_a_run_is_printed_as_its_agent_asked_it(cli, store):
    question = {"closed_at": 1731000000.5, "since": 1}
    cli("submit", "echo", "1", "--run-id", "a")
    interrupted = {"status": "interrupted", "interrupt": json.dumps(question)}
    store.hset(QueueKeys.of("agent-queue").run("a"), mapping=interrupted)
    assert cli("runs", "show", "a", "--json").json["interrupt"] == question


def test_a_run_is_explained(cli):
    cli("submit", "echo", "1", "--run-id", "a")
    because = cli("runs", "explain", "a").out
    assert because.startswith("a: queued\n- no worker serves queue 'agent-queue'")


def test_events_are_shown(cli):
    cli("submit", "echo", "--run-id", "a")
    cli("runs", "cancel", "a")
    events = cli("runs", "events", "a", "--json").lines
    assert [event["type"] for event in events] == ["submitted", "cancelled"]
    assert cli("runs", "events", "a", "--after", events[0]["id"], "--json").lines == events[1:]
    assert [line.split()[1] for line in cli("runs", "events", "a", "--follow").out.splitlines()] == [
        "submitted",
        "cancelled",
    ]


def test_queues_are_shown_paused_drained_and_resumed(cli):
    cli("submit", "echo")
    row = cli("queues", "list").out.splitlines()[1].split()
    assert row[:7] == ["agent-queue", "open", "1", "1", "0", "0", "0"]
    assert cli("queues", "pause", "--reason", "upgrade").out == "agent-queue paused\n"
    refused = cli("submit", "echo")
    assert refused.code == 1
    assert "is paused (upgrade); `holdfast queues resume agent-queue`" in refused.err
    state = cli("queues", "show", "--json").json
    assert (state["mode"], state["reason"], state["depth"]) == ("paused", "upgrade", 1)
    assert state["settings"]["max_attempts"] == 5
    assert "paused since" in cli("queues", "show").out
    assert cli("queues", "drain", "agent-queue", "--json").json["mode"] == "draining"
    assert cli("queues", "resume").out == "agent-queue open\n"
    assert cli("queues", "list", "--json").json["queues"][0]["mode"] == "open"


def test_a_queue_is_shown_with_what_its_workers_do(cli, store):
    keys = QueueKeys.of("agent-queue")
    assert "oldest           -\n" in cli("queues", "show").out
    for run_id in "ab":
        cli("submit", "echo", "--run-id", run_id)
    shown = cli("queues", "show").out
    for line in (
        "length           2 entries in its streams",
        "longest attempt  none is running",
        "idlest consumer  no consumers",
    ):
        assert line in shown
    store.xgroup_create("agent-queue", "agent-queue-group", id="0")
    ((_, ((entry, _),)),) = store.xreadgroup("agent-queue-group", "busy", {"agent-queue": ">"}, count=1)
    began = int(store.time()[0] - 600) * 1000
    store.hset(keys.run("a"), mapping={"status": "running", "entry": entry, "started_at": began})
    wait_until(lambda: store.xinfo_consumers("agent-queue", "agent-queue-group")[0]["idle"] > 0)
    state = cli("queues", "show", "--json").json
    assert (state["length"], state["depth"], state["pending"]) == (2, 2, 1)
    assert 600 <= state["longest_running_seconds"] < 700
    assert 0 < state["consumer_idle_seconds"] < 100
    shown = cli("queues", "show").out
    assert "longest attempt  running for 10m" in shown
    assert "idlest consumer  last seen " in shown


def test_a_queue_counts_the_workers_that_live_and_no_ghosts(cli, store):
    store.xgroup_create("agent-queue", "agent-queue-group", mkstream=True)
    store.xgroup_createconsumer("agent-queue", "agent-queue-group", "killed")
    state = cli("queues", "show", "--json").json
    assert (state["workers"], state["partitions"], state["streams"][0]["depth"]["consumers"]) == (0, 1, 1)
    assert cli("queues", "list").out.splitlines()[1].split()[-1] == "0"
    store.hset("member:worker:first", mapping={"queues": "other,agent-queue"})
    store.zadd("members", {"worker:first": time.time() + 30})
    assert cli("queues", "show", "--json").json["workers"] == 1
    store.delete("member:worker:first", "members")


def test_a_queue_that_is_used_needs_no_settings(cli, store):
    store.xadd("other", {"message_data": "1", "agent_id": "echo"})
    assert cli("queues", "show", "other", "--json").json["undelivered"] == 1


def bury(store, run_id, agent="echo", reason="invalid", queue="agent-queue", letter_id="*"):
    keys = QueueKeys.of(queue)
    error = '{"kind":"invalid","message":"bad\\nnews"}'
    letter = store.xadd(
        keys.deadletter,
        {"run_id": run_id, "agent_id": agent, "status": "failed", "reason": reason, "attempts": 2}
        | {"error": error, "message_data": '{"input":7}'},
        id=letter_id,
    )
    fields = {"status": "failed", "agent": agent, "message": '{"input":7}', "dead": letter, "error": error}
    store.hset(keys.run(run_id), mapping=fields)
    return letter.decode()


def test_dead_letters_are_shown_replayed_and_dropped(cli, store):
    hours_ago = f"{(time.time() - 2.5 * 3600) * 1000:.0f}-0"  # it stays "2h ago" however long this takes
    first, second = bury(store, "a", letter_id=hours_ago), bury(store, "b", agent="other")
    assert [letter["run_id"] for letter in cli("dead", "list", "--json").json["letters"]] == ["b", "a"]
    rows = cli("dead", "list", "--agent", "echo").out.splitlines()
    assert rows[1].split() == ["a", "echo", "invalid", "2", "2h", "ago", "bad", "news"]
    assert cli("dead", "show", "a", "--json").json["id"] == first
    assert "bad\n" in cli("dead", "show", second).out
    assert cli("dead", "replay", "a").out == "a queued\n"
    assert cli("dead", "drop", second).out == "b dropped\n"
    assert cli("dead", "list").out == "no dead letters\n"
    assert cli("runs", "show", "a", "--json").json["status"] == "queued"


def test_a_dead_letter_whose_message_can_not_be_read_shows_it_as_text(cli, store):
    """Fails if all that is left of it is `input null`."""
    letter = {"run_id": "a", "agent_id": "echo", "message_data": b"{broken \x80", "error": "{}"}
    store.xadd(QueueKeys.of("agent-queue").deadletter, letter)
    shown = cli("dead", "show", "a").out
    assert re.search(r"^message +\{broken \\x80$", shown, re.MULTILINE), shown
    assert "input" not in shown
    printed = cli("dead", "show", "a", "--json").json
    assert (printed["input"], printed["message"]) == (None, "{broken \\x80")


def test_undelivered_events_are_listed_and_delivered_again(cli, store):
    keys = QueueKeys.of("agent-queue")
    for run_id in ("a", "b"):
        cli("submit", "echo", "--run-id", run_id)
        fields = {"run_id": run_id, "event_id": "1-1", "sequence": "1", "type": "said", "sink": "eventapi"}
        store.xadd(keys.undelivered, {**fields, "error": "the receiver answered 422", "data": '"x"'})
    rows = cli("relay", "undelivered", "list").out.splitlines()
    assert [row.split()[0] for row in rows] == ["RUN", "b", "a"]
    assert "the receiver answered 422" in rows[1]
    listed = cli("relay", "undelivered", "list", "--run", "a", "--json").json
    assert [(each["run_id"], each["queue"], each["data"]) for each in listed["events"]] == [
        ("a", "agent-queue", "x")
    ]
    assert listed["cursor"] == ""
    first = cli("relay", "undelivered", "list", "--limit", "1", "--json").json
    second = cli("relay", "undelivered", "list", "--cursor", first["cursor"], "--json").json
    assert [each["run_id"] for page in (first, second) for each in page["events"]] == ["b", "a"]
    assert second["cursor"] == ""
    assert cli("relay", "undelivered", "list", "--sink", "webhook").out == "no undelivered events\n"
    unsaid = cli("relay", "undelivered", "redeliver")
    assert (unsaid.code, "--all" in unsaid.err) == (2, True)
    assert cli("relay", "undelivered", "list", "--sink", "nowhere").code == 2
    unserved = cli("relay", "undelivered", "redeliver", "--all")
    assert (unserved.code, unserved.out, unserved.err.count("no relay serves sink eventapi")) == (1, "", 1)
    announce_relay(store, "eventapi")
    assert cli("relay", "undelivered", "redeliver", "--run", "a").out == "1 events are delivered again\n"
    assert cli("relay", "undelivered", "redeliver", "--all", "--json").json == {"queued": 2, "refused": {}}
    assert "delivered again soon" in cli("relay", "undelivered", "list").out


def test_an_undelivered_event_that_cannot_be_delivered_again_is_named(cli, store):
    fields = {"run_id": "left", "event_id": "1-1", "sequence": "3", "type": "said", "sink": "webhook"}
    store.xadd(QueueKeys.of("agent-queue").undelivered, {**fields, "error": "no", "data": "1"})
    announce_relay(store, "webhook")
    said = cli("relay", "undelivered", "redeliver", "--all")
    assert (said.code, said.out) == (1, "")
    assert "event 3 of run left can't be delivered again" in said.err


def test_an_undelivered_event_behind_thousands_of_newer_ones_is_found(cli, store):
    """Fails if the list ends with the first page: that reads 5,000 entries, whatever it finds."""
    stream = QueueKeys.of("agent-queue").undelivered
    fields = {
        "event_id": "1-1",
        "sequence": "1",
        "type": "said",
        "sink": "webhook",
        "error": "no",
        "data": "1",
    }
    store.xadd(stream, {"run_id": "old", **fields})
    with store.pipeline(transaction=False) as pipe:
        for _ in range(5100):
            pipe.xadd(stream, {"run_id": "new", **fields})
        pipe.execute()
    listed = cli("relay", "undelivered", "list", "--run", "old", "--json").json
    assert [each["run_id"] for each in listed["events"]] == ["old"]
    assert listed["cursor"] == ""


def test_all_dead_letters_are_dealt_with_only_if_asked(cli, store):
    for run_id in ("a", "b", "c"):
        bury(store, run_id, reason="poison" if run_id == "c" else "invalid")
    for words in (
        ["dead", "drop"],
        ["dead", "replay"],
        ["dead", "drop", "a", "--all"],
        ["dead", "drop", "a", "--agent", "x"],
    ):
        assert cli(*words).code == 2
    assert cli("dead", "drop", "--all", "--reason", "poison").out == "c dropped\n"
    replayed = cli("dead", "replay", "--all", "--json").lines
    assert sorted(each["run_id"] for each in replayed) == ["a", "b"]
    assert cli("dead", "replay", "--all").out == "no dead letters\n"


def test_each_dead_letter_has_a_line_of_its_own(cli, store):
    letter = bury(store, "a")
    done = cli("dead", "drop", "nobody", "a", "--json")
    dropped, refused = done.lines
    assert (done.code, done.err) == (1, "")
    assert (dropped["id"], dropped["run_id"], dropped["input"]) == (letter, "a", 7)
    assert (refused["id"], "no dead letter 'nobody'" in refused["error"]) == ("nobody", True)
    bury(store, "b")
    assert cli("dead", "replay", "b", "--json").json == {"run_id": "b", "status": "queued"}


def test_dead_letters_are_found_in_whichever_queue_has_them(cli, store, place):
    (place / "holdfast.yaml").write_text("queues:\n  other: {}\n")
    for run_id in ("a", "b", "c"):
        bury(store, run_id, queue="other")
    bury(store, "d")
    titles, first, *_ = cli("dead", "list").out.splitlines()
    assert titles.split()[:3] == ["RUN", "AGENT", "QUEUE"]
    assert first.split()[:3] == ["d", "echo", "agent-queue"]
    page = cli("dead", "list", "--limit", "3", "--json").json
    rest = cli("dead", "list", "--cursor", page["cursor"], "--json").json
    assert [each["run_id"] for each in page["letters"] + rest["letters"]] == ["d", "c", "b", "a"]
    (only,) = cli("dead", "list", "--queue", "agent-queue", "--json").json["letters"]
    assert (only["run_id"], only["queue"]) == ("d", "agent-queue")
    assert cli("dead", "show", "a", "--json").json["queue"] == "other"
    assert cli("dead", "replay", "a").out == "a queued\n"
    assert cli("dead", "drop", "b").out == "b dropped\n"
    assert "in queue 'agent-queue' or 'other'" in cli("dead", "drop", "b").err
    assert cli("dead", "list", "--cursor", "1-1").code == 2
    assert sorted(cli("dead", "drop", "--all").out.splitlines()) == ["c dropped", "d dropped"]


def test_a_dead_letter_of_two_queues_is_left_alone_until_one_is_named(cli, store, place):
    (place / "holdfast.yaml").write_text("queues:\n  other: {}\n")
    bury(store, "a")
    bury(store, "a", queue="other")
    said = cli("dead", "drop", "a")
    assert (said.code, "'agent-queue' and 'other' have a dead letter 'a'" in said.err) == (1, True)
    assert cli("dead", "drop", "a", "--queue", "other").out == "a dropped\n"


def test_a_filter_that_leaves_no_dead_letter_says_what_there_is(cli, store):
    bury(store, "a", reason="unknown")
    sentence = "no letter has the reason 'failed'; there are unknown (1)\n"
    assert cli("dead", "list", "--reason", "failed").out == sentence
    for verb in ("replay", "drop"):
        said = cli("dead", verb, "--all", "--reason", "failed")
        assert (said.code, said.out, said.err) == (1, "", f"holdfast: {sentence}")
    said = cli("dead", "drop", "--all", "--reason", "failed", "--json")
    assert (said.code, said.out) == (1, "")
    assert json.loads(said.err) == {"error": sentence.rstrip()}
    said = cli("dead", "drop", "--all", "--agent", "x", "--reason", "failed")
    assert said.err.endswith(
        "no letter has the agent 'x' and the reason 'failed'; there are echo unknown (1)\n"
    )


def test_cleanup_says_what_it_does(cli, store):
    store.xgroup_create("agent-queue", "agent-queue-group", id="0", mkstream=True)
    store.xadd("agent-queue", {"message_data": "1", "agent_id": "echo", "correlation_id": "a"})
    store.xreadgroup("agent-queue-group", "gone", {"agent-queue": ">"})
    found = cli("cleanup", "--dry-run", "--json").json["passes"][0]
    assert (found["dry_run"], found["ghosts"][0]["fate"]) == (True, "waiting")
    said = cli("cleanup")
    assert said.out.splitlines()[1].split()[:2] == ["agent-queue", "gone"]
    assert "kept: not idle for long enough" in said.out
    assert "0 expired runs removed" in said.out


def test_nobody_is_alive(cli):
    assert cli("members").out == "no live processes\n"
    assert cli("members", "--json").json == {"members": []}


def test_settings_are_shown_with_their_origin(cli, place, monkeypatch):
    (place / "other.yaml").write_text("lease: {ttl_seconds: 10s}\nredis: {password: hush}")
    monkeypatch.setenv("MAX_ATTEMPTS", "7")
    said = cli("config", "show", "--changed", "--config", "other.yaml")
    rows = {line.split()[0]: line.split()[1:] for line in said.out.splitlines()[1:]}
    assert rows["lease.ttl_seconds"] == ["10", "other.yaml:1"]
    assert rows["queue.max_attempts"] == ["7", "environment", "MAX_ATTEMPTS"]
    assert "hush" not in said.out
    shown = cli("config", "show", "--json").json["settings"]
    assert {"path": "worker.drain_seconds", "value": "20", "source": "default"} in shown


def test_settings_are_checked(cli, place):
    assert re.fullmatch(
        r"settings OK \(no holdfast.yaml, \d+ differs? from .+\)\n", cli("config", "check").out
    )
    assert cli("config", "check", "--json").json["ok"] is True
    changed = cli("config", "check", "--json").json["changed"]
    (place / "holdfast.yaml").write_text("lease: {ttl_seconds: 20}")
    said = cli("config", "check").out
    assert "holdfast.yaml, " in said
    assert f"{changed + 1} differ" in said
    (place / "holdfast.yaml").write_text("lease: {ttl: 10s}")
    said = cli("config", "check")
    assert said.code == 1
    assert "lease.ttl_seconds" in said.err
    broken = cli("config", "check", "--json")
    assert (broken.code, broken.json["ok"]) == (1, False)


def test_the_version_and_the_help_are_printed(cli):
    assert cli("--version").out.startswith("holdfast 0.")
    for words in (["--help"], ["runs", "--help"], ["submit", "--help"]):
        said = cli(*words)
        assert said.code == 0
        assert said.out.startswith("Usage: holdfast")
    assert "janitor" in cli("--help").out
    bare = cli()
    assert (bare.code, bare.out) == (2, "")
    assert "Commands:" in bare.err


def test_agents_are_listed_and_shown(cli, store):
    assert cli("agents", "list").out.startswith("no agents are known, since no worker is alive")
    empty = cli("agents", "list", "--json")
    assert (empty.json["agents"], empty.code) == ([], 0)
    assert "no worker is alive" in empty.json["note"]
    assert json.loads(empty.err) == {"note": empty.json["note"]}
    entry = {
        "name": "echo",
        "description": "Repeat it.",
        "input_schema": {"type": "object"},
        "max_attempts": 2,
    }
    store.set("catalogue:d", json.dumps([entry]), px=60_000)
    store.hset(
        "member:worker:w", mapping={"queues": "q", "agents": "echo,sort", "catalogue": "d", "since": "1"}
    )
    store.zadd("members", {"worker:w": time.time() + 30})
    listed = cli("agents", "list")
    assert [line.split(maxsplit=3) for line in listed.out.splitlines()] == [
        ["NAME", "QUEUES", "WORKERS", "DESCRIPTION"],
        ["echo", "q", "1", "Repeat it."],
        ["sort", "q", "1"],
    ]
    printed = cli("agents", "list", "--json").json
    assert printed.keys() == fields(AgentList)
    assert [agent["name"] for agent in printed["agents"]] == ["echo", "sort"]
    shown = cli("agents", "show", "echo").out
    for line in (
        r"description +Repeat it\.",
        r"queues +q",
        r"served by +w",
        r"attempts +2",
        r' +"type": "object"',
    ):
        assert re.search(f"^{line}$", shown, re.MULTILINE), shown
    missing = cli("agents", "show", "eccho", "--json")
    assert missing.code == 1
    assert "did you mean 'echo'?" in json.loads(missing.err)["error"]
    store.delete("member:worker:w", "members")


@pytest.mark.parametrize(
    "words",
    [
        "start Clerk clerk-1 '{\"a b\": 1}' --wait 0",
        "stop x",
        "move x --to h",
        "send x",
        "ask x",
        "start --help",
        "list --status crashed",
        "list --host h --name Clerk --limit 5",
    ],
)
def test_what_was_asked_of_residents_under_agents_is_answered_with_their_command(cli, words):
    said = cli("agents", *shlex.split(words))
    assert (said.code, said.out) == (2, "")
    assert said.err == f"holdfast: long-lived agents are residents now: use `holdfast residents {words}`\n"


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (["submit"], "submit [OPTIONS] AGENT [JSON]"),
        (["runs", "show"], "runs show [OPTIONS] RUN"),
        (["runs", "cancel"], "runs cancel [OPTIONS] RUN..."),
        (["runs", "resume"], "runs resume [OPTIONS] RUN [JSON]"),
        (["dead", "replay"], "dead replay [OPTIONS] [LETTER]..."),
        (["schedules", "list"], "schedules list [OPTIONS] [GLOB]"),
        (["schedules", "pause"], "schedules pause [OPTIONS] [NAME]..."),
        (["queues", "pause"], "queues pause [OPTIONS] [QUEUE]"),
        (["residents", "start"], "residents start [OPTIONS] RESIDENT ID [JSON]"),
        (["rollout", "set"], "rollout set [OPTIONS] NAME [PERCENT]"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_usage_line_has_its_arguments_as_people_write_them(cli, words, usage):
    assert cli(*words, "--help").out.splitlines()[0] == f"Usage: holdfast {usage}"


@pytest.mark.parametrize(
    "noun",
    [
        "",
        "agents",
        "config",
        "dead",
        "hosts",
        "queues",
        "residents",
        "rollout",
        "runs",
        "schedules",
        "simulate",
    ],
)
def test_no_sentence_of_a_list_of_commands_is_cut(cli, monkeypatch, noun):
    """Fails if one is too long for a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    _, _, commands = cli(*noun.split(), "--help").out.partition("Commands:\n")
    assert commands
    assert [line for line in commands.splitlines() if line.endswith("...")] == []


def fields(shape) -> set[str]:
    return set(shape.__struct_fields__)


def test_what_is_printed_as_json_has_the_fields_of_the_http_api(cli, store):
    cli("submit", "echo", "1", "--run-id", "a")
    cli("schedules", "create", "s", "echo", "--every", "5m")
    store.hset(
        member_key("worker", "one"), mapping={"kind": "worker", "pid": "7", "since": "1.500", "load": ""}
    )
    store.expire(member_key("worker", "one"), 600)
    store.zadd(members_key(), {"worker:one": time.time() + 600})
    shapes = {
        ("runs", "list"): ("runs", RunRow),
        ("queues", "list"): ("queues", QueueView),
        ("schedules", "list"): ("schedules", ScheduleView),
        ("members",): ("members", MemberView),
    }
    for words, (noun, shape) in shapes.items():
        (row,) = cli(*words, "--json").json[noun]
        assert fields(shape) <= row.keys(), words
    iso = "1970-01-01T00:00:01.500+00:00"
    assert row["fields"] == {"kind": "worker", "pid": 7, "since": 1.5, "since_iso": iso, "load": ""}
    one = {
        ("runs", "show", "a"): RunView,
        ("runs", "explain", "a"): Explained,
        ("queues", "show"): QueueView,
        ("queues", "pause"): QueueView,
        ("queues", "resume"): QueueView,
        ("schedules", "show", "s"): ScheduleView,
        ("schedules", "next", "s"): ScheduleTimes,
        ("schedules", "explain", "s"): ScheduleExplained,
        ("schedules", "backfill", "s", "--from", "1", "--to", "2", "--dry-run"): Backfilled,
        ("runs", "cancel", "a"): Changed,
        ("submit", "echo", "1"): Accepted,
        ("schedules", "create", "t", "echo", "--every", "5m"): ScheduleView,
        ("schedules", "turns", "s"): ScheduleTurns,
        ("schedules", "pause", "s"): ScheduleView,
        ("schedules", "resume", "s"): ScheduleView,
        ("schedules", "trigger", "s"): ScheduleChanged,
        ("schedules", "remove", "t"): ScheduleView,
        ("dead", "show", "b"): LetterView,
        ("dead", "drop", "b"): LetterView,
        ("dead", "replay", "c"): Changed,
    }
    for letter in ("b", "c"):
        bury(store, letter)
    for words, shape in one.items():
        assert fields(shape) <= cli(*words, "--json").json.keys(), words
    for event in cli("runs", "events", "a", "--json").lines:
        assert event.keys() == fields(EventLine)
    assert fields(UndeliveredEvent) | {"queue", "at_iso"} >= fields(UndeliveredView)
