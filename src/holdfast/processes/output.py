"""What a child prints, as lines of the host's log: so many a second, so long at most, the rest counted."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from holdfast.processes.wire import Lines
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.processes.options import ProcessOptions

_BURST_SECONDS: Final = 5
_TAIL_LINES: Final = 5

_log = get_logger(__name__)


class Output:
    """The output of one child."""

    def __init__(self, agent_id: str, labels: Mapping[str, str], options: ProcessOptions) -> None:
        self._fields = {**labels, "agent_id": agent_id}
        self._lines = Lines(options.output_line_bytes)
        self._rate = options.output_lines_per_second
        self._burst = self._rate * _BURST_SECONDS
        self._left = float(self._burst)
        self._filled = time.monotonic()
        self._dropped = 0
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)

    def feed(self, data: bytes) -> None:
        """Log the lines that are whole now, as far as the rate allows."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._filled) * self._rate)
        self._filled = now
        lines, beyond = self._lines.feed(data, int(self._left))
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

    def _write(self, line: bytes, *, cut: bool) -> None:
        text = line.decode(errors="backslashreplace").rstrip("\r")
        self._tail.append(text[:500])
        _log.info(text + (" […]" if cut else ""), **self._fields)

    def _say_dropped(self) -> None:
        _log.warning("an agent printed more than is logged", dropped_lines=self._dropped, **self._fields)
        self._dropped = 0
