"""A resident's mailbox: a queue of runs that nobody but the resident reads, one message after the other.

All messages are of one thread: two copies of a resident, of which one does not know yet that it lost its
place, can't receive side by side, and what ``ctx.state`` holds is the resident's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

if TYPE_CHECKING:
    from holdfast.config import QueueSettings, Settings

RECEIVE: Final = "receive"


def mailbox_of(agent_id: str) -> str:
    """The name of its queue: every id has one, and no two the same."""
    coded = quote(agent_id, safe="").replace(".", "%2E").replace("~", "%7E")
    return "mailbox:" + coded.replace("%", ".")


def thread_of(agent_id: str) -> str:
    """The thread of its messages."""
    return f"resident:{agent_id}"


def mailbox_settings(settings: Settings, agent_id: str) -> QueueSettings:
    """The queue as its only reader sees it."""
    return msgspec.structs.replace(settings.queue_named(mailbox_of(agent_id)), slots=1, max_pending=0)
