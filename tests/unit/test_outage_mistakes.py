"""Mistakes in how outages are logged, and the tests that notice them."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake, replaced

TEST = "tests/unit/test_outages.py"

MISTAKES = [
    Mistake(
        "every loop of a process logs the same outage",
        replaced("outage-logged-once", "cause not in self._causes", "reporter not in self._failing"),
        f"{TEST}::test_two_loops_that_meet_one_outage_give_two_lines",
    ),
    Mistake(
        "an outage ends and begins with each answer to another loop",
        replaced("outage-ends-for-all-loops", "now - self._failed_at < ", "0 > "),
        f"{TEST}::test_a_loop_that_still_fails_keeps_the_outage_open_while_others_are_answered",
    ),
]


class TestOutages(KnownMistakes):
    mistakes = MISTAKES
