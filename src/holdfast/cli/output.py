"""What commands print: JSON for machines, tables and records for people.

Colours are for terminals only, and never where NO_COLOR is set.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.cli.formatting import clock, compact, printable
from holdfast.cli.root import FAILED, say, silence_stdout, unwritable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import RenderableType
    from rich.text import Text

    from holdfast.events.event import Event

_GAP = 2
_UNBOUND = 1_000_000_000  # what is piped is not cut: somebody may look for an id in it
_STYLES: Final[Mapping[str, str]] = {
    "succeeded": "green",
    "open": "green",
    "working": "green",
    "running": "cyan",
    "started": "cyan",
    "queued": "blue",
    "delayed": "yellow",
    "retrying": "yellow",
    "draining": "yellow",
    "paused": "yellow",
    "failed": "red",
    "timed_out": "red",
    "cancelled": "magenta",
}


_TIMES: Final = frozenset({"at", "since", "deadline", "last_start", "last_end"})
_NOT_OURS: Final = frozenset(
    {
        *("input", "result", "interrupt", "data", "metadata", "logger_context", "fields"),
        *("input_schema", "result_schema"),
    }
)
"""What agents and users have written, which is printed as it is."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. A narrow terminal leaves out ``optional`` ones and cuts ``free`` text."""

    title: str
    number: bool = False
    free: bool = False
    optional: bool = False


def document(value: Any) -> None:
    """Print one JSON document; beside each time in epoch seconds the same as text, ``started_at_iso``."""
    as_it_is(_with_iso(msgspec.to_builtins(value)))


def as_it_is(value: Any) -> None:
    """Print a view, as the HTTP API returns it, or the JSON of an agent or a user: a result, a reply."""
    _write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def json_line(value: Any) -> None:
    """Print one line of JSON, at once; its times are text, too."""
    _write(compact(_with_iso(msgspec.to_builtins(value))) + "\n")


def _with_iso(value: Any) -> Any:
    from holdfast.config.durations import iso

    if isinstance(value, list):
        return [_with_iso(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    written: dict[str, Any] = {}
    for name, each in cast("dict[str, Any]", value).items():
        written[name] = each if name in _NOT_OURS else _with_iso(each)
        if (name.endswith(("_at", "_since")) or name in _TIMES) and isinstance(each, float | int | None):
            written.setdefault(f"{name}_iso", iso(each or 0.0))
    return written


def text(written: str) -> None:
    """Print a text of ours as it is."""
    _write(written)


def line(text: str) -> None:
    """Print one line, at once."""
    _write(printable(text) + "\n")


def note(text: str, *, json: bool = False) -> None:
    """Say something beside the answer on stderr, in one line: a sentence or, for machines, JSON."""
    say(compact({"note": text}) if json else f"holdfast: {printable(text)}")


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Print rows under their titles, or what there is to say if there are none."""
    from rich.table import Table

    cells = [[_styled(cell) for cell in row] for row in rows]
    if not cells:
        line(empty)
        return
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        columns, cells = _without_optional(columns, cells, width)
        _fit(columns, cells, width)
    shown = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for column in columns:
        shown.add_column(column.title, justify="right" if column.number else "left", no_wrap=True)
    for row in cells:
        shown.add_row(*row)
    _print(shown)


def _without_optional(
    columns: Sequence[Column], rows: list[list[Text]], width: int
) -> tuple[Sequence[Column], list[list[Text]]]:
    """Leave out optional columns, the last one first, until the others fit."""
    while sum(widths := _widths(columns, rows)) + _GAP * (len(widths) - 1) > width:
        last = next((at for at in reversed(range(len(columns))) if columns[at].optional), None)
        if last is None:
            break
        columns = [*columns[:last], *columns[last + 1 :]]
        rows = [[*row[:last], *row[last + 1 :]] for row in rows]
    return columns, rows


def _widths(columns: Sequence[Column], rows: list[list[Text]]) -> list[int]:
    return [max(len(c.title), *(row[at].cell_len for row in rows)) for at, c in enumerate(columns)]


def _fit(columns: Sequence[Column], rows: list[list[Text]], width: int) -> None:
    """Cut free text so that the rest keeps its room: half an id is worth nothing."""
    widths = _widths(columns, rows)
    while sum(widths) + _GAP * (len(widths) - 1) > width:
        longest = max((at for at, c in enumerate(columns) if c.free), key=lambda at: widths[at], default=None)
        if longest is None or widths[longest] <= len(columns[longest].title):
            return
        widths[longest] -= 1
    for row in rows:
        for cell, room in zip(row, widths, strict=True):
            cell.truncate(room, overflow="ellipsis")


def record(fields: Iterable[tuple[str, str]]) -> None:
    """Print one thing, a field a line, text of several lines below; fields that are empty are left out."""
    from rich.table import Table

    fields = list(fields)
    shown = Table(box=None, pad_edge=False, show_header=False, show_edge=False)
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(overflow="fold")
    for name, value in fields:
        if value and "\n" not in value:
            shown.add_row(name, _styled(value))
    _print(shown)
    for name, value in fields:
        if "\n" in value:  # a traceback: as it is, so that it can be read and copied
            _write(f"{name}\n{printable(value, lines=True)}\n")


def event(happened: Event) -> None:
    """Print an event of a feed on one line, at once."""
    from rich.text import Text

    data = "" if happened.data in (None, {}) else compact(happened.data)
    kind = printable(happened.type)
    text = Text.assemble((clock(happened.at), "dim"), "  ", (f"{kind:<11}", _STYLES.get(kind, "")), " ", data)
    text.no_wrap, text.overflow = True, "ellipsis"
    _print(text)


def _styled(value: str, *, lines: bool = False) -> Text:
    from rich.text import Text

    return Text(printable(value, lines=lines), style=_STYLES.get(value.partition(" ")[0], ""))


def _print(shown: RenderableType) -> None:
    from rich.console import Console

    terminal = sys.stdout.isatty()
    console = Console(
        color_system="auto" if terminal and not os.environ.get("NO_COLOR") else None,
        width=None if terminal else _UNBOUND,
        highlight=False,
    )
    with console.capture() as captured:
        console.print(shown)
    text = captured.get()
    _write(text if terminal else "".join(f"{each.rstrip()}\n" for each in text.splitlines()))


def _write(text: str) -> None:
    # A closed pipe is an OSError, which would be taken for a Redis that is away.
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
        raise SystemExit(FAILED) from None
    except OSError as exc:
        raise unwritable(exc) from None
