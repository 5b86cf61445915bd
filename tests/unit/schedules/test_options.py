"""The options of a schedule are declared once: whatever repeats their names must have all of them, and no other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

from holdfast.cli.dispatch import command_of
from holdfast.errors import InputError
from holdfast.schedules.declaration import changed, declared
from holdfast.schedules.schedule import Schedule
from holdfast.schedules.trigger import moment
from holdfast.views import schedule_options
from holdfast.views.schedule_options import (
    CreateKeywords,
    ScheduleChange,
    ScheduleKeywords,
    ScheduleOptions,
    ScheduleRequest,
)

OPTIONS = set(ScheduleOptions.__struct_fields__)
STORED = {"timeout_seconds": "timeout", "error_seconds": "error_interval"}
SHAPED = {"every", "cron", "at", "tz", "since", *STORED.values(), "starts_at", "ends_at"}
"""Options that are stored in another form than they are written."""


def test_the_keywords_of_the_decorator_are_the_options():
    assert set(ScheduleKeywords.__annotations__) == OPTIONS


def test_the_keywords_of_a_client_are_those_of_the_request():
    assert set(CreateKeywords.__annotations__) | {"name", "agent"} == set(ScheduleRequest.__struct_fields__)


def test_a_keyword_takes_what_its_option_takes():
    """Fails if the words of a policy, or whether it is text or a number, differ between the two."""
    names = {"Duration": float | str | timedelta, "Time": float | str | datetime}
    keywords = get_type_hints(ScheduleKeywords, vars(schedule_options), names)
    of_python = {NoneType, timedelta, datetime}
    for option in msgspec.structs.fields(ScheduleOptions):
        assert plain(option.type) - of_python == plain(keywords[option.name]) - of_python, option.name


def plain(kind: Any) -> set[Any]:
    """Return what a type may be, without its limits: the words of a Literal, the classes of a union."""
    if get_origin(kind) is Annotated:
        return plain(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return set(get_args(kind))
    if get_origin(kind) in {UnionType, Union}:
        return set().union(*map(plain, get_args(kind)))
    return {get_origin(kind) or kind}


def test_a_change_has_the_options_and_the_agent():
    assert set(ScheduleChange.__struct_fields__) == OPTIONS | {"agent"}


def test_a_command_has_each_option_of_the_request():
    create = command_of("schedules").commands["schedules"].commands["create"]
    options = {parameter.name for parameter in create.params}
    assert options - {"payload", "json", "config"} | {"input"} == set(ScheduleRequest.__struct_fields__)


def test_a_stored_schedule_has_each_option_with_the_same_default():
    fields = {field.name: field for field in msgspec.structs.fields(Schedule)}
    written = {field.name: field for field in msgspec.structs.fields(ScheduleOptions)}
    assert {STORED.get(name, name) for name in fields} | SHAPED == OPTIONS | {
        "name",
        "agent",
        "trigger",
        "tenant",
        "source",
    }
    for name in OPTIONS - SHAPED - {"metadata", "input"}:
        assert fields[name].default == written[name].default, name


@pytest.mark.parametrize(
    "written",
    [
        1896073200,
        1896073200.0,
        datetime(2030, 1, 31, 7, tzinfo=UTC),
        "2030-01-31T07:00Z",
        "2030-01-31T08:00+01:00",
    ],
)
def test_a_time_is_a_number_a_datetime_or_text(written):
    assert moment("at", written) == 1896073200.0
    made = declared("s", "a", {"every": "5m", "starts_at": written, "ends_at": None})
    assert (made.starts_at, made.ends_at) == (1896073200.0, 0.0)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("soon", "at: 'soon' is not a time"),
        (None, "at: None is not a time"),
        ("2030-01-31T07:00", "at: '2030-01-31T07:00' has no time zone: write it like"),
        (datetime(2030, 1, 31), "at: '2030-01-31 00:00:00' has no time zone"),
    ],
)
def test_what_is_no_time_is_refused_with_how_to_write_one(written, says):
    with pytest.raises(InputError, match=says):
        moment("at", written)


def test_a_change_leaves_what_it_does_not_name_and_clears_what_is_null():
    options = {
        "cron": "0 3 * * *",
        "tz": "Europe/Paris",
        "error_interval": "5s",
        "starts_at": 17,
        "priority": 2,
    }
    before = declared("s", "a", options)
    after = changed(before, {"tz": "UTC", "error_interval": None, "starts_at": None, "timeout": "1m"})
    assert after == declared("s", "a", {"cron": "0 3 * * *", "priority": 2, "timeout": 60})
