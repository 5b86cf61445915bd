from __future__ import annotations

import io
import json
import logging
import re
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.config import LogSettings
from holdfast.telemetry.log_format import MAX_TEXT
from holdfast.telemetry.logs import Bridge, configure, get_logger, run_context, speaking_of
from tests.support.logs import restored_logs


@pytest.fixture(autouse=True)
def logging_as_before():
    with restored_logs():
        yield


@pytest.fixture
def stream():
    return io.StringIO()


def to_json(stream, level="INFO"):
    configure(LogSettings(level=level, format="json"), stream)


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def the_line(stream):
    (line,) = lines(stream)
    return line


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_line_says_when_how_bad_what_and_who(stream):
    to_json(stream)
    get_logger("holdfast.worker").warning("run lost", fence=3)
    line = the_line(stream)
    assert list(line) == ["time", "level", "event", "logger", "fence"]
    assert line | {"time": ""} == {
        "time": "",
        "level": "warning",
        "event": "run lost",
        "logger": "holdfast.worker",
        "fence": 3,
    }
    assert abs((datetime.now(UTC) - datetime.fromisoformat(line["time"])).total_seconds()) < 60


def test_a_line_carries_the_fields_of_the_current_run(stream):
    to_json(stream)
    token = run_context.set({"run_id": "r1", "attempt": 2})
    get_logger("a").info("inside", attempt=9)
    run_context.reset(token)
    get_logger("a").info("outside")
    inside, outside = lines(stream)
    assert (inside["run_id"], inside["attempt"]) == ("r1", 9)
    assert "run_id" not in outside


def test_a_line_about_a_run_has_the_names_of_its_message_too(stream):
    to_json(stream)
    with speaking_of({"run_id": "r1", "agent": "triage", "correlation_id": "theirs"}):
        get_logger("a").info("run settled", queue="q", platform="redis-streams", duration_seconds=1)
    get_logger("a").info("placed", agent="Clerk", agent_id="clerk/1")
    get_logger("a").info("dropped", correlation_id="r2")
    run, resident, dropped = lines(stream)
    assert (run["correlation_id"], run["agent_id"], run["platform"]) == ("r1", "triage", "redis-streams")
    assert (resident["agent_id"], "correlation_id" in resident) == ("clerk/1", False)
    assert dropped["correlation_id"] == "r2"


def test_a_line_for_people_says_nothing_twice():
    terminal = Terminal()
    configure(LogSettings(format="console"), terminal)
    with speaking_of({"run_id": "r1", "agent": "triage"}):
        get_logger("a").info("run settled", queue="q", platform="p", seconds=1.0, duration_seconds=1.0)
    get_logger("a").info("mine", platform="ios", duration_seconds=2)
    settled, mine = terminal.getvalue().splitlines()
    assert not {"correlation_id", "agent_id", "platform", "duration_seconds"} & set(
        re.findall(r"\w+", settled)
    )
    assert "ios" in mine
    assert "duration_seconds" in mine


def test_the_standard_librarys_records_look_the_same(stream):
    to_json(stream)
    token = run_context.set({"run_id": "r1"})
    logging.getLogger("redis.client").warning("lost %s", "connection")
    run_context.reset(token)
    line = the_line(stream)
    assert list(line) == ["time", "level", "event", "logger", "run_id", "correlation_id"]
    assert (line["level"], line["event"], line["logger"]) == ("warning", "lost connection", "redis.client")


def test_python_warnings_become_lines(stream):
    to_json(stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)
        logging.captureWarnings(capture=True)
        warnings.warn("coroutine was never awaited", RuntimeWarning, stacklevel=1)
    assert the_line(stream)["logger"] == "py.warnings"


@pytest.mark.parametrize("name", ["ours", "theirs"])
def test_what_is_below_the_level_is_not_written(stream, name):
    to_json(stream, "WARNING")
    (get_logger("x") if name == "ours" else logging.getLogger("x")).info("chatter")
    assert not stream.getvalue()


@pytest.mark.parametrize(("level", "lines_written"), [("INFO", 0), ("DEBUG", 1)])
def test_requests_of_the_http_library_are_not_information(stream, level, lines_written):
    to_json(stream, level)
    logging.getLogger("httpx2").info("HTTP Request: GET /api/v1/pods")
    assert len(lines(stream)) == lines_written


def test_a_logger_made_before_configure_follows_every_configure(stream):
    log = get_logger("early")
    to_json(stream)
    log.info("first")
    second = io.StringIO()
    to_json(second)
    log.info("second")
    assert the_line(stream)["event"] == "first"
    assert the_line(second)["event"] == "second"


def test_configuring_twice_does_not_write_lines_twice(stream):
    to_json(stream)
    to_json(stream)
    logging.getLogger("redis").error("once")
    assert len(lines(stream)) == 1
    assert sum(isinstance(handler, Bridge) for handler in logging.getLogger().handlers) == 1


def test_a_program_that_configured_nothing_sees_only_warnings(capsys):
    log = get_logger("library")
    log.info("quiet")
    log.warning("loud")
    seen = capsys.readouterr()
    assert not seen.out
    assert "loud" in seen.err
    assert "quiet" not in seen.err


