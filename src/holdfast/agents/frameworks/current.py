"""The context of the run that a framework's node or tool is part of."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING

from holdfast.errors import AppError

if TYPE_CHECKING:
    from collections.abc import Generator

    from holdfast.agents.context import Context

_current: ContextVar[Context | None] = ContextVar("holdfast_context", default=None)


def current_context() -> Context:
    """Return the Context of the run this node or tool is part of: its idempotency keys, events, logs."""
    ctx = _current.get()
    if ctx is None:
        raise AppError("current_context() was called outside of a run: only nodes and tools of one have it")
    return ctx


@contextlib.contextmanager
def entered(ctx: Context) -> Generator[None]:
    """Make a context the current one of this task and of what it starts."""
    token = _current.set(ctx)
    try:
        yield
    finally:
        _current.reset(token)
