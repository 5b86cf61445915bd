"""The options that a type checker sees are those that the code takes."""

from __future__ import annotations

import inspect
from typing import get_args

from holdfast import App
from holdfast.client.request import MultitaskName, PriorityName
from holdfast.client.schedules import ScheduleOptions, Schedules
from holdfast.runs.run import Multitask, Priority


def test_the_names_of_a_choice_are_its_values():
    assert get_args(PriorityName) == tuple(Priority)
    assert get_args(MultitaskName) == tuple(Multitask)


def test_a_client_makes_schedules_with_the_options_of_an_app():
    def keywords(call) -> set[str]:
        parameters = inspect.signature(call).parameters.values()
        return {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}

    when = {"every", "cron", "at"}
    assert keywords(Schedules.create) == when | {"paused", "reason"}
    assert ScheduleOptions.__annotations__.keys() == keywords(App.schedule) - when - {"name"} | {"tenant"}
