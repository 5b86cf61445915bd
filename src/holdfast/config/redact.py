"""The text of a setting's value in messages and listings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from holdfast.redaction import HIDDEN, redact, redact_url

if TYPE_CHECKING:
    from collections.abc import Sequence

_LONGEST: Final = 120


def shown(value: object, *, secret: bool = False, url: bool = False) -> str:
    """Return ``value`` as it would be written in the file, with secrets hidden."""
    if secret:
        return HIDDEN if value else '""'
    text = redact_url(_plain(value)) if url else redact(_plain(value))
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
    # Quotes and escapes are used only for text with outer blanks or control characters.
    return text if text.isprintable() and text == text.strip() else repr(text)
