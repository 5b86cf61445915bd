"""Agents of Rustic AI for the tests of tests/rustic."""

from __future__ import annotations

import os
import time

from rustic_ai.core.guild import Agent, agent
from rustic_ai.core.guild.agent import ProcessContext
from rustic_ai.core.messaging.core import JsonDict


class Answering(Agent):
    """Says which process it is to whoever asks for it, and for "slowly" takes its time."""

    @agent.processor(JsonDict)
    def answer(self, ctx: ProcessContext[JsonDict]) -> None:
        if ctx.payload.get("ask") not in {self.id, "all"}:
            return
        if "slowly" in ctx.payload:
            ctx.send_dict({"began": self.id})
            time.sleep(ctx.payload["slowly"])
        ctx.send_dict({"answer": self.id, "pid": os.getpid(), "n": ctx.payload.get("n")})


class Failing(Agent):
    """Can't be made."""

    def __init__(self) -> None:
        raise ValueError("this agent does not want to live")
