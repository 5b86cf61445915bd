from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.errors import InputError
from holdfast.schedules import Cron, Every, Once, Schedule, checked
from holdfast.schedules.schedule import decoded, encoded
from holdfast.schedules.trigger import trigger_of


def schedule(**changes) -> Schedule:
    return msgspec.structs.replace(
        Schedule(name="refresh", agent="refresh", trigger=Every(seconds=30)), **changes
    )


@pytest.mark.parametrize(
    "trigger",
    [
        Every(seconds=0.25, since="completion"),
        Cron(expression="0 */5 * * * *", zone="Europe/Paris"),
        Once(at=1.5e9),
    ],
)
def test_a_schedule_is_read_back_as_it_was_written(trigger):
    written = checked(schedule(trigger=trigger, input={"b": 1, "a": [1, None]}, metadata={"team": "x"}))
    assert decoded(encoded(written)) == written


def test_equal_schedules_are_equal_bytes_and_defaults_cost_nothing():
    assert encoded(schedule(input={"a": 1, "b": 2})) == encoded(schedule(input={"b": 2, "a": 1}))
    assert (
        encoded(schedule()) == b'{"name":"refresh","agent":"refresh","trigger":{"kind":"every","seconds":30}}'
    )


def test_fields_of_a_newer_version_are_not_in_the_way():
    raw = b'{"name":"n","agent":"a","trigger":{"kind":"every","seconds":1,"new":1},"newer":2}'
    assert decoded(raw).trigger == Every(seconds=1)


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"{}", b"\xff", b'{"name":"n","agent":"a","trigger":{"kind":"never"}}']
)
def test_what_is_damaged_is_an_input_error(raw):
    with pytest.raises(InputError, match="can't be read"):
        decoded(raw)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": ""}, "name: "),
        ({"name": "two words"}, "name: 'two words' is not a name"),
        ({"name": "a{b}"}, "name: "),
        ({"name": "x" * 201}, "name: "),
        ({"name": "1234"}, "name: '1234' is not a name"),
        ({"name": "12.5"}, "not a mere number"),
        ({"name": None}, "name: Expected `str`"),
        ({"agent": ""}, "agent: "),
        ({"trigger": Every(seconds=0)}, "every: Expected `float` >= 0.001"),
        ({"trigger": Every(seconds=-1)}, "every: "),
        ({"trigger": Every(seconds=float("nan"))}, "every: "),
        ({"trigger": Every(seconds=float("inf"))}, "every: "),
        ({"trigger": Every(seconds=1, since="lunch")}, "since: 'lunch' is not one of start, completion"),
        ({"trigger": Cron(expression="* * *")}, "cron: '* * *' is not a cron expression"),
        ({"trigger": Cron(expression="0 0 31 4 *")}, "cron: "),
        (
            {"trigger": Cron(expression="* * * * *", zone="Mars/Base")},
            "tz: 'Mars/Base' is not a time zone",
        ),
        (
            {"trigger": Cron(expression="* * * * *", zone="localtime")},
            "tz: 'localtime' is another time on each machine",
        ),
        (
            {"trigger": Cron(expression="* * * * *", zone="posixrules")},
            "tz: 'posixrules' is another time on each machine",
        ),
        ({"trigger": Once(at=-1)}, ": at: "),
        ({"trigger": "* * * * *"}, "trigger: "),
        ({"timeout_seconds": 0}, ": timeout: "),
        ({"error_seconds": -1}, "error_interval: "),
        ({"priority": 10}, "priority: "),
        ({"priority": 1.5}, "priority: "),
        ({"max_runs": -1}, "max_runs: "),
        ({"misfire": "catchup"}, "misfire: 'catchup' is not one of coalesce, skip, catch_up"),
        ({"overlap": "twice"}, "overlap: 'twice' is not one of skip, buffer, cancel, allow"),
        ({"catch_up_most": 0}, "catch_up_most: "),
        ({"pause_after_failures": -1}, "pause_after_failures: "),
        ({"starts_at": 20.0, "ends_at": 10.0}, "ends_at: 10 is not after starts_at, 20"),
        ({"starts_at": float("nan")}, "starts_at: "),
        ({"target": "two words"}, "target: queue must be"),
        ({"metadata": {"a": 1}}, "metadata[...]: "),
        ({"input": object()}, "input: it can't be written as JSON"),
    ],
)
def test_what_is_wrong_is_told_with_its_field(changes, says):
    with pytest.raises(InputError) as raised:
        checked(schedule(**changes))
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("given", "trigger"),
    [
        ({"every": "30s"}, Every(seconds=30)),
        ({"every": 0.5, "since": "completion"}, Every(seconds=0.5, since="completion")),
        ({"every": timedelta(minutes=2)}, Every(seconds=120)),
        (
            {"cron": "0 */5 * * * *", "tz": "Europe/Paris"},
            Cron(expression="0 */5 * * * *", zone="Europe/Paris"),
        ),
        ({"at": 17.5}, Once(at=17.5)),
        ({"at": datetime(1970, 1, 2, tzinfo=UTC)}, Once(at=86400)),
    ],
)
def test_a_trigger_is_made_of_what_people_write(given, trigger):
    assert trigger_of(**given) == trigger


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "got none of them"),
        ({"every": "1s", "cron": "* * * * *"}, "got every and cron"),
        ({"every": "soon"}, "every: 'soon' is not a duration"),
        ({"at": datetime(2026, 1, 1)}, "has no time zone"),
    ],
)
def test_what_is_no_trigger_is_refused(given, says):
    with pytest.raises(InputError, match=says):
        trigger_of(**given)


def test_what_the_guide_makes_over_http_has_an_agent_of_the_guide_s_own_app():
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "schedules.md").read_text()
    code = re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)[0]
    page: dict[str, Any] = {}
    exec(code, page)
    (made,) = re.findall(r"curl -X POST localhost:8080/schedules -d '(.*)'", guide)
    assert msgspec.json.decode(made)["agent"] in page["app"].agents
