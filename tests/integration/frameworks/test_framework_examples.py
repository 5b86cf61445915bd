"""The examples of each framework run as they are, on a real worker, with an answer in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.agents.loader import load_app
from holdfast.runs.run import Status

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(
    ("example", "agent", "payload", "answer", "result"),
    [
        ("functions", "order", {"item": "lamp", "amount": 120}, False, {"ordered": False}),
        (
            "langgraph",
            "writer",
            {"topic": "lighthouses"},
            "publish",
            {"topic": "lighthouses", "draft": "All there is to know about lighthouses.", "published": True},
        ),
        ("pydantic_ai", "support", "refund order 7", True, "Done: 30 for order 7 under {run}:refund "),
        ("openai_agents", "clerk", "pay the electrician", True, "Done: I-12 is paid"),
    ],
)
async def test_it_asks_waits_and_ends(system, chunks, example, agent, payload, answer, result):
    app = load_app(f"{EXAMPLES}/{example}_agent.py")
    assert all(spec.description for spec in app.agents.values())
    await system.worker(app)
    run_id = await system.submit(agent, payload)
    await system.reaches(run_id, Status.INTERRUPTED)
    await system.queue.resume_run(run_id, answer)
    run = await system.ended(run_id)
    assert run.status is Status.SUCCEEDED, run.error
    assert run.result == (result.format(run=run_id) if isinstance(result, str) else result)
    assert await chunks(run_id)


async def test_a_cheap_order_asks_nobody_and_is_counted_by_its_thread(system):
    await system.worker(load_app(f"{EXAMPLES}/functions_agent.py"))
    for number in (1, 2):
        run_id = await system.submit("order", {"item": "pen", "amount": 2}, thread_id="ada")
        run = await system.ended(run_id)
        assert run.result == {
            "ordered": True,
            "reservation": "R-pen",
            "receipt": {"amount": 2, "key": f"{run_id}:pay"},
            "orders": number,
        }
