"""JSON has no NaN and no Infinity. Written as null they would say something else: they are refused."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

_strict = json.JSONEncoder(allow_nan=False, check_circular=False).encode


def require_finite(value: Any, data: bytes, what: str, enc_hook: Callable[[Any], Any] | None = None) -> None:
    """Raise InputError if a number in ``value``, which was written as ``data``, is one that JSON has not."""
    if value is None or b"null" not in data:  # what is no number was written as null, if there is any
        return
    plain = msgspec.to_builtins(value, enc_hook=enc_hook, str_keys=True)
    try:
        _strict(plain)
    except ValueError as exc:
        raise InputError(f"{what} can't be written as JSON: {_first(plain) or exc}") from exc


def _first(plain: Any) -> str:
    """Say where the first number is that is none."""
    waiting = [("$", plain)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, float) and not math.isfinite(value):
            return f"{path} is {value}, which JSON does not have; send null, or a text"
        if isinstance(value, dict):
            items = cast("dict[str, Any]", value).items()
            waiting += [(f"{path}.{key}", each) for key, each in reversed(items)]
        elif isinstance(value, list | tuple):
            inside = list(enumerate(cast("list[Any]", value)))
            waiting += [(f"{path}[{at}]", each) for at, each in reversed(inside)]
    return ""
