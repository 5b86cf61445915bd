"""What is allowed where a body has a word that is not: the words are read from its shape."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from msgspec import inspect

if TYPE_CHECKING:
    from collections.abc import Iterator

_WRONG: Final = re.compile(r"Invalid enum value (.*) - at `(\$.*)`", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[]+)|\[[^\]]*\]")
_LONGEST: Final = 80


def told(said: str, shape: Any) -> str:
    """Return what msgspec said about a body of that shape; of a wrong word, with those that are allowed."""
    wrong = _WRONG.fullmatch(said)
    if wrong is None:
        return said
    value, path = wrong.groups()
    allowed = ", ".join(_allowed(inspect.type_info(shape), path))
    return f"{path.removeprefix('$.')}: {value[:_LONGEST]} is not one of {allowed}" if allowed else said


def _allowed(kind: inspect.Type, path: str) -> list[str]:
    kinds = list(_plain(kind))
    for step in _STEP.finditer(path):
        kinds = [each for kind in kinds for each in _inside(kind, step[1])]
    literal = [str(value) for kind in kinds if isinstance(kind, inspect.LiteralType) for value in kind.values]
    enums = [kind.cls for kind in kinds if isinstance(kind, inspect.EnumType)]
    return [*literal, *(str(each.value) for enum in enums for each in enum)]


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
        yield from _plain(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _plain(each)
    else:
        yield kind
