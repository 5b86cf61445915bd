"""The order of tests is made by chance and repeated by its seed, and long tests begin first in every process."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from tests.support.ordering import shuffled, spread


@dataclass(frozen=True)
class Named:
    nodeid: str

    @property
    def location(self) -> tuple[str]:
        return (self.nodeid.partition("::")[0],)


TESTS = [
    Named(f"{module}.py::{group}{number}")
    for module in "abcdef"
    for group in ("test_", "TestOne::test_", "TestTwo::test_")
    for number in range(5)
]


def test_a_seed_repeats_its_order_and_another_seed_has_another():
    first, again, other = (shuffled(TESTS, random.Random(seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert sorted(first, key=str) == sorted(TESTS, key=str)


def test_the_tests_of_a_module_and_of_a_class_stay_together():
    modules = [test.location for test in shuffled(TESTS, random.Random(3))]
    assert sum(one != other for one, other in itertools.pairwise(modules)) == 5
    classes = [test.nodeid.rpartition("::")[0] for test in shuffled(TESTS, random.Random(3))]
    assert sum(one != other for one, other in itertools.pairwise(classes)) == 17


def test_every_process_begins_with_its_share_of_the_long_tests():
    ordered = spread(list("ABCDE"), list("abcdefghijk"), 4)
    parts = [ordered[start : start + 4] for start in range(0, 16, 4)]
    assert [part[0] for part in parts] == list("ABCD")
    assert parts[0][1] == "E"
    assert sorted(ordered) == sorted("ABCDEabcdefghijk")


def test_no_test_is_lost_when_there_are_few_of_them():
    for count in range(6):
        for long in range(count + 1):
            names = list("abcdef")[:count]
            assert sorted(spread(names[:long], names[long:], 4)) == names
