"""From text to the value of a setting; file and environment are parsed by the same rules."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.config.durations import UNIT_SECONDS, parse_duration, parse_number
from holdfast.config.redact import shown

if TYPE_CHECKING:
    from holdfast.config.schema import Leaf

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")


class Odd(msgspec.Struct, frozen=True):
    """A given value that is neither text nor a list of texts."""

    what: str

    def __str__(self) -> str:
        return self.what


class Given(msgspec.Struct, frozen=True):
    """The given value of a setting, and its source; ``unit`` is that of the variable's name, if any."""

    raw: str | tuple[str, ...] | Odd
    source: str
    unit: str | None = None


class Invalid(Exception):
    """The setting can't have this value; the message is the text of the allowed ones."""


def read(leaf: Leaf, given: Given) -> object:
    """Return the setting's value, or raise Invalid with the allowed values."""
    value = _parse(leaf, given)
    if value is None:
        raise Invalid(leaf.allowed)
    try:
        made = msgspec.convert(value, leaf.annotation)
    except msgspec.ValidationError:
        raise Invalid(leaf.allowed) from None
    if leaf.regex and (fault := regex_fault(str(made))):
        raise Invalid(f"{leaf.allowed}, and this is none ({fault})")
    return made


def regex_fault(text: str) -> str:
    """Return why ``text`` is not a regular expression; empty if it is one."""
    try:
        compiled(text)
    except re.error as exc:
        return str(exc)
    except (RecursionError, OverflowError):
        return "it is too large"
    return ""


def compiled(text: str) -> re.Pattern[str]:
    """Compile a regular expression of the settings."""
    with warnings.catch_warnings():
        # "[[a]" is valid and may change its meaning in a later Python: its warning is ignored.
        warnings.simplefilter("ignore")
        return re.compile(text)


def show_given(leaf: Leaf, given: Given) -> str:
    """Return the given value to show, with secrets hidden."""
    if isinstance(given.raw, Odd) and not leaf.secret:
        return str(given.raw)
    return shown(given.raw, secret=leaf.secret, url=leaf.url)


def _parse(leaf: Leaf, given: Given) -> object:
    raw = given.raw
    if leaf.kind == "list of names":
        return None if isinstance(raw, Odd) else _names(raw)
    if not isinstance(raw, str):
        return None
    if leaf.kind == "text":
        # A secret from a file often ends with a newline; blanks may be a part of it.
        return raw.rstrip("\r\n") if leaf.secret else raw.strip()
    return _parse_word(leaf, raw.strip(), given.unit)


def _parse_word(leaf: Leaf, word: str, unit: str | None) -> object:
    if leaf.kind == "choice":
        return next((choice for choice in leaf.choices if choice.lower() == word.lower()), None)
    if leaf.kind == "true or false":
        return _boolean(word.lower())
    if leaf.unit is not None:
        return _duration(leaf, word, unit or leaf.unit)
    return _whole(word) if leaf.kind == "whole number" else parse_number(word)


def _names(raw: str | tuple[str, ...]) -> tuple[str, ...]:
    parts = raw.split(",") if isinstance(raw, str) else raw
    return tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))


def _boolean(word: str) -> bool | None:
    return True if word in _TRUE else False if word in _FALSE else None


def _whole(word: str) -> int | None:
    return int(word) if _WHOLE.fullmatch(word) else None


def _duration(leaf: Leaf, word: str, unit: str) -> float | None:
    assert leaf.unit is not None
    seconds = parse_duration(word, unit=unit)
    if seconds is None:
        return None
    count = round(seconds / UNIT_SECONDS[leaf.unit], 6)
    return int(count) if leaf.kind == "whole number" and count.is_integer() else count