def test_bound_fields_stay(stream):
    to_json(stream)
    get_logger("x").bind(queue="q").info("hello %s", "you")
    line = the_line(stream)
    assert (line["event"], line["queue"]) == ("hello you", "q")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://user:hunter2@host:6379/0", "redis://***@host:6379/0"),
        ("rediss://:hunter2@host", "rediss://***@host"),
        ("redis://:hun/ter2@host/0", "redis://***@host/0"),
        ("redis://:p@hunter2@host/0", "redis://***@host/0"),
        ('redis://:hunter2"x@host', "redis://***@host"),
        ("two redis://:hunter2@a and postgresql://u:hunter2@b", "two redis://***@a and postgresql://***@b"),
        ("https://host/hook?token=hunter2&x=1", "https://host/hook?token=***&x=1"),
        ("https://host/hook?access_token=hunter2", "https://host/hook?access_token=***"),
        ("redis://host?sentinel_password=hunter2", "redis://host?sentinel_password=***"),
        ("https://host/hook?passwd=hunter2", "https://host/hook?passwd=***"),
        ("at redis://:a hunter2@host now", "at redis://***@host now"),
        ("host=db password=hunter2 user=u", "host=db password=*** user=u"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("mail a@b", "mail a@b"),
    ],
)
def test_secrets_in_urls_are_masked(stream, text, shown):
    to_json(stream)
    get_logger("x").info(text, url=text, deep={"urls": [text]})
    logging.getLogger("redis").error("at %s", text)
    ours, theirs = lines(stream)
    assert (ours["event"], ours["url"], ours["deep"]) == (shown, shown, {"urls": [shown]})
    assert theirs["event"] == f"at {shown}"
    assert "hunter2" not in stream.getvalue()


def fail_deeply(depth):
    if depth:
        fail_deeply(depth - 1)
    raise ValueError("can't reach redis://:hunter2@host " + "x" * 100_000)


@pytest.mark.parametrize("style", ["json", "console"])
def test_an_exception_is_shown_bounded_and_masked(stream, style):
    configure(LogSettings(format=style), stream)
    try:
        fail_deeply(200)
    except ValueError:
        get_logger("x").exception("failed")
    text = stream.getvalue()
    assert "fail_deeply" in text
    assert "ValueError" in text
    assert "hunter2" not in text
    assert len(text) < MAX_TEXT * 2


@pytest.mark.parametrize("given", ["error", "tuple", True])
def test_an_exception_may_be_given_in_each_of_the_three_ways(stream, given):
    to_json(stream)
    try:
        raise KeyError("gone")
    except KeyError as error:
        info = {"error": error, "tuple": sys.exc_info(), True: True}[given]
        get_logger("x").error("failed", exc_info=info)
    assert the_line(stream)["exception"].endswith("KeyError: 'gone'")


def test_exc_info_without_an_exception_says_nothing(stream):
    to_json(stream)
    get_logger("x").error("failed", exc_info=True)
    assert "exception" not in the_line(stream)


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no")


def endless():
    loop = {}
    loop["self"] = loop
    return loop


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Path("/tmp/x"), "/tmp/x"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02 00:00:00+00:00"),
        ((1, {"a"}), [1, ["a"]]),
        ({1: "x", None: "y"}, {"1": "x", "None": "y"}),
        (b"\xff", "b'\\xff'"),
        (10**30, 10**30),
        ("\ud800", "\ud800"),
        (float("nan"), "nan"),
        (Unprintable(), "<Unprintable that can't be shown: RuntimeError>"),
        (list(range(1000)), list(range(100))),
    ],
)
def test_any_value_can_be_logged(stream, value, shown):
    to_json(stream)
    get_logger("x").info("value", value=value)
    assert the_line(stream)["value"] == shown


def test_a_value_that_holds_itself_and_a_huge_text_are_bounded(stream):
    to_json(stream)
    get_logger("x").info("y" * 1_000_000, loop=endless(), big={"nested": "z" * 1_000_000})
    assert len(stream.getvalue()) < 4 * MAX_TEXT


def test_a_callers_field_never_replaces_the_time_or_the_level(stream):
    to_json(stream)
    get_logger("x").info("odd", time="noon", level=7)
    line = the_line(stream)
    assert (line["level"], line["level_"], line["time_"]) == ("info", 7, "noon")


def test_a_closed_stream_loses_lines_and_nothing_else(stream):
    to_json(stream)
    stream.close()
    get_logger("x").error("nobody hears this")
    logging.getLogger("x").error("nor this")


def test_auto_is_console_on_a_terminal_and_json_elsewhere(stream, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    configure(LogSettings(), terminal)
    get_logger("x").info("hello", queue="q")
    configure(LogSettings(), stream)
    get_logger("x").info("hello", queue="q")
    assert "\x1b[" in terminal.getvalue()
    assert the_line(stream)["queue"] == "q"


def test_console_lines_elsewhere_have_no_colours(stream):
    configure(LogSettings(format="console"), stream)
    get_logger("x").info("hello", queue="q")
    text = stream.getvalue()
    assert "hello" in text
    assert "queue=q" in text
    assert "\x1b[" not in text


def test_what_is_said_of_a_run_has_its_fields_and_they_hide_nothing(stream):
    """Fails if a submitter's field may be called as one of ours: the line would not say any more what happened."""
    to_json(stream)
    with speaking_of({"run_id": "r", "event": "theirs", "logger": "theirs", "level": "theirs"}):
        get_logger("holdfast.worker").info("run settled")
    get_logger("holdfast.worker").info("something else")
    said, other = lines(stream)
    assert (said["event"], said["logger"], said["level"]) == ("run settled", "holdfast.worker", "info")
    assert (said["run_id"], said["event_"], said["logger_"]) == ("r", "theirs", "theirs")
    assert "run_id" not in other
