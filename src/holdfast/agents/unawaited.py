"""A coroutine where a value should be: somebody forgot ``await``, and is told so by its name."""

from __future__ import annotations

import inspect
from typing import Any, cast


def forgotten(value: Any) -> str:
    """Say which coroutine in ``value`` was not awaited, if any, and close all that are there.

    Closed, they don't warn: Python would name the line that gave up on them, which is none of the agent's.
    """
    said = ""
    waiting, seen = [("$", value)], set[int]()
    while waiting:
        path, each = waiting.pop()
        if id(each) in seen:  # what holds itself can't be written either
            continue
        seen.add(id(each))
        if inspect.iscoroutine(each):
            each.close()
            place = "" if path == "$" else f" at {path}"
            said = said or f"holds the coroutine {each.__qualname__}{place}: did you forget await?"
        else:
            waiting += reversed(_inside(path, each))
    return said


def _inside(path: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"{path}.{key}", each) for key, each in cast("dict[Any, Any]", value).items()]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"{path}[{at}]", each) for at, each in enumerate(cast("list[Any]", value))]
    names: Any = getattr(value, "__struct_fields__", ()) or getattr(value, "__dataclass_fields__", ())
    return [(f"{path}.{name}", getattr(value, name, None)) for name in names]
