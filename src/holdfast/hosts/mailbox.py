"""A resident's mailbox: a queue of runs that nobody but the resident reads, one message after the other.

All messages are of one thread: two copies of a resident, of which one does not know yet that it lost its
place, can't receive side by side, and what ``ctx.state`` holds is the resident's.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from holdfast.config.queues import MAILBOX

if TYPE_CHECKING:
    from holdfast.config import QueueSettings, Settings

RECEIVE: Final = "receive"
_LONG: Final = 150
_COPY: Final = re.compile(r":(\d+):(\d+)\Z")


def mailbox_of(agent_id: str) -> str:
    """The name of its queue: every id has one, and no two the same."""
    coded = quote(agent_id, safe="").replace(".", "%2E").replace("~", "%7E")
    return MAILBOX + coded.replace("%", ".")


def thread_of(agent_id: str) -> str:
    """The thread of its messages."""
    return f"resident:{agent_id}"


def reader_name(agent_id: str, fence: int, pid: int) -> str:
    """The name under which one copy of a resident reads its mailbox."""
    mailbox = mailbox_of(agent_id)
    if len(mailbox) > _LONG:
        mailbox = MAILBOX + hashlib.sha256(mailbox.encode()).hexdigest()
    return f"{mailbox}:{fence}:{pid}"


def copy_of(agent_id: str, reader: str) -> tuple[int, int] | None:
    """The fence and the process of the copy that has this name; None if it is no copy's."""
    found = _COPY.search(reader)
    copy = (int(found[1]), int(found[2])) if found else (0, 0)
    return copy if reader_name(agent_id, *copy) == reader else None


def mailbox_settings(settings: Settings, agent_id: str) -> QueueSettings:
    """The queue as its only reader sees it; a message that kills it is given up before the resident is."""
    queue = settings.queue_named(mailbox_of(agent_id))
    attempts = min(queue.max_attempts, max(settings.hosts.max_restarts, 1))
    return msgspec.structs.replace(queue, slots=1, max_pending=1, max_attempts=attempts)
