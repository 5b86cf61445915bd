"""How a setting's value is shown to people: no secret and no password within a URL ever gets through."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

HIDDEN: Final = "***"
_LONGEST: Final = 120

# Greedy up to the last @: a password may itself hold /, ?, # or @, and hiding too much is the safe side.
_USERINFO = re.compile(r"(?<=://)(.*)@", re.DOTALL)
_PARAMETER = re.compile(r"((?:password|passwd|secret|token)=)[^&\s'\"]+", re.IGNORECASE)


def redacted(text: str) -> str:
    """Return ``text`` with the passwords of any URL in it hidden."""
    return _PARAMETER.sub(rf"\1{HIDDEN}", _USERINFO.sub(_hide_userinfo, text))


def shown(value: object, *, secret: bool = False, url: bool = False) -> str:
    """Return ``value`` as a person would write it, with what is secret hidden."""
    if secret:
        return HIDDEN if value else '""'
    text = _plain(value)
    if url and "://" not in text:
        # A URL whose scheme was forgotten or mistyped still carries its password before the @.
        _, at, host = text.rpartition("@")
        text = f"{HIDDEN}@{host}" if at else text
    text = redacted(text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else f"{value:.6g}"
    if isinstance(value, str):
        return _printable(value) if value else '""'
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_plain(item) for item in cast("Sequence[object]", value)) + "]"
    return str(value)


def _printable(text: str) -> str:
    # Quotes and escapes appear only where blanks or control characters would mislead the reader.
    return text if text.isprintable() and text == text.strip() else repr(text)


def _hide_userinfo(match: re.Match[str]) -> str:
    user, colon, _ = match[1].partition(":")
    return f"{user}:{HIDDEN}@" if colon else f"{HIDDEN}@"
