"""One log line when a dependency becomes unavailable, and one when it answers again.

Every loop of a process reports its failures and its answers; all loops that meet the same outage share two
lines. An outage whose cause changes is logged once more. Repeated failures are logged at debug and counted in
the last line.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

_SETTLED_SECONDS: Final = 2.0
"""How long no call has failed before an answer ends an outage: the loops notice its end one after another."""
_FORGOTTEN_SECONDS: Final = 15.0
"""The same while a loop that has failed has not been answered: some try again only after minutes."""

_log = logging.getLogger(__name__)  # the package telemetry is above this module


class Outage:
    """The calls of this process to one dependency; any thread may report."""

    def __init__(self, dependency: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._dependency = dependency
        self._clock = clock
        self._lock = threading.Lock()
        self._end()

    def _end(self) -> None:
        self._is_on = False
        self._began = self._failed_at = 0.0
        self._answered_at: float | None = None
        self._failures = 0
        self._held_up: dict[str, None] = {}
        self._failing: set[OutageReporter] = set()
        self._causes: set[str] = set()

    def failed(self, reporter: OutageReporter, error: str, cause: str = "") -> None:
        """Log the first failure of each cause as a warning, and each further one at debug."""
        now = self._clock()
        with self._lock:
            is_new = cause not in self._causes  # guard: outage-logged-once
            if not self._is_on:
                self._is_on, self._began = True, now
            self._causes.add(cause)
            self._failed_at, self._answered_at = now, None
            self._failures += 1
            self._held_up[reporter.held_up] = None
            self._failing.add(reporter)
        fields = {"held_up": reporter.held_up, "meanwhile": reporter.meanwhile, "error": error}
        level = logging.WARNING if is_new else logging.DEBUG
        _log.log(level, f"{self._dependency} unavailable", extra={"fields": fields})

    def answered(self, reporter: OutageReporter) -> None:
        """Log the summary once no call fails any more."""
        if not self._is_on:
            return
        now = self._clock()
        with self._lock:
            if not self._is_on:
                return
            self._failing.discard(reporter)
            if self._answered_at is None:
                self._answered_at = now
            # guard: outage-ends-for-all-loops
            if now - self._failed_at < (_FORGOTTEN_SECONDS if self._failing else _SETTLED_SECONDS):
                return
            fields = {
                "seconds": round(self._answered_at - self._began, 1),
                "failures": self._failures,
                "delayed": list(self._held_up),
            }
            self._end()
        _log.warning(f"{self._dependency} available again", extra={"fields": fields})


class OutageReporter:
    """Reports the calls of one loop: ``with reporter:`` around a call, or ``failed`` and ``answered``.

    A loop that calls several servers of a cluster has a reporter for each: an answer means that none of the
    reporter's calls fails any more.

    As a context manager it lets every exception pass and reports those that mean an outage.
    """

    def __init__(
        self,
        outage: Outage,
        held_up: str,
        meanwhile: str = "",
        *,
        is_outage: Callable[[BaseException], bool],
        explain: Callable[[BaseException], str] | None = None,
        cause: Callable[[BaseException], str] | None = None,
    ) -> None:
        self._outage = outage
        self.held_up = held_up
        """What waits for the dependency."""
        self.meanwhile = meanwhile
        """What the process does until the dependency answers."""
        self._is_outage = is_outage
        self._explain = explain or _text
        self._cause = cause or _no_cause

    def failed(self, exc: BaseException) -> bool:
        """Report an exception, if it means an outage; return whether it does."""
        if not self._is_outage(exc):
            return False
        self._outage.failed(self, self._explain(exc), self._cause(exc))
        return True

    def answered(self) -> None:
        """Report that a call was answered."""
        self._outage.answered(self)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is None:
            self._outage.answered(self)
        else:
            self.failed(exc)


def _no_cause(exc: BaseException) -> str:
    del exc
    return ""


def _text(exc: BaseException) -> str:
    return str(exc) or type(exc).__name__
