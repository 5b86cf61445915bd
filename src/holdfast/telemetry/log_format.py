"""Formatting of a log event as one line: plain values of limited size, without secrets.

Nothing here raises: a log call must never end a run.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, cast

import msgspec

from holdfast.redaction import redact

if TYPE_CHECKING:
    from types import TracebackType

MAX_TEXT = 8_192
MAX_FRAMES = 30
MAX_ITEMS = 100
MAX_DEPTH = 5


def bounded(text: str, limit: int = MAX_TEXT) -> str:
    """Keep the beginning and the end of a text that is too long; the end of a traceback is most useful."""
    if len(text) <= limit:
        return text
    head = limit // 3
    tail = limit - head
    return f"{text[:head]}\n… {len(text) - limit} characters left out …\n{text[-tail:]}"


def plain(value: object, depth: int = 0) -> object:
    """Turn any value into a JSON value, redacted and bounded."""
    # Most values are short text, and every check below takes longer than this one.
    short = type(value) is str and len(value) <= MAX_TEXT and "://" not in value and "=" not in value
    if short or value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Enum):
        return plain(value.value, depth)
    if depth < MAX_DEPTH:
        if isinstance(value, Mapping):
            items = list(cast("Mapping[object, object]", value).items())[:MAX_ITEMS]
            return {_text(key): plain(item, depth + 1) for key, item in items}
        if isinstance(value, Sequence | set | frozenset) and not isinstance(value, str | bytes | bytearray):
            items = list(cast("Sequence[object]", value))[:MAX_ITEMS]
            return [plain(item, depth + 1) for item in items]
    return _text(value)


def exception_text(exc_info: object) -> str:
    """Render the ``exc_info`` of a log call: the newest frames, up to a limit."""
    error = _exception(exc_info)
    if error is None:
        return ""
    lines = traceback.TracebackException(
        type(error), error, error.__traceback__, limit=-MAX_FRAMES, compact=True
    )
    return redact(bounded("".join(lines.format()).rstrip("\n")))


def json_line(event: Mapping[str, object]) -> str:
    """Write a plain event as JSON on one line."""
    try:
        return msgspec.json.encode(event).decode()
    except (TypeError, ValueError, OverflowError):
        # Lone surrogates and integers beyond 64 bits: rare, slower, but never a lost line.
        return json.dumps(event)


def _text(value: object) -> str:
    try:
        text = value if isinstance(value, str) else str(value)
    except Exception as error:
        text = f"<{type(value).__name__} that can't be shown: {type(error).__name__}>"
    return redact(bounded(text))


def _exception(exc_info: object) -> BaseException | None:
    if isinstance(exc_info, BaseException):
        return exc_info
    if isinstance(exc_info, tuple):
        return cast(
            "tuple[type[BaseException] | None, BaseException | None, TracebackType | None]", exc_info
        )[1]
    return sys.exc_info()[1] if exc_info else None
