from __future__ import annotations

import pytest

from holdfast.processes.limits import Limits, private_bytes


def test_limits_survive_the_way_to_the_child():
    limits = Limits(memory_bytes=1 << 30, nice=-3)
    assert limits.as_json() == {"memory_bytes": 1 << 30, "nice": -3}
    assert Limits.from_json(limits.as_json()) == limits
    assert Limits().as_json() == {}


@pytest.mark.parametrize("wrong", [{"memory_bytes": 0}, {"open_files": -1}])
def test_a_limit_of_nothing_is_refused(wrong: dict[str, int]):
    with pytest.raises(ValueError, match="positive"):
        Limits(**wrong)


def test_what_counts_towards_the_limit_is_known():
    assert private_bytes() > 1 << 20
