"""When runs arrive and how long they take: read from CSV or JSON lines, and written as CSV."""

from __future__ import annotations

import csv
import math
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.config.durations import DAY
from holdfast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

COLUMNS: Final = ("arrival", "duration", "queue", "priority")
_EPOCH: Final = 1e8
"""Arrivals from here on are times of the clock, and are counted from the first of them."""
LONGEST_SECONDS: Final = 3660 * DAY
_LANES: Final = {"high": 1, "": 2, "normal": 2, "low": 3}


@dataclass(frozen=True, slots=True)
class Trace:
    """Runs in the order of their arrival; times in seconds."""

    arrivals: array[float]
    durations: array[float]
    lanes: bytes | None = None
    """The lane of each run, if they differ: 1 high, 2 normal, 3 low."""
    seconds: float = 0.0
    """How long it goes on, which may be longer than until the last arrival."""
    queue: str = ""
    """The one queue that all of its runs name, if they do."""

    def __len__(self) -> int:
        return len(self.arrivals)


class Row(msgspec.Struct, frozen=True):
    """One run of a trace."""

    arrival: float
    duration: float
    queue: str = ""
    priority: str = ""


def trace_of(rows: Iterable[Row], *, seconds: float = 0.0) -> Trace:
    """Put runs in order; a trace that begins at a time of the clock begins at 0."""
    ordered = sorted(rows, key=lambda row: row.arrival)
    begin = ordered[0].arrival if ordered and ordered[0].arrival >= _EPOCH else 0.0
    lanes = bytes(_LANES[row.priority] for row in ordered)
    arrivals = array("d", [row.arrival - begin for row in ordered])
    queues = {row.queue for row in ordered}
    return Trace(
        arrivals,
        array("d", [row.duration for row in ordered]),
        lanes if set(lanes) - {2} else None,
        max(seconds, arrivals[-1] if arrivals else 0.0),
        queues.pop() if len(queues) == 1 else "",
    )


def read_trace(path: Path, *, queue: str = "") -> Trace:
    """Read a file; of a trace with several queues only the runs of ``queue``, if one is named."""
    rows = list(_rows(path))
    names = sorted({row.queue for row in rows if row.queue})
    if queue and names:
        rows = [row for row in rows if row.queue == queue]
        if not rows:
            raise InputError(f"{path} has no run of queue {queue!r}: it has {', '.join(names)}")
    elif len(names) > 1:
        raise InputError(f"{path} has runs of several queues: name one with --queue ({', '.join(names)})")
    if not rows:
        raise InputError(f"{path} holds no runs: write a line `arrival,duration` in seconds for each")
    trace = trace_of(rows)
    if trace.seconds > LONGEST_SECONDS:
        raise InputError(
            f"{path} goes on for {trace.seconds / DAY:,.3g} days, and ten years are the most: "
            "are all arrivals seconds, and of one clock?"
        )
    return trace


def _rows(path: Path) -> Iterator[Row]:
    try:
        # As spreadsheets write it, too: with a mark of the order of bytes.
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = next((line for line in file if line.strip()), "")
            file.seek(0)
            yield from (_jsonl if first.lstrip().startswith("{") else _csv)(path, file)
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text: a trace is CSV or JSON lines") from None
    except OSError as exc:
        raise InputError(f"{path} can't be read: {exc.strerror}") from exc


def _jsonl(path: Path, lines: Iterable[str]) -> Iterator[Row]:
    decoder = msgspec.json.Decoder(Row)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise InputError(
                f'{path}:{number}: {exc}; write {{"arrival": 0.5, "duration": 12}} on each line'
            ) from exc
        yield _checked(path, number, row)


def _csv(path: Path, lines: Iterable[str]) -> Iterator[Row]:
    reader = csv.reader(lines)
    columns: Sequence[str] = COLUMNS
    started = False
    try:
        for fields in reader:
            cells = [field.strip() for field in fields]
            if not any(cells) or cells[0].startswith("#"):
                continue
            if not started and "arrival" in cells:
                columns = _header(path, reader.line_num, cells)
            else:
                yield _cells(path, reader.line_num, columns, cells)
            started = True
    except csv.Error as exc:
        raise InputError(f"{path}:{reader.line_num}: {exc}") from exc


def _header(path: Path, number: int, cells: list[str]) -> list[str]:
    if "duration" not in cells:
        raise InputError(f"{path}:{number}: the header has no column `duration`, only {', '.join(cells)}")
    return cells


def _cells(path: Path, number: int, columns: Sequence[str], cells: list[str]) -> Row:
    named = dict(zip(columns, cells, strict=False))
    try:
        arrival, duration = float(named["arrival"]), float(named["duration"])
    except KeyError as exc:
        raise InputError(f"{path}:{number}: there is no {exc}: a line is `arrival,duration`") from exc
    except ValueError as exc:
        wrong = str(exc).rpartition(": ")[2]
        raise InputError(f"{path}:{number}: {wrong[:40]} is not a number of seconds") from exc
    row = Row(arrival, duration, named.get("queue", ""), named.get("priority", ""))
    return _checked(path, number, row)


def _checked(path: Path, number: int, row: Row) -> Row:
    for name, value in (("arrival", row.arrival), ("duration", row.duration)):
        if not math.isfinite(value) or value < 0:
            raise InputError(f"{path}:{number}: {name} is {value:g}, but must be 0 or more seconds")
    if row.priority not in _LANES:
        raise InputError(f"{path}:{number}: priority {row.priority[:20]!r} is not one of high, normal, low")
    return row


def write_trace(path: Path, rows: Iterable[Row]) -> int:
    """Write runs as CSV, in the order of their arrival counted from the first; return how many they are."""
    ordered = sorted(rows, key=lambda row: row.arrival)
    begin = ordered[0].arrival if ordered else 0.0
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for row in ordered:
                writer.writerow(
                    (f"{row.arrival - begin:.3f}", f"{row.duration:.3f}", row.queue, row.priority)
                )
    except OSError as exc:
        raise InputError(f"{path} can't be written: {exc.strerror}") from exc
    return len(ordered)
