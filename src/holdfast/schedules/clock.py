"""An estimate of Redis TIME in this process, for timers only: the scripts read Redis TIME itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.clock import boot_time

if TYPE_CHECKING:
    from collections.abc import Callable


class RedisClock:
    """Redis's time, from its quickest recent reply and ``boot_time()``; the machine's before any reply.

    A reply is accurate within the time that it took. So the quickest one is kept, for as long as it is
    trusted (``time-cache-duration-ms``): a slow reply in between would only shift the timers.
    """

    def __init__(
        self,
        trusted_seconds: float = 10.0,
        *,
        local: Callable[[], float] = boot_time,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._trusted = trusted_seconds
        self._local = local
        self._wall = wall
        self._offset: float | None = None
        self._took = self._heard_at = 0.0

    @property
    def is_old(self) -> bool:
        """Whether Redis TIME is to be read again."""
        return self._offset is None or self._local() - self._heard_at >= self._trusted

    def synchronize(self, now: float, asked_at: float) -> None:
        """Take a reply into account whose request was sent at the local time ``asked_at``."""
        answered = self._local()
        took = answered - asked_at
        if self.is_old or took <= self._took:  # guard: clock-quickest-answer
            self._offset = now - (asked_at + answered) / 2
            self._took, self._heard_at = took, answered

    def now(self) -> float:
        """Redis's time, epoch seconds."""
        # guard: clock-of-redis
        return self._wall() if self._offset is None else self._local() + self._offset

    def until(self, at: float) -> float:
        """Seconds from now to a time of Redis."""
        return at - self.now()
