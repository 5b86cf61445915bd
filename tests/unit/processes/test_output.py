from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.config import LogSettings
from holdfast.processes.options import ProcessOptions
from holdfast.processes.output import Output
from holdfast.telemetry.logs import configure
from tests.support.logs import restored_logs


def test_more_lines_than_the_rate_allows_are_counted(log_lines: Callable[[], list[dict[str, Any]]]):
    options = ProcessOptions(entries={}, output_lines_per_second=2)
    output = Output("a", {}, options)
    output.feed(b"".join(b"%d\n" % number for number in range(1000)))
    output.end()
    *lines, last = log_lines()
    assert [line["event"] for line in lines] == [str(number) for number in range(10)]
    assert (last["level"], last["dropped_lines"], last["agent_id"]) == ("warning", 990, "a")
    assert output.tail() == "5\n6\n7\n8\n9"


def fed(*lines: bytes, labels: dict[str, str] | None = None, **options: Any) -> Output:
    output = Output("a", labels or {}, ProcessOptions(entries={}, **options))
    output.began(7)
    output.feed(b"".join(line + b"\n" for line in lines))
    output.end()
    return output


def test_a_line_of_our_own_log_is_a_line_of_the_hosts(log_lines: Callable[[], list[dict[str, Any]]]):
    said = {
        "time": "2026-01-01T00:00:00Z",
        "level": "warning",
        "event": "run lost",
        "logger": "holdfast.worker",
        "fence": 3,
        "exception": "Traceback:\n  ValueError: no",
        "nested": {"deep": [1, 2]},
    }
    output = fed(json.dumps(said).encode(), labels={"guild_id": "g"})
    (line,) = log_lines()
    assert line.pop("time") != said["time"]
    assert line == {
        "level": "warning",
        "event": "run lost",
        "logger": "holdfast.worker",
        "fence": 3,
        "nested": {"deep": [1, 2]},
        "guild_id": "g",
        "agent_id": "a",
        "pid": 7,
        "exception": "Traceback:\n  ValueError: no",
    }
    assert output.tail() == "run lost"


@pytest.mark.parametrize(
    ("said", "level", "event"),
    [
        ({"level": "error", "message": "other words"}, "error", "other words"),
        ({"severity": "WARN", "msg": "go's"}, "warning", "go's"),
        ({"levelname": "CRITICAL", "message": "stdlib's"}, "critical", "stdlib's"),
        ({"level": 30, "msg": "pino's"}, "info", "pino's"),
        ({"level": "shouting", "event": "x"}, "info", "x"),
        ({"level": ["error"], "event": {"not": "text"}}, "info", "agent output"),
        ({"colour": "red"}, "info", "agent output"),
    ],
)
def test_other_loggers_words_are_understood(
    said: dict[str, Any], level: str, event: str, log_lines: Callable[[], list[dict[str, Any]]]
):
    fed(json.dumps(said).encode())
    (line,) = log_lines()
    assert (line["level"], line["event"], line["agent_id"], line["pid"]) == (level, event, "a", 7)
    assert line.get("colour") == said.get("colour")


def test_no_field_speaks_for_another_agent_or_breaks_the_log(log_lines: Callable[[], list[dict[str, Any]]]):
    tricks = dict.fromkeys(("self", "method_name", "exc_info", "stack_info", "time", "level_"), 1)
    fed(
        json.dumps({"event": "x", "agent_id": "boss", "pid": 1, "guild_id": "theirs", **tricks}).encode(),
        json.dumps({"event": "y", "logger": {"no": "name"}, "big": 10**30, "exception": 5}).encode(),
        labels={"guild_id": "mine"},
    )
    first, second = log_lines()
    assert (first["event"], first["agent_id"], first["pid"], first["guild_id"]) == ("x", "a", 7, "mine")
    assert (first["self_"], first["method_name_"], first["exc_info_"]) == (1, 1, 1)
    assert (second["event"], second["logger"], second["big"]) == ("y", "{'no': 'name'}", 10**30)


@pytest.mark.parametrize(
    "line",
    [
        b"plain words",
        b'{"event": "almost',
        b'{"event": "x"} and more',
        b"{'event': 'python'}",
        b'["event", "x"]',
        b'{"event": "\xff"}',
        b'{"event": "\\ud800"}',
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,  # deeper than any Python parses
        b'{"event": NaN}',
    ],
)
def test_what_only_looks_like_json_is_text(line: bytes, log_lines: Callable[[], list[dict[str, Any]]]):
    fed(line)
    (found,) = log_lines()
    assert (found["level"], found["agent_id"]) == ("info", "a")
    assert found["event"].startswith(line[:20].decode(errors="backslashreplace"))


def test_binary_rubbish_and_escape_codes_do_no_harm(log_lines: Callable[[], list[dict[str, Any]]]):
    fed(bytes(range(256)).replace(b"\n", b""), b'{"event": "\\u001b[2J", "colour": "\\u001b[31mred"}')
    first, second = log_lines()
    assert all(c.isprintable() or c == "\t" for c in first["event"])
    assert (second["event"], second["colour"]) == ("\\x1b[2J", "\\x1b[31mred")


def test_a_huge_line_of_json_is_cut_and_is_text(log_lines: Callable[[], list[dict[str, Any]]]):
    fed(b'{"event": "' + b"x" * 100_000 + b'"}', b'{"event": "after"}')
    cut, after = log_lines()
    assert cut["event"].startswith('{"event": "xxx')
    assert cut["event"].endswith("[…]")
    assert len(cut["event"]) < 10_000
    assert after["event"] == "after"


def test_it_can_be_read_on_a_terminal():
    stream = io.StringIO()
    with restored_logs():
        configure(LogSettings(format="console"), stream)
        fed(b'{"level": "warning", "event": "run lost", "fence": 3, "time": "t"}', b"plain words")
    structured, plain = stream.getvalue().splitlines()
    assert re.search(r"\[warning\s*\] run lost .*agent_id=a pid=7 fence=3$", structured)
    assert re.search(r"\[info\s*\] plain words .*agent_id=a pid=7$", plain)
