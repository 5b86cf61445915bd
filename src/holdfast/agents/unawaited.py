"""A coroutine where a value should be: somebody forgot ``await``, and is told so by its name."""

from __future__ import annotations

import inspect
from typing import Any, TypeAlias, cast

_Path: TypeAlias = "tuple[_Path, str] | None"
"""Where a value is: the path of what holds it, and its place there. Written out only if it is needed."""


def forgotten(value: Any) -> str:
    """Say which coroutine in ``value`` was not awaited, if any, and close all that are there.

    Closed, they don't warn: Python would name the line that gave up on them, which is none of the agent's.
    """
    said = ""
    waiting: list[tuple[_Path, Any]] = [(None, value)]
    seen = set[int]()
    while waiting:
        path, each = waiting.pop()
        if id(each) in seen:  # what holds itself can't be written either
            continue
        seen.add(id(each))
        if inspect.iscoroutine(each):
            each.close()
            place = f" at {_written(path)}" if path else ""
            said = said or f"holds the coroutine {each.__qualname__}{place}: did you forget await?"
        else:
            waiting += reversed(_inside(path, each))
    return said


def _inside(path: _Path, value: Any) -> list[tuple[_Path, Any]]:
    if isinstance(value, dict):
        return [((path, f".{key}"), each) for key, each in cast("dict[Any, Any]", value).items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [((path, f"[{at}]"), each) for at, each in enumerate(cast("list[Any]", value))]
    # Of its class: an object may answer any name that it is asked for, or raise what it likes.
    kind = type(cast("object", value))
    names: Any = getattr(kind, "__struct_fields__", ()) or getattr(kind, "__dataclass_fields__", ())
    return [((path, f".{name}"), getattr(value, name, None)) for name in names]


def _written(path: _Path) -> str:
    parts: list[str] = []
    while path is not None:
        path, part = path
        parts.append(part)
    return "$" + "".join(reversed(parts))
