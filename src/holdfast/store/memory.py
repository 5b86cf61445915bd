"""The memory of a run during one attempt: its finished steps, and the state of its thread.

It retries while the database is unavailable: the attempt ends when its lease or its timeout does.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, TypeVar

from holdfast.store import fences
from holdfast.store.checkpoints import Checkpoints
from holdfast.store.names import checked_key, label, run_label

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.store.engine import Operation
    from holdfast.store.fences import Holder
    from holdfast.store.store import Store

T = TypeVar("T")


class StoredMemory:
    """The memory of one attempt. The first use registers its fence and reads all steps of the run."""

    def __init__(self, store: Store, holder: Holder, *, queue: str) -> None:
        self._store = store
        self._holder = holder
        self._queue = queue
        self._steps: dict[str, bytes] | None = None
        self._opening = asyncio.Lock()

    async def step(self, name: str) -> bytes | None:
        """Return the value of a finished step; None if it is not finished."""
        return (await self._opened()).get(label(name))

    async def put_step(self, name: str, value: bytes, *, seconds: float = 0.0) -> None:
        """Store a finished step; raise LeaseLost, and write nothing, if another owner has the run."""
        steps, name = await self._opened(), label(name)
        took = float(seconds) if math.isfinite(seconds) else 0.0
        await self._do("put_step", lambda: fences.put_step(self._holder, name, value, took), single=True)
        steps[name] = value

    async def state(self) -> dict[str, bytes]:
        """Return the state of the thread, or of the run if it has none."""
        await self._opened()
        return await self._do(
            "state", lambda: fences.read_state(self._holder.scope), write=False, single=True
        )

    async def put_state(self, key: str, value: bytes | None) -> None:
        """Write a key of the state, None deletes it; raise LeaseLost as ``put_step`` does."""
        checked_key(key)
        await self._opened()
        await self._do("put_state", lambda: fences.put_state(self._holder, key, value), single=True)

    async def rollback(self, run_id: str) -> None:
        """Undo the writes of another run to the thread's state, and refuse its later ones."""
        await self._opened()
        other = run_label(self._queue, run_id)
        await self._do("rollback", lambda: fences.roll_back(self._holder, other))

    async def checkpoints(self) -> Checkpoints:
        """Return the checkpoints of graphs in this thread, which are written under the same fence."""
        await self._opened()
        return Checkpoints(self._store, self._holder)

    async def _opened(self) -> dict[str, bytes]:
        if self._steps is None:
            async with self._opening:
                if self._steps is None:
                    self._steps = await self._do("register", lambda: fences.register(self._holder))
        return self._steps

    async def _do(
        self, name: str, operation: Callable[[], Operation[T]], *, write: bool = True, single: bool = False
    ) -> T:
        return await self._store.perform(name, operation, write=write, single=single, patient=True)
