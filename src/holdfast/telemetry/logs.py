"""Structured logs on stderr, also of other libraries: JSON lines for machines, console lines for terminals.

The fields of the current run are read from one context variable when a line is written, so
setting them costs one call per run and a filtered call costs next to nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, TextIO, cast

from holdfast.packages import hidden
from holdfast.telemetry.log_format import exception_text, json_line, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from structlog.typing import EventDict, FilteringBoundLogger, Processor

    from holdfast.config import LogSettings


# structlog would load rich for tracebacks that are never printed: megabytes and 200 ms in every worker.
with hidden("rich"):
    import structlog

run_context: ContextVar[Mapping[str, object] | None] = ContextVar("holdfast_run", default=None)


def current_run_id() -> str:
    """Return the id of the run that this task or thread is part of; empty outside of runs."""
    fields = run_context.get()
    return str(fields.get("run_id", "")) if fields else ""


_LEAST_LEVELS = {
    # They log each request as information: a janitor makes several a second to Kubernetes.
    "httpx": logging.WARNING,
    "httpx2": logging.WARNING,
    # It warns of each try to connect: the store reports an outage once.
    "psycopg.pool": logging.ERROR,
}
"""The lowest level that is logged of a library, unless the level is DEBUG."""
_REPEATED = {"platform": "queue", "duration_seconds": "seconds", "active_count": "running"}
"""Fields for machines, with the other field that makes each redundant on a console."""
_RESERVED = frozenset({"time", "level", "event", "logger", "exception"})


class speaking_of:  # noqa: N801  used like a function; a generator would be slower than the log line itself
    """Add these fields to the log lines inside, like those that the run itself writes."""

    __slots__ = ("_fields", "_token")

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = fields

    def __enter__(self) -> None:
        self._token = run_context.set(self._fields)

    def __exit__(self, *_: object) -> None:
        run_context.reset(self._token)


class LogOutput:
    """The output of log lines; a closed or broken stream loses lines, but ends no run."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, line: str) -> None:
        """Write one line in one call, so that processes that share the stream do not mix their lines."""
        if self._stream is not None:
            with contextlib.suppress(OSError, ValueError):
                self._stream.write(line + "\n")
                self._stream.flush()

    # structlog calls the method named after the event's level.
    debug = info = warning = error = critical = write


class Bridge(logging.Handler):
    """Sends log records of other libraries through the same steps to the same sink."""

    def __init__(self, steps: list[Processor], sink: LogOutput) -> None:
        super().__init__()
        self._steps = steps
        self._sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record of the standard library's logging."""
        try:
            event: Any = {"event": record.getMessage(), "logger": record.name, "exc_info": record.exc_info}
            event |= getattr(record, "fields", {})  # from modules that this package imports
            for step in self._steps:
                event = step(None, record.levelname.lower(), event)
            self._sink.write(event)
        except Exception:
            self.handleError(record)


class LateLogger:
    """A logger that follows :func:`configure`, so that a module can create its logger at import."""

    __slots__ = ("_bound", "_epoch", "_name")

    # Logging belongs to the process: this counts how often it was configured.
    epoch: ClassVar[int] = 0

    def __init__(self, name: str) -> None:
        self._name = name
        self._epoch = 0
        self._bound: Any = None

    def __getattr__(self, name: str) -> Any:
        if self._epoch != LateLogger.epoch or not self._epoch:
            self._bound = self._resolve()
            self._epoch = LateLogger.epoch
        return getattr(self._bound, name)

    def _resolve(self) -> Any:
        if structlog.is_configured():
            return cast("FilteringBoundLogger", structlog.get_logger().bind(logger=self._name))
        # Used as a library by a program that configured nothing: only warnings and errors.
        return structlog.wrap_logger(
            LogOutput(sys.stderr),
            processors=_steps("auto", sys.stderr),
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        ).bind(logger=self._name)


def get_logger(name: str) -> FilteringBoundLogger:
    """Return the logger of a module or component."""
    return cast("FilteringBoundLogger", LateLogger(name))


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send every log of this process to ``stream`` (stderr) by the settings; the last call applies."""
    stream = stream or sys.stderr
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    sink = LogOutput(stream)
    steps = _steps(settings.format, stream)
    structlog.configure(
        processors=steps,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: sink,
        cache_logger_on_first_use=False,
    )
    LateLogger.epoch += 1
    _bridge_standard_logging(Bridge(steps, sink), level)


def _bridge_standard_logging(bridge: Bridge, level: int) -> None:
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, Bridge)]:
        root.removeHandler(handler)
    root.addHandler(bridge)
    root.setLevel(level)
    for library, least in _LEAST_LEVELS.items():
        logging.getLogger(library).setLevel(least if logging.DEBUG < level < least else logging.NOTSET)
    logging.captureWarnings(capture=True)


def _steps(style: str, stream: TextIO | None) -> list[Processor]:
    """Return the steps from an event to a line; the last step returns the text."""
    if style == "console" or (style == "auto" and _is_terminal(stream)):
        return [_arranger(_local_time), _without_repetition, _console(stream)]
    return [_arranger(_utc_time), _json]


def _arranger(now: Callable[[], str]) -> Processor:
    def arrange(_logger: Any, level: str, event: EventDict) -> EventDict:
        """Order the fields: the known ones, then the run's, then the caller's; all as plain values."""
        line: EventDict = {"time": now(), "level": level, "event": plain(event.pop("event", ""))}
        if name := event.pop("logger", None):
            line["logger"] = name
        exc_info = event.pop("exc_info", None)
        for key, value in {**(run_context.get() or {}), **event}.items():
            line[f"{key}_" if key in _RESERVED else key] = plain(value)
        # The text of a stored traceback is logged as the exception.
        if text := exception_text(exc_info) or line.pop("traceback", ""):
            line["exception"] = text
        return line

    return arrange


def _json(_logger: Any, _level: str, event: EventDict) -> str:
    """Write a line; a line of a run also has correlation_id and agent_id, by which dashboards find it."""
    if (run_id := event.get("run_id")) is not None:
        event["correlation_id"] = run_id
    if (agent := event.get("agent")) is not None:
        event.setdefault("agent_id", agent)
    return json_line(event)


def _without_repetition(_logger: Any, _level: str, event: EventDict) -> EventDict:
    """Leave out fields that are redundant on a console."""
    for name, beside in _REPEATED.items():
        if beside in event:
            event.pop(name, None)
    return event


def _console(stream: TextIO | None) -> Processor:
    from structlog.dev import ConsoleRenderer, plain_traceback  # noqa: PLC0415  only for terminals

    return ConsoleRenderer(
        colors=_is_terminal(stream) and not os.environ.get("NO_COLOR"),
        sort_keys=False,
        timestamp_key="time",
        exception_formatter=plain_traceback,
    )


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _utc_time() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _local_time() -> str:
    return datetime.now().astimezone().strftime("%H:%M:%S")
