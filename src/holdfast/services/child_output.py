"""The output of a process that starts others, and of its children: for people, or as lines of JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from typing import TextIO

    from holdfast.config import LogSettings
    from holdfast.services.dev.console import Console

_log = get_logger(__name__)


class Voice(Protocol):
    """An output for lines of children and warnings of this process."""

    def introduce(self, name: str) -> None:
        """Register a child's name, for the width of the column."""
        ...

    def line(self, name: str, text: str) -> None:
        """Write a line of a child."""
        ...

    def warn(self, text: str) -> None:
        """Write a warning of this process."""
        ...


class ScalingVoice(Voice, Protocol):
    """An output that also reports scaling."""

    def tell(self, queue: str, text: str, **facts: object) -> None:
        """Report a scaling decision about a queue."""
        ...

    def trouble(self, queue: str, text: str, **facts: object) -> None:
        """Report an error that prevents scaling decisions about a queue."""
        ...


class Spoken:
    """Output for people: a column of names, as ``holdfast dev`` has it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.introduce = console.introduce
        self.line = console.line
        self.warn = console.warn

    def tell(self, queue: str, text: str, **_: object) -> None:
        """Write the text under the name of this process; it includes the facts."""
        self._console.say(f"{queue} {text}")

    def trouble(self, queue: str, text: str, **facts: object) -> None:
        """Write the text as a warning, with the facts."""
        details = "".join(f" ({fact})" for fact in facts.values())
        self._console.warn(f"{queue} {text}{details}")


class Logged:
    """Output for machines: every line is JSON, as the lines of children are."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    def introduce(self, name: str) -> None:
        """Do nothing: a line of JSON has the name of its worker."""

    def line(self, name: str, text: str) -> None:
        """Write a JSON line of a child unchanged, and log any other line."""
        if not text.startswith("{"):
            _log.info(text, worker=name)
            return
        try:
            self._stream.write(f"{text}\n")
            self._stream.flush()
        except (OSError, ValueError):
            return  # the reader has closed the stream: lines are lost, processes go on

    def warn(self, text: str) -> None:
        """Log a warning."""
        _log.warning(text)

    def tell(self, queue: str, text: str, **facts: object) -> None:
        """Log the text with its facts."""
        _log.info(text, queue=queue, **facts)

    def trouble(self, queue: str, text: str, **facts: object) -> None:
        """Log the text as a warning, with its facts."""
        _log.warning(text, queue=queue, **facts)


def resolved_format(log: LogSettings) -> str:
    """Return the log format, with ``auto`` resolved here: a child writes to a pipe and can't resolve it."""
    if log.format == "auto":
        return "console" if sys.stderr.isatty() else "json"
    return log.format
