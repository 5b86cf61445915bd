"""What is allowed where a body has something that is not: the words are read from its shape."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from msgspec import inspect

if TYPE_CHECKING:
    from collections.abc import Iterator

_WRONG: Final = re.compile(r"Invalid enum value (.*) - at `(\$.*)`", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*?)`(?: - at `(\$.*)`)?", re.DOTALL)
_UNLIKE: Final = re.compile(r"Expected `str` matching regex .* - at `(\$.*)`", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[]+)|\[[^\]]*\]")
_LONGEST: Final = 80
# What callers write from memory of another API, or of our own client; told where the body has the field.
_ALIASES: Final = {
    "agent": "agent_id",
    "agent_name": "agent_id",
    "name": "agent_id",
    "answer": "value",
    "input": "value",
    "response": "value",
    "result": "value",
    "args": "input",
    "data": "input",
    "message": "input",
    "params": "input",
    "payload": "input",
    "delay": "delay_seconds",
    "timeout": "timeout_seconds",
    "id": "correlation_id",
    "run_id": "correlation_id",
    "conversation_id": "thread_id",
    "session_id": "thread_id",
    "thread": "thread_id",
    "time_zone": "tz",
    "timezone": "tz",
    "zone": "tz",
    "queue": "target",
    "callback": "webhook",
    "callback_url": "webhook",
    "webhook_url": "webhook",
}
_HEADERS: Final = {"idempotency_key": "Idempotency-Key"}


def told(said: str, shape: Any) -> str:
    """Return what msgspec said about a body of that shape, with what is allowed there if the shape tells."""
    if wrong := _WRONG.fullmatch(said):
        value, path = wrong.groups()
        allowed = ", ".join(_allowed(_kinds(shape, path)))
        return f"{path.removeprefix('$.')}: {value[:_LONGEST]} is not one of {allowed}" if allowed else said
    if unknown := _UNKNOWN.fullmatch(said):
        name, path = unknown[1], unknown[2] or "$"
        where = f" in {path.removeprefix('$.')}" if unknown[2] else ""
        return f"unknown field `{name[:_LONGEST]}`{where}: {_meant(name, _names(_kinds(shape, path)))}"
    if unlike := _UNLIKE.fullmatch(said):
        path = unlike[1]
        must = next(_demands(_kinds(shape, path)), "")
        return f"{path.removeprefix('$.')} must {must}" if must else said
    return said


def _meant(name: str, names: list[str]) -> str:
    """Return the question what was meant; if nothing is near, the names that there are."""
    if name in _HEADERS:  # before the look-alikes: it is also near to concurrency_key
        return f"did you mean the header `{_HEADERS[name]}`?"
    alias = _ALIASES.get(name.lower().replace("-", "_"), "")
    close = [alias] if alias in names else get_close_matches(name[:_LONGEST], names, n=1)
    return f"did you mean `{close[0]}`?" if close else f"the fields are {', '.join(names)}"


def _kinds(shape: Any, path: str) -> list[inspect.Type]:
    """What the shape has at a path, with the notes that it is annotated with."""
    kinds = list(_plain(inspect.type_info(shape)))
    for step in _STEP.finditer(path):
        kinds = [each for kind in kinds for each in _inside(kind, step[1])]
    return kinds


def _allowed(kinds: list[inspect.Type]) -> list[str]:
    literal = [str(value) for kind in kinds if isinstance(kind, inspect.LiteralType) for value in kind.values]
    enums = [kind.cls for kind in kinds if isinstance(kind, inspect.EnumType)]
    return [*literal, *(str(each.value) for enum in enums for each in enum)]


def _names(kinds: list[inspect.Type]) -> list[str]:
    return [
        field.encode_name for kind in kinds if isinstance(kind, inspect.StructType) for field in kind.fields
    ]


def _demands(kinds: list[inspect.Type]) -> Iterator[str]:
    """What ``Meta(extra={"must": ...})`` beside a pattern says of it in words."""
    for kind in kinds:
        notes: Any = getattr(kind, "extra", None)
        if notes and "must" in notes:
            yield notes["must"]


def _inside(kind: inspect.Type, name: str | None) -> Iterator[inspect.Type]:
    """What is at a field of that name, or at any place of a list or a mapping."""
    if isinstance(kind, inspect.StructType):
        for field in kind.fields:
            if field.encode_name == name:
                yield from _plain(field.type)
    elif isinstance(kind, inspect.ListType):
        yield from _plain(kind.item_type)
    elif isinstance(kind, inspect.DictType):
        yield from _plain(kind.value_type)


def _plain(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        yield kind
        yield from _plain(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _plain(each)
    else:
        yield kind
