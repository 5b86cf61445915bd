"""Consumer groups that somebody deleted under us."""

from __future__ import annotations

from holdfast.redis.library import ResponseError


def group_is_missing(exc: BaseException) -> bool:
    """Whether somebody deleted the stream or its group under us (a flush, a failover to an empty replica)."""
    return isinstance(exc, ResponseError) and str(exc).startswith("NOGROUP")
