"""The act in which a run asks a person: it waits without a worker, and is answered over HTTP."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from holdfast_demo.account import SUCCEEDED
from holdfast_demo.figures import Asked
from holdfast_demo.program import ASK, REPLICAS, milliseconds, short

if TYPE_CHECKING:
    from holdfast_demo.http import Http
    from holdfast_demo.stage import Stage

ANSWER = "yes"
AMOUNT = 40
_READING_SECONDS = 1.0


async def ask(stage: Stage, http: Http) -> Asked:
    """Submit to one replica, answer at the other, wait for the end."""
    here, there = (stage.system.replicas[name].url for name in REPLICAS)
    run = stage.account.expect(
        await http.execute(here, "approve", {"name": "Ada", "amount": AMOUNT}), "approve"
    )
    act = stage.begin(ASK, f"approve {short(run.run_id)} is sent by POST /execute")
    interrupt: dict[str, Any] = (await http.question(here, run.run_id))["interrupt"] or {}
    question = str(interrupt.get("question", ""))
    asked_at = time.time()
    act.text = f'approve {short(run.run_id)} asks "{question}" and has left its worker'
    await asyncio.sleep(_READING_SECONDS)
    answered_at = time.time()
    await http.resume(there, run.run_id, ANSWER)
    ended = await stage.until("the answered run to end", lambda: run.last(SUCCEEDED))
    asked = Asked(run.run_id, question, ANSWER, answered_at - asked_at, ended.at - answered_at)
    stage.end(
        act,
        f'"{question}" holds no worker; "{ANSWER}" ends it in {milliseconds(asked.took)}',
    )
    return asked
