"""Coalesces concurrent writes of one kind into batches.

One batch is in flight at a time; items that arrive meanwhile are the next batch, so batches grow with the
load and a single caller does not wait. An item whose caller was cancelled before it was sent is never sent:
the caller may have used a fallback since.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")
R = TypeVar("R")


_BATCH_BYTES = 4 * 1024 * 1024
"""A larger script call would block all other clients, and time out on a slow link."""


def fitting(items: Sequence[T], size: Callable[[T], int], *, most: int) -> int:
    """Return how many of the first items fit into one call: at least one, at most ``most``, about 4 MB."""
    total = 0
    for count, item in enumerate(items[:most]):
        total += size(item)
        if total > _BATCH_BYTES and count:
            return count
    return min(len(items), most)


class Batcher(Generic[T, R]):
    """Passes lists of items to ``flush``, which returns one result (or exception) per item."""

    def __init__(
        self, flush: Callable[[list[T]], Awaitable[Sequence[R | Exception]]], *, limit: int = 200
    ) -> None:
        self._flush = flush
        self._limit = limit
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._drainer: asyncio.Task[None] | None = None
        self._alone: asyncio.Future[None] | None = None

    async def add(self, item: T) -> R:
        """Send ``item`` with the next batch and return its own result."""
        if self._drainer is None and self._alone is None:
            return await self._send_alone(item)
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        return await future

    async def _send_alone(self, item: T) -> R:
        """Send one item at once, without a task, as no batch is in flight."""
        self._alone = asyncio.get_running_loop().create_future()
        try:
            (result,) = await self._flush([item])
        finally:
            self._alone.set_result(None)
            self._alone = None
            if self._waiting:
                self._drainer = asyncio.create_task(self._drain(), name="batcher")
        if isinstance(result, Exception):
            raise result
        return result

    async def aclose(self) -> None:
        """Wait until everything that was added has been sent."""
        while (sending := self._drainer or self._alone) is not None:
            await asyncio.wait([sending])

    async def _drain(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[: self._limit], self._waiting[self._limit :]
                # guard: batch-skips-abandoned
                if wanted := [(item, future) for item, future in batch if not future.done()]:
                    await self._send(wanted)
        finally:
            self._drainer = None

    async def _send(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            results = await self._flush([item for item, _ in batch])
        except BaseException as exc:
            for _, future in batch:
                _fail(future, exc)
            if not isinstance(exc, Exception):
                raise
            return
        for (_, future), result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                _fail(future, result)
            elif not future.done():
                future.set_result(result)


def _fail(future: asyncio.Future[R], exc: BaseException) -> None:
    if future.done():
        return
    if isinstance(exc, asyncio.CancelledError):
        future.cancel()
    else:
        future.set_exception(exc)
