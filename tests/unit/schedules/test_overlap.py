"""The table of overlap policies."""

from __future__ import annotations

from typing import get_args

import pytest

from holdfast.errors import InputError
from holdfast.schedules.overlap import POLICIES
from holdfast.schedules.schedule import Misfire, Schedule, checked
from holdfast.schedules.trigger import Every
from holdfast.views.schedule_options import Overlap

NOW = 1_775_000_000.0


def schedule(**fields) -> Schedule:
    return Schedule(name="s", agent="a", trigger=Every(seconds=60), **fields)


def test_every_policy_has_one_entry():
    assert set(POLICIES) == set(get_args(Overlap))


@pytest.mark.parametrize(("overlap", "waiting"), [("skip", 0), ("buffer", 2), ("cancel", 0), ("allow", 0)])
def test_only_with_buffer_do_turns_wait_for_the_end_of_a_run(overlap, waiting):
    assert POLICIES[overlap].waiting(schedule(), NOW, NOW + 130) == waiting


@pytest.mark.parametrize("overlap", get_args(Overlap))
@pytest.mark.parametrize("misfire", get_args(Misfire))
def test_only_allow_and_catch_up_are_refused_together(overlap, misfire):
    both = schedule(overlap=overlap, misfire=misfire)
    if (overlap, misfire) == ("allow", "catch_up"):
        with pytest.raises(InputError, match="'allow' and misfire 'catch_up' don't go together"):
            checked(both)
    else:
        assert checked(both) == both
