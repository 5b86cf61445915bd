"""How often a store's database was away, for tests that must know when it was noticed."""

from __future__ import annotations

from typing import Any

from holdfast.store.engine import Away
from holdfast.store.store import Store


def note_away(store: Store) -> list[str]:
    """Return a list that grows by one for every operation that finds the database away."""
    noticed: list[str] = []
    engine: Any = store._engine
    run = engine.run

    async def noting(*args: Any, **options: Any) -> Any:
        try:
            return await run(*args, **options)
        except Away:
            noticed.append("away")
            raise

    engine.run = noting
    return noticed
