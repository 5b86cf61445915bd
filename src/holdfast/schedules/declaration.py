"""A schedule made of its options as people write them: in ``@app.schedule``, a request or a command."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.config import duration_seconds
from holdfast.errors import ConfigError, InputError
from holdfast.schedules.schedule import Schedule, checked
from holdfast.schedules.trigger import moment, trigger_of
from holdfast.views.schedule_options import ScheduleOptions
from holdfast.views.triggers import Cron, Every

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.views.triggers import Trigger

_OPTIONS: Final = ScheduleOptions.__struct_fields__
_WHEN: Final = ("every", "cron", "at")
_TRIGGER: Final = (*_WHEN, "tz", "since")
_STORED_SPANS: Final = {"timeout": "timeout_seconds", "error_interval": "error_seconds"}
_MOMENTS: Final = ("starts_at", "ends_at")
_ALIASES: Final = {"timezone": "tz", "time_zone": "tz", "zone": "tz", "queue": "target"}
"""Names that other schedulers, and the commands of Holdfast, have for an option."""


def declared(name: str, agent: str, options: Mapping[str, Any], *, tenant: str = "") -> Schedule:
    """Make the schedule ``name`` of ``agent``; an option that is None is as good as left out."""
    given = {option: value for option, value in options.items() if value is not None}
    try:
        _require_known(given)
        _require_cron_for_zone(given)
        trigger = trigger_of(**{option: given[option] for option in _TRIGGER if option in given})
        fields = _stored(given)
    except InputError as exc:
        raise InputError(f"schedule {name!r}: {exc}") from None
    return checked(Schedule(name=name, agent=agent, trigger=trigger, tenant=tenant, **fields))


def changed(schedule: Schedule, given: Mapping[str, Any]) -> Schedule:
    """Return the schedule with other options; the caller checks the result as a whole."""
    return msgspec.structs.replace(
        schedule, **_stored(given), trigger=_changed_trigger(schedule.trigger, given)
    )


def _require_known(options: Iterable[str]) -> None:
    """Raise InputError for an option that schedules do not have, with the one that was probably meant."""
    for option in options:
        if option not in _OPTIONS:
            close = [_ALIASES[option]] if option in _ALIASES else get_close_matches(option, _OPTIONS, n=1)
            meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(_OPTIONS)}"
            raise InputError(f"{option}: a schedule has no such option: {meant}")


def _require_cron_for_zone(given: Mapping[str, Any]) -> None:
    zone = given.get("tz", "UTC")
    if "cron" not in given and zone != "UTC":
        raise InputError(f"tz: only a cron expression has a time zone, leave tz={zone!r} out")


def _stored(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as the fields of a schedule that hold them, but for those of its trigger."""
    fields: dict[str, Any] = {}
    for option, value in given.items():
        if option in _STORED_SPANS:
            fields[_STORED_SPANS[option]] = None if value is None else _seconds(option, value)
        elif option in _MOMENTS:
            fields[option] = 0.0 if value is None else moment(option, value)
        elif option not in _TRIGGER:
            fields[option] = value
    return fields


def _seconds(option: str, value: Any) -> float:
    try:
        return duration_seconds(value)
    except ConfigError as exc:
        raise InputError(f"{option}: {exc}") from None


def _changed_trigger(old: Trigger, given: Mapping[str, Any]) -> Trigger:
    zone = given.get("tz", old.zone if isinstance(old, Cron) else "UTC")
    since = given.get("since", old.since if isinstance(old, Every) else "start")
    if any(option in given for option in _WHEN):
        return trigger_of(**{option: given.get(option) for option in _WHEN}, tz=zone, since=since)
    if "tz" in given and not isinstance(old, Cron):
        raise InputError("tz: only a cron expression has a time zone")
    if "since" in given and not isinstance(old, Every):
        raise InputError("since: only an interval counts from the start or the completion")
    if isinstance(old, Cron):
        return msgspec.structs.replace(old, zone=zone)
    return msgspec.structs.replace(old, since=since) if isinstance(old, Every) else old
