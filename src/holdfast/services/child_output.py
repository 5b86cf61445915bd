"""How a process that starts others speaks, and passes on what they say: for people, or as lines of JSON."""

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
    """Where lines go."""

    def introduce(self, name: str) -> None:
        """Get to know a child's name."""
        ...

    def line(self, name: str, text: str) -> None:
        """Pass a child's line on."""
        ...

    def warn(self, text: str) -> None:
        """Say something of our own that needs attention."""
        ...


class ScalingVoice(Voice, Protocol):
    """One that also tells of scaling."""

    def tell(self, queue: str, text: str, **facts: object) -> None:
        """Say what was decided about a queue."""
        ...

    def trouble(self, queue: str, text: str, **facts: object) -> None:
        """Say what keeps us from deciding about a queue."""
        ...


class Spoken:
    """For people: a column of names, as ``holdfast dev`` has it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.introduce = console.introduce
        self.line = console.line
        self.warn = console.warn

    def tell(self, queue: str, text: str, **_: object) -> None:
        """Say it under our name; the facts are in the text."""
        self._console.say(f"{queue} {text}")

    def trouble(self, queue: str, text: str, **facts: object) -> None:
        """Say it so that it stands out."""
        why = "".join(f" ({fact})" for fact in facts.values())
        self._console.warn(f"{queue} {text}{why}")


class Logged:
    """For machines: every line is JSON, and those of the children already are."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr

    def introduce(self, name: str) -> None:
        """Nothing: a line of JSON says itself whose it is."""

    def line(self, name: str, text: str) -> None:
        """Pass a line of the child's log on as it is, and log what is none."""
        if not text.startswith("{"):
            _log.info(text, worker=name)
            return
        try:
            self._stream.write(f"{text}\n")
            self._stream.flush()
        except (OSError, ValueError):
            return  # nobody reads any more: lines are lost, processes are not

    def warn(self, text: str) -> None:
        """Log a warning."""
        _log.warning(text)

    def tell(self, queue: str, text: str, **facts: object) -> None:
        """Log it with its facts."""
        _log.info(text, queue=queue, **facts)

    def trouble(self, queue: str, text: str, **facts: object) -> None:
        """Log it as a warning, with its facts."""
        _log.warning(text, queue=queue, **facts)


def resolved_format(log: LogSettings) -> str:
    """What ``auto`` means here: a child can't tell, since its lines go through a pipe."""
    if log.format == "auto":
        return "console" if sys.stderr.isatty() else "json"
    return log.format
