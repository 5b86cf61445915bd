"""Fields of an agent's input that every log line about a run carries: ``log_fields=["job_id", "meta.job"]``.

They are read from the input, so a run is found by them whichever way it came: also a plain ``XADD``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec

from holdfast.errors import AppError

if TYPE_CHECKING:
    from collections.abc import Iterable

LogFields: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
"""Of each field: its name in the log, and the keys that lead to it."""

_PATH = re.compile(r"\w+(\.\w+)*")
_OURS: Final = frozenset(
    {"run_id", "correlation_id", "message_id", "agent", "agent_id", "attempt", "fence", "queue"}
)
_LONGEST_TEXT: Final = 200
_LONGEST_OBJECT: Final = 10_000


def checked_log_fields(agent: str, paths: Iterable[str] | None) -> LogFields:
    """Check what an agent declares; AppError says what is wrong with it."""
    if paths is None:
        return ()
    named = f"agent {agent!r}: log_fields"
    if isinstance(paths, str) or not all(isinstance(path, str) for path in paths):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise AppError(f"{named} is {paths!r}: a list of names, like ['job_id', 'metadata.trace_id']")
    fields: dict[str, tuple[str, ...]] = {}
    for path in paths:
        name = path.rpartition(".")[2]
        if not _PATH.fullmatch(path):
            raise AppError(f"{named}: {path!r} is not the name of a field, or names separated by dots")
        if name in _OURS or name in fields:
            why = "is on every line already" if name in _OURS else "is the name of two of them"
            raise AppError(f"{named}: {path!r}: {name!r} {why}")
        fields[name] = tuple(path.split("."))
    return tuple(fields.items())


def read_log_fields(fields: LogFields, payload: Any) -> dict[str, Any]:
    """Return the fields that the input has as a text, a number or a truth value; the others are left out."""
    found: dict[str, Any] = {}
    for name, keys in fields:
        value = _value(payload, keys)
        if isinstance(value, str):
            found[name] = value[:_LONGEST_TEXT]
        elif isinstance(value, int | float):
            found[name] = value
    return found


def _value(payload: Any, keys: tuple[str, ...]) -> Any:
    for key in keys:
        payload = _object(payload).get(key)
    return payload


def _object(value: Any) -> Mapping[str, Any]:
    """What has fields; those of a stream entry are text, so an object in one of them is written as JSON."""
    if isinstance(value, str) and value.startswith("{") and len(value) <= _LONGEST_OBJECT:
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return {}
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
