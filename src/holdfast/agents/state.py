"""State: what a conversation remembers from run to run, or a run from attempt to attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.agents.models import dumped_to_keep
from holdfast.agents.steps import as_json
from holdfast.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from holdfast.agents.memory import Memory

_LONGEST_KEY = 200


class AgentState:
    """Values by key, of the run's thread if it has one, else of the run; every write is kept at once."""

    def __init__(self, memory: Memory, require_open: Callable[[], None]) -> None:
        self._memory = memory
        self._require_open = require_open
        self._values: dict[str, bytes] | None = None

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key."""
        values = await self._all()
        return msgspec.json.decode(values[key]) if key in values else default

    async def all(self) -> dict[str, Any]:
        """Return everything."""
        return {key: msgspec.json.decode(value) for key, value in (await self._all()).items()}

    async def set(self, key: str, value: Any) -> None:
        """Remember a value that can be written as JSON."""
        await self._put(key, as_json(value, f"state {key!r}", dumped_to_keep))

    async def delete(self, key: str) -> None:
        """Forget a key."""
        await self._put(key, None)

    async def _put(self, key: str, value: bytes | None) -> None:
        if not key or len(key) > _LONGEST_KEY:
            raise InputError(f"a key of the state must have 1 to {_LONGEST_KEY} characters, got {key[:50]!r}")
        values = await self._all()
        await self._memory.put_state(key, value)
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value

    async def _all(self) -> dict[str, bytes]:
        self._require_open()  # guard: state-needs-lease
        if self._values is None:
            self._values = await self._memory.state()
            # A worker that was frozen may be here, after another one has changed the state.
            self._require_open()  # guard: state-read-needs-lease
        return self._values


class SyncState:
    """The same for an agent in a thread."""

    def __init__(self, state: AgentState, wait: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._state = state
        self._wait = wait

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a key."""
        return self._wait(self._state.get(key, default))

    def all(self) -> dict[str, Any]:
        """Return everything."""
        return self._wait(self._state.all())

    def set(self, key: str, value: Any) -> None:
        """Remember a value that can be written as JSON."""
        self._wait(self._state.set(key, value))

    def delete(self, key: str) -> None:
        """Forget a key."""
        self._wait(self._state.delete(key))
