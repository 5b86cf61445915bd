"""The output of a child as lines of the host's log, limited in rate and length; dropped lines are counted.

A line that is a JSON object, as our own log writes them, is one line of the host's log with the same level
and fields. Every other line is text. A child can neither set the ids of another agent nor move a cursor.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from holdfast.processes.wire import Lines
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.processes.options import ProcessOptions

_BURST_SECONDS: Final = 5
_LEVELS: Final[Mapping[str, int]] = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "fatal": logging.CRITICAL,
}
# The names that other loggers use for the two fields of every line.
_LEVEL_NAMES: Final = ("level", "levelname", "severity")
_EVENT_NAMES: Final = ("event", "message", "msg")
_ID_FIELDS: Final = ("guild_id", "agent_id", "pid")
_RESERVED: Final = frozenset({"self", "level", "event", "method_name", "exc_info", "stack_info"})
"""Fields that a logger uses itself."""
_UNPRINTABLE: Final = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code not in {9, 10}
}

_log = get_logger(__name__)


class Output:
    """The output of one child."""

    def __init__(self, agent_id: str, labels: Mapping[str, str], options: ProcessOptions) -> None:
        self._fields: dict[str, Any] = {**labels, "agent_id": agent_id}
        self._lines = Lines(options.output_line_bytes)
        self._rate = options.output_lines_per_second
        self._burst = self._rate * _BURST_SECONDS
        self._left = float(self._burst)
        self._filled = time.monotonic()
        self._dropped = 0
        self._tail: deque[str] = deque(maxlen=options.output_tail_lines)

    def began(self, pid: int) -> None:
        """Note the process id of the child."""
        self._fields["pid"] = pid

    def feed(self, data: bytes) -> None:
        """Log the lines that are complete now, within the rate limit."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._filled) * self._rate)
        self._filled = now
        lines, beyond = self._lines.feed(data, int(self._left))  # guard: output-rate-limit
        if lines and self._dropped:
            self._log_dropped()
        self._left -= len(lines)
        for line, cut in lines:
            self._write(line, cut=cut)
        self._dropped += beyond

    def end(self) -> None:
        """Log the remaining output."""
        for line, cut in self._lines.rest():
            self._write(line, cut=cut)
        if self._dropped:
            self._log_dropped()

    def tail(self) -> str:
        """Return the last lines, for a child that ended without reporting an error."""
        return "\n".join(self._tail)

    def tell(self, sent: Mapping[str, Any]) -> None:
        """Log the fields that a child has sent, under their own level."""
        level = _LEVELS.get(str(_first(sent, _LEVEL_NAMES)).lower(), logging.INFO)
        event = _first(sent, _EVENT_NAMES)
        known = {*_LEVEL_NAMES, *_EVENT_NAMES, "time"}  # the host's line has a time, and it is the same
        fields = {_safe(name): _printable(value) for name, value in sent.items() if name not in known}
        if isinstance(fields.get("exception"), str):
            fields["traceback"] = fields.pop("exception")  # the log prints this field as a traceback
        if "logger" in fields:
            fields["logger"] = str(fields["logger"])[:200]
        text = _printable(event) if isinstance(event, str) else "agent output"
        ids = {name: self._fields[name] for name in _ID_FIELDS if name in self._fields}
        _log.log(level, text, **{**self._fields, **fields, **ids})

    def _write(self, line: bytes, *, cut: bool) -> None:
        fields = None if cut else _read(line)
        if fields is not None:
            self._tail.append(str(_first(fields, _EVENT_NAMES) or line[:500].decode(errors="replace"))[:500])
            self.tell(fields)
            return
        text = line.decode(errors="backslashreplace").rstrip("\r").translate(_UNPRINTABLE)
        self._tail.append(text[:500])
        _log.info(text + (" […]" if cut else ""), **self._fields)

    def _log_dropped(self) -> None:
        _log.warning("agent output dropped, rate limit exceeded", dropped_lines=self._dropped, **self._fields)
        self._dropped = 0


def _read(line: bytes) -> dict[str, Any] | None:
    """Return the fields of a line that is a JSON object; other lines cost one comparison."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        fields: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return cast("dict[str, Any]", fields) if isinstance(fields, dict) else None


def _first(fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if name in fields), None)


def _safe(name: str) -> str:
    plain = name.translate(_UNPRINTABLE)
    return f"{plain}_" if plain in _RESERVED else plain


def _printable(value: Any) -> Any:
    """Escape the control characters of a text; texts inside other values are logged quoted anyway."""
    return value.translate(_UNPRINTABLE) if isinstance(value, str) else value
