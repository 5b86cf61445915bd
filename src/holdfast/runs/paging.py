"""One list merged from several sources, newest first; its cursor has the position in each source."""

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
    """One page of items and the cursor of the next page; empty after the last page."""

    items: list[T]
    cursor: str = ""


_decoder = msgspec.json.Decoder(dict[str, str])


def write_cursor(positions: Mapping[str, str]) -> str:
    """Encode the position in each source; empty if all are at their end."""
    if not positions:
        return ""
    return base64.urlsafe_b64encode(msgspec.json.encode(positions)).rstrip(b"=").decode()


def read_cursor(cursor: str, names: tuple[str, ...]) -> dict[str, str]:
    """Decode the position in each source; sources at their end are missing."""
    if not cursor:
        return dict.fromkeys(names, "")
    try:
        positions = _decoder.decode(base64.urlsafe_b64decode(cursor.encode("ascii") + b"=="))
    except (ValueError, binascii.Error, msgspec.DecodeError, RecursionError):
        positions = {"": ""}
    if not set(positions) <= set(names):
        raise InputError(f"cursor {cursor[:80]!r} was not given out by a previous page of this list")
    return positions


async def merged(
    sources: Mapping[str, Callable[[str, int], Awaitable[Slice[T]]]],
    positions: dict[str, str],
    limit: int,
    when: Callable[[T], float],
) -> list[T]:
    """Return the newest ``limit`` items of all sources, and move ``positions`` behind them."""
    names = [name for name in sources if name in positions]
    pages = await asyncio.gather(*(sources[name](positions[name], limit) for name in names))
    found = [(when(item), name, item) for name, page in zip(names, pages, strict=True) for item in page.items]
    found.sort(key=lambda each: -each[0])
    taken = found[:limit]
    for name, page in zip(names, pages, strict=True):
        used = sum(1 for _, source, _ in taken if source == name)
        if 0 < used < len(page.items):
            page = await sources[name](positions[name], used)  # noqa: PLW2901  the cursor after the used items
        elif not used and page.items:
            continue
        if page.cursor:
            positions[name] = page.cursor
        else:
            del positions[name]
    return [item for _, _, item in taken]
