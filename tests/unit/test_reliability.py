"""Pauses and Retry-After headers: pure functions, each for all who wait."""

from __future__ import annotations

import math

import pytest

from holdfast.reliability.backoff import backoff_seconds
from holdfast.reliability.retry_after import read_retry_after


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("0", 0), ("7", 7), (" 7 ", 7), ("1.5", 1.5), ("-5", 0), ("999999999999", 999999999999)),
        ("Tue, 14 Nov 2023 22:13:30 GMT", 10),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0),
        *((text, None) for text in ("", "soon", "nan", "inf", "1e999", "٣", "Tue, 99 Nov 2023 22:13:00 GMT")),
        *((text, None) for text in ("Tue, 14 Nov 999999999999 22:13:00 GMT", "," * 100_000)),
    ],
)
def test_retry_after_is_seconds_or_a_date(text, seconds):
    assert read_retry_after(text, now=1700000000.0) == seconds


@pytest.mark.parametrize(
    ("failures", "factor", "seconds"),
    [
        (1, 2.0, 0.5),
        (2, 2.0, 1.0),
        (5, 2.0, 8.0),
        (6, 2.0, 10.0),
        (3, 3.0, 4.5),
        (9, 1.0, 0.5),
        (5000, 2.0, 10.0),
    ],
)
def test_a_pause_grows_with_each_failure_up_to_the_longest(failures, factor, seconds):
    assert backoff_seconds(failures, 0.5, 10.0, factor=factor) == seconds


def test_a_pause_may_have_no_limit():
    assert backoff_seconds(11, 1.0, math.inf) == 1024.0
