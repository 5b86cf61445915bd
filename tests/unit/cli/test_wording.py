from __future__ import annotations

import pytest

from holdfast.cli.formatting import ago, compact, moment, printable, span


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0, "0s"),
        (0.0012, "0.0012s"),
        (0.25, "0.25s"),
        (9.994, "9.99s"),
        (12.4, "12s"),
        (59.4, "59s"),
        (60, "1m"),
        (200, "3m 20s"),
        (3599.6, "1h"),
        (3600, "1h"),
        (18_120, "5h 2m"),
        (90_000, "1d 1h"),
        (864_000, "10d"),
    ],
)
def test_a_span_is_written_as_people_say_it(seconds, written):
    assert span(seconds) == written


@pytest.mark.parametrize(
    ("at", "written"),
    [
        (0, ""),
        (1000.0, "now"),
        (999.2, "now"),
        (998.4, "1s ago"),
        (940.0, "1m ago"),
        (1000.2, "now"),
        (1004.1, "in 5s"),
        (1000.0 + 7200, "in 2h"),
        (1000.0 - 90_000, "1d ago"),
    ],
)
def test_a_time_is_written_by_its_distance(at, written):
    assert ago(at, now=1000.0) == written


def test_a_time_is_written_with_its_zone():
    assert moment(1_775_001_600.0, "Europe/Berlin").startswith("2026-04-01 02:00:00 CEST (")
    assert moment(1_775_001_600.0, "UTC").startswith("2026-04-01 00:00:00 UTC (")


def test_a_time_that_has_not_been_is_empty():
    assert moment(0) == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢", "plain é 漢"),
        ("\x1b[31mred", "\ufffd[31mred"),
        ("two\nlines\there", "two lines here"),
        ("bell\x07 back\x08", "bell\ufffd back\ufffd"),
        ("\u202eevil", "\ufffdevil"),
    ],
)
def test_text_of_others_can_not_steer_the_terminal(text, shown):
    assert printable(text) == shown


def test_lines_stay_where_they_are_wanted():
    assert printable("two\nlines\x1b", lines=True) == "two\nlines\ufffd"


def test_json_is_written_on_one_line():
    assert compact({"a": ["\x1b", "é"]}) == '{"a":["\\u001b","é"]}'
