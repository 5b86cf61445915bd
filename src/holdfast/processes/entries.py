"""What a child may run: entries by name from the host's own table, classes only under configured prefixes.

No path of a caller is imported unless a prefix allows it.
"""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from functools import reduce
from typing import TYPE_CHECKING, Any

from holdfast.errors import AppError, NotAllowed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


def entry_path(name: str, entries: Mapping[str, str]) -> str:
    """Return the ``module:function`` of an entry that the host allows."""
    try:
        return entries[name]  # guard: entry-by-name
    except KeyError:
        known = ", ".join(sorted(entries)) or "none"
        close = get_close_matches(name, entries, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise NotAllowed(f"this host has no entry {name!r} (it has: {known}){hint}") from None


def load_entry(path: str) -> Callable[..., object]:
    """Import the function that a table of entries names."""
    found = _load(path)
    if not callable(found):
        raise AppError(f"{path!r} is {type(found).__name__}, not a function of (payload, control)")
    return found


def allowed_class(path: str, prefixes: Iterable[str]) -> type[Any]:
    """Import the class that ``package.module.Class`` or ``package.module:Class`` names, under a prefix.

    A prefix is a package or module (``mycompany.agents``) or a whole class path, never a part of a word.
    """
    check_allowed(path, prefixes)
    found = _load(path if ":" in path else ":".join(path.rsplit(".", 1)))
    # A name under an allowed prefix may be any object that was re-exported there.
    if not isinstance(found, type):
        raise AppError(f"{path!r} is {type(found).__name__}, not a class")
    return found


def check_allowed(path: str, prefixes: Iterable[str]) -> None:
    """Reject the path of a class that is under no prefix, without importing it."""
    allowed = tuple(prefixes)
    dotted = path.replace(":", ".")
    if not all(part.isidentifier() for part in dotted.split(".")):
        raise NotAllowed(f"{path!r} is not the path of a class: write package.module.Class")
    # guard: entry-prefix-whole-word
    if not any(dotted == prefix or dotted.startswith(f"{prefix}.") for prefix in allowed):
        known = ", ".join(sorted(allowed)) or "none"
        raise NotAllowed(
            f"class {path!r} is outside of the prefixes that this host allows ({known}): "
            "add its package to class_prefixes, or send another class"
        )


def _load(path: str) -> object:
    source, _, name = path.partition(":")
    if not source or not name:
        raise AppError(f"{path!r} names no object of a module: write module:name")
    try:
        module = importlib.import_module(source)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{source}.".startswith(f"{missing.name}."):
            raise  # the module exists; a module that it imports is missing
        raise AppError(f"{path!r}: there is no module {missing.name!r}") from None
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError:
        raise AppError(f"{path!r}: module {source} has no {name!r}") from None
