from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import duration_seconds
from holdfast.config.durations import human_duration
from holdfast.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (30, 30.0),
        (0.5, 0.5),
        (0, 0.0),
        ("30", 30.0),
        (" 30 ", 30.0),
        ("1e3", 1000.0),
        ("500ms", 0.5),
        ("30s", 30.0),
        ("30 s", 30.0),
        ("30S", 30.0),
        ("5m", 300.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        ("1.5h", 5400.0),
        ("1h30m", 5400.0),
        ("1h 30m 5s", 5405.0),
        (timedelta(minutes=5), 300.0),
    ],
)
def test_a_duration_is_a_number_or_has_units(written, seconds):
    assert duration_seconds(written) == seconds
    assert isinstance(duration_seconds(written), float)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "s",
        "five minutes",
        "5 parsecs",
        "-5",
        "-5s",
        "5m-3s",
        "5m3",
        "1_000",
        "٣s",
        "nan",
        "inf",
        "1e999",
        -1,
        True,
        math.nan,
        math.inf,
        10**400,
        timedelta(seconds=-1),
    ],
)
def test_anything_else_is_refused_with_how_to_write_it(written):
    with pytest.raises(
        ConfigError,
        match="is not a duration: write a number of seconds, or a number with its unit, like 500ms, 30s",
    ):
        duration_seconds(written)


@given(st.integers(min_value=0, max_value=10**9))
def test_what_is_written_for_people_reads_back(milliseconds):
    seconds = milliseconds / 1000
    assert duration_seconds(human_duration(seconds)) == pytest.approx(seconds)


@given(st.text(max_size=20))
def test_any_text_is_a_finite_duration_or_a_config_error(text):
    try:
        seconds = duration_seconds(text)
    except ConfigError:
        return
    assert math.isfinite(seconds)
    assert seconds >= 0
