"""What a run remembers beyond its attempt: steps that are done, and state, kept under its fence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from holdfast.store.checkpoints import Checkpoints


class Memory(Protocol):
    """The memory of one attempt; a write under a fence that is no longer the newest raises LeaseLost."""

    async def step(self, name: str) -> bytes | None:
        """Return what the step gave, as JSON, if it has been done."""
        ...

    async def put_step(self, name: str, value: bytes, *, seconds: float = 0.0) -> None:
        """Remember that a step is done."""
        ...

    async def state(self) -> dict[str, bytes]:
        """Return the state of the thread, or of the run if it has none."""
        ...

    async def put_state(self, key: str, value: bytes | None) -> None:
        """Remember a part of the state; None forgets it."""
        ...

    async def rollback(self, run_id: str) -> None:
        """Undo what another run of the thread wrote to its state."""
        ...

    async def checkpoints(self) -> Checkpoints | None:
        """Return where graphs keep their checkpoints, under the same fence; None if there is no store."""
        ...


class MemoryStore(Protocol):
    """Where the memory of runs is kept."""

    def memory(
        self,
        *,
        run_id: str,
        thread_id: str,
        fence: int,
        owner: str,
        queue: str = "",
        tenant: str = "",
        partition: int = 0,
        generation: int = 0,
    ) -> Memory:
        """Return the memory of one attempt; nothing is read before it is used."""
        ...


class LocalMemory:
    """A memory that ends with its attempt, for agents that are tried without a store."""

    def __init__(self) -> None:
        self._steps: dict[str, bytes] = {}
        self._state: dict[str, bytes] = {}

    async def step(self, name: str) -> bytes | None:
        """Return what the step gave."""
        return self._steps.get(name)

    async def put_step(self, name: str, value: bytes, *, seconds: float = 0.0) -> None:
        """Remember a step."""
        del seconds
        self._steps[name] = value

    async def state(self) -> dict[str, bytes]:
        """Return the state."""
        return dict(self._state)

    async def put_state(self, key: str, value: bytes | None) -> None:
        """Remember a part of the state."""
        if value is None:
            self._state.pop(key, None)
        else:
            self._state[key] = value

    async def rollback(self, run_id: str) -> None:
        """Nothing of another run is here."""
        del run_id

    async def checkpoints(self) -> None:
        """Return None: a graph keeps its checkpoints in memory too."""
