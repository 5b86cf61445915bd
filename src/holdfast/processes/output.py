"""What a child prints, as lines of the host's log: so many a second, so long at most, the rest counted.

A line that is a JSON object, as our own log writes them, is one line of the host's log with the same level
and fields. Every other line is text. What a child prints can't speak for another agent, or move a cursor.
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
# What other loggers call the two fields that every line has.
_LEVEL_NAMES: Final = ("level", "levelname", "severity")
_EVENT_NAMES: Final = ("event", "message", "msg")
_WHOSE: Final = ("guild_id", "agent_id", "pid")
_OWN: Final = frozenset({"self", "level", "event", "method_name", "exc_info", "stack_info"})
"""What a logger takes for its own when it is given as a field."""
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
        """Note whose output this is."""
        self._fields["pid"] = pid

    def feed(self, data: bytes) -> None:
        """Log the lines that are whole now, as far as the rate allows."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._filled) * self._rate)
        self._filled = now
        lines, beyond = self._lines.feed(data, int(self._left))  # guard: output-rate-limit
        if lines and self._dropped:
            self._say_dropped()
        self._left -= len(lines)
        for line, cut in lines:
            self._write(line, cut=cut)
        self._dropped += beyond

    def end(self) -> None:
        """Log what is left."""
        for line, cut in self._lines.rest():
            self._write(line, cut=cut)
        if self._dropped:
            self._say_dropped()

    def tail(self) -> str:
        """Return the last lines, for a child that ended without another word."""
        return "\n".join(self._tail)

    def tell(self, said: Mapping[str, Any]) -> None:
        """Log what the child says as fields, under its own level."""
        level = _LEVELS.get(str(_first(said, _LEVEL_NAMES)).lower(), logging.INFO)
        event = _first(said, _EVENT_NAMES)
        known = {*_LEVEL_NAMES, *_EVENT_NAMES, "time"}  # the host's line has a time, and it is the same
        fields = {_safe(name): _shown(value) for name, value in said.items() if name not in known}
        if isinstance(fields.get("exception"), str):
            fields["traceback"] = fields.pop("exception")  # the log shows it as what it is
        if "logger" in fields:
            fields["logger"] = str(fields["logger"])[:200]
        text = _shown(event) if isinstance(event, str) else "an agent says"
        whose = {name: self._fields[name] for name in _WHOSE if name in self._fields}
        _log.log(level, text, **{**self._fields, **fields, **whose})

    def _write(self, line: bytes, *, cut: bool) -> None:
        said = None if cut else _read(line)
        if said is not None:
            self._tail.append(str(_first(said, _EVENT_NAMES) or line[:500].decode(errors="replace"))[:500])
            self.tell(said)
            return
        text = line.decode(errors="backslashreplace").rstrip("\r").translate(_UNPRINTABLE)
        self._tail.append(text[:500])
        _log.info(text + (" […]" if cut else ""), **self._fields)

    def _say_dropped(self) -> None:
        _log.warning("an agent printed more than is logged", dropped_lines=self._dropped, **self._fields)
        self._dropped = 0


def _read(line: bytes) -> dict[str, Any] | None:
    """The fields of a line that is a JSON object; most lines are not, and that costs one look."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        said: Any = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return cast("dict[str, Any]", said) if isinstance(said, dict) else None


def _first(said: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((said[name] for name in names if name in said), None)


def _safe(name: str) -> str:
    plain = name.translate(_UNPRINTABLE)
    return f"{plain}_" if plain in _OWN else plain


def _shown(value: Any) -> Any:
    """Return a text without what would move a cursor; deeper ones are shown quoted anyway."""
    return value.translate(_UNPRINTABLE) if isinstance(value, str) else value
