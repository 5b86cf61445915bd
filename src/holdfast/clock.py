"""The clock by which leases are trusted."""

from __future__ import annotations

import time
from typing import Final

CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Counts suspended time: on macOS CLOCK_MONOTONIC does."""


def boot_time() -> float:
    """Return the seconds since the machine was started, those included in which it was suspended.

    ``time.monotonic()`` stands still meanwhile on Linux: after resuming, a lease that ended in Redis minutes
    ago would still be trusted. All processes of a machine share this clock.
    """
    return time.clock_gettime(CLOCK)  # guard: counts-suspended-time
