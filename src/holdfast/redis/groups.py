"""Consumer groups that were deleted while in use."""

from __future__ import annotations

from holdfast.redis.library import ResponseError


def group_is_missing(exc: BaseException) -> bool:
    """Whether the stream or its group was deleted (by hand, a flush, a failover to an empty replica)."""
    return isinstance(exc, ResponseError) and str(exc).startswith("NOGROUP")
