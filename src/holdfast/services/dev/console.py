"""The output of several processes for a person: whole lines, each after a short coloured name.

With ``log.format`` json (``holdfast dev --json``) a program reads it: every line is a JSON object.
"""

from __future__ import annotations

import contextlib
import os
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

_COLOURS = (36, 35, 34, 33, 32, 96, 95, 94)
_PLAIN, _DIM, _BOLD, _RED = "0", "2", "1", "31"
OURSELVES = "dev"


class Console:
    """Writes lines under a name; a closed terminal loses lines, but stops no process."""

    def __init__(self, stream: TextIO | None = None, *, ourselves: str = OURSELVES) -> None:
        self._stream = stream or sys.stdout
        self._ourselves = ourselves
        self._colourful = self._stream.isatty() and not os.environ.get("NO_COLOR")
        self._colours: dict[str, int] = {}
        self._width = len(ourselves)

    def introduce(self, name: str) -> None:
        """Give a name its colour, and all names the width of the longest."""
        self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])
        self._width = max(self._width, len(name))

    def line(self, name: str, text: str) -> None:
        """Write a line of a child unchanged."""
        colour = str(self._colours.get(name, _DIM))
        self._write(f"{self._paint(f'{name:<{self._width}} │', colour)} {text}")

    def say(self, text: str) -> None:
        """Write text of this process."""
        for line in text.splitlines() or [""]:
            self._write(f"{self._paint(f'{self._ourselves:<{self._width}} │', _BOLD)} {line}".rstrip())

    def warn(self, text: str) -> None:
        """Write a warning of this process."""
        self.say("\n".join(self._paint(line, _RED) for line in text.splitlines()))

    def bold(self, text: str) -> str:
        """Return text that stands out."""
        return self._paint(text, _BOLD)

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[{_PLAIN}m" if self._colourful and text else text

    def _write(self, line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(line + "\n")
            self._stream.flush()


class JsonConsole(Console):
    """Writes JSON objects with ``service``: a child's log line with its fields, other text as ``event``."""

    def line(self, name: str, text: str) -> None:
        """Write a line of a child."""
        logged = _object(text)
        if logged is None:
            self._log("info", text, name)
        else:
            self._write_object({**logged, "service": name})

    def say(self, text: str) -> None:
        """Write text of this process."""
        self._log("info", text, self._ourselves)

    def warn(self, text: str) -> None:
        """Write a warning of this process."""
        self._log("warning", text, self._ourselves)

    def bold(self, text: str) -> str:
        """Return the text unchanged."""
        return text

    def _log(self, level: str, text: str, name: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._write_object({"time": now, "level": level, "event": text, "service": name})

    def _write_object(self, fields: dict[str, Any]) -> None:
        with contextlib.suppress(UnicodeEncodeError):  # a file name may be invalid text
            self._write(msgspec.json.encode(fields).decode())


def _object(text: str) -> dict[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return None
