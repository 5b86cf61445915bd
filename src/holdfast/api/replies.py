"""Answers of the API: JSON by msgspec, and bodies read by it, with errors that name the field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.responses import Response

from holdfast.api.choices import told
from holdfast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


def reply(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with a value as JSON."""
    return Response(_encode(value), status_code=status, headers=headers, media_type="application/json")


async def body(request: Request, decoder: msgspec.json.Decoder[T], default: T) -> T:
    """Read a body that may be left out."""
    data = await request.body()
    return read(data, decoder) if data.strip() else default


def read(data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Read JSON, or raise InputError that says what is wrong with it and where."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as exc:
        raise InputError(f"body: {told(str(exc), decoder.type)}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InputError(f"body: {exc}") from exc
