"""The pause after failures in a row: it grows by a factor with each failure, up to a limit. Pure."""

from __future__ import annotations


def backoff_seconds(
    failures: int, first_seconds: float, most_seconds: float, *, factor: float = 2.0
) -> float:
    """Return the pause after so many failures in a row; the first failure is 1."""
    try:
        return min(first_seconds * factor ** (failures - 1), most_seconds)
    except OverflowError:  # 2.0 ** 1024, after weeks of failures
        return most_seconds
