"""One list out of several: newest first, with one cursor that remembers where each of them is."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from holdfast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

T = TypeVar("T")


class Slice(msgspec.Struct, Generic[T], frozen=True):
    """Items and where to go on; an empty cursor means that was all."""

    items: list[T]
    cursor: str = ""


_decoder = msgspec.json.Decoder(dict[str, str])


def write_cursor(places: Mapping[str, str]) -> str:
    """Write where each source is; nothing if all are at their end."""
    if not places:
        return ""
    return base64.urlsafe_b64encode(msgspec.json.encode(places)).rstrip(b"=").decode()


def read_cursor(cursor: str, names: tuple[str, ...]) -> dict[str, str]:
    """Where each source is; those at their end are missing."""
    if not cursor:
        return dict.fromkeys(names, "")
    try:
        places = _decoder.decode(base64.urlsafe_b64decode(cursor.encode("ascii") + b"=="))
    except (ValueError, binascii.Error, msgspec.DecodeError, RecursionError):
        places = {"": ""}
    if not set(places) <= set(names):
        raise InputError(f"cursor {cursor[:80]!r} was not given out by a previous page of this list")
    return places


async def merged(
    sources: Mapping[str, Callable[[str, int], Awaitable[Slice[T]]]],
    places: dict[str, str],
    limit: int,
    when: Callable[[T], float],
) -> list[T]:
    """Take the newest ``limit`` items of all sources, and move ``places`` behind what was taken."""
    names = [name for name in sources if name in places]
    pages = await asyncio.gather(*(sources[name](places[name], limit) for name in names))
    found = [(when(item), name, item) for name, page in zip(names, pages, strict=True) for item in page.items]
    found.sort(key=lambda each: -each[0])
    taken = found[:limit]
    for name, page in zip(names, pages, strict=True):
        used = sum(1 for _, source, _ in taken if source == name)
        if 0 < used < len(page.items):
            page = await sources[name](places[name], used)  # noqa: PLW2901  only what was taken of it
        elif not used and page.items:
            continue
        if page.cursor:
            places[name] = page.cursor
        else:
            del places[name]
    return [item for _, _, item in taken]
