"""What a step costs: one write of the journal, on SQLite."""

from __future__ import annotations

import tempfile
import time
from typing import TYPE_CHECKING

from bench.figures import Figure, Goal, percentile
from holdfast.config import DatabaseSettings
from holdfast.store.open import open_store

if TYPE_CHECKING:
    from bench.harness import Plan


async def measure(plan: Plan) -> list[Figure]:
    count = plan.pick(3_000, 300)
    seconds: list[float] = []
    with tempfile.TemporaryDirectory(prefix="hfbench") as folder:
        store = await open_store(DatabaseSettings(path=f"{folder}/bench.sqlite"))
        memory = store.memory(run_id="bench", thread_id="", fence=1, owner="bench")
        for number in range(count):
            began = time.perf_counter()
            await memory.put_step(f"step-{number}", b'{"answer": 42}')
            seconds.append(time.perf_counter() - began)
        await store.aclose()
    plan.say(f"step on SQLite: p50 {1000 * percentile(seconds, 0.5):.2f} ms")
    return [
        Figure("a step's write on SQLite, p50", 1000 * percentile(seconds, 0.5), "ms", goal=Goal("<", 1)),
        Figure("a step's write on SQLite, p99", 1000 * percentile(seconds, 0.99), "ms"),
    ]
