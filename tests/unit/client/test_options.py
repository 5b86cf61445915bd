"""The options that a type checker sees are those that the code takes."""

from __future__ import annotations

from typing import get_args

from holdfast.client.request import MultitaskName, PriorityName
from holdfast.runs.run import Multitask, Priority


def test_the_names_of_a_choice_are_its_values():
    assert get_args(PriorityName) == tuple(Priority)
    assert get_args(MultitaskName) == tuple(Multitask)
