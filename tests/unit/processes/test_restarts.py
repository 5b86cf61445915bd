from __future__ import annotations

import pytest

from holdfast.processes.restarts import RestartPolicy

POLICY = RestartPolicy(max_restarts=3, window_seconds=100, base_seconds=1, cap_seconds=5)


@pytest.mark.parametrize(
    ("restarted_at", "now", "delay"),
    [
        ((), 0, 1),
        ((0,), 1, 2),
        ((0, 1), 2, 4),
        ((0, 1, 2), 3, None),
        # What is older than the window counts no more.
        ((0, 1, 2), 100, 4),
        ((0, 1, 2), 101.5, 2),
        ((0, 1, 2), 1000, 1),
    ],
)
def test_a_crash_is_followed_by_a_longer_wait_until_there_were_enough(restarted_at, now, delay):
    assert POLICY.delay(restarted_at, now) == delay


def test_no_restarts_means_none():
    assert RestartPolicy(max_restarts=0).delay((), 0) is None


def test_the_wait_is_capped_however_often_it_was():
    assert POLICY.backoff(10_000) == 5
