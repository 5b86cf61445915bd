"""A message to a resident as a run of its mailbox, the same from whichever door it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.hosts.mailbox import RECEIVE, thread_of
from holdfast.runs.run import Submission

if TYPE_CHECKING:
    from holdfast.hosts.agent import Agent


def letter(agent: Agent, message: Any, **options: Any) -> Submission:
    """The run that gives a resident a message: always of the resident's tenant, whose state it is."""
    return Submission(
        agent=RECEIVE,
        input=message,
        thread_id=thread_of(agent.agent_id),
        tenant=agent.organization_id,
        **options,
    )
