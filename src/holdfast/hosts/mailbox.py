"""A resident's mailbox: a queue of runs that only the resident reads, one message after the other.

All messages belong to one thread, so two copies of a resident, of which one has not noticed yet that its
lease is lost, can't receive at the same time, and ``ctx.state`` is the state of the resident.
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
    """Return the name of a resident's queue, which is unique."""
    coded = quote(agent_id, safe="").replace(".", "%2E").replace("~", "%7E")
    return MAILBOX + coded.replace("%", ".")


def thread_of(agent_id: str) -> str:
    """Return the thread of a resident's messages."""
    return f"resident:{agent_id}"


def reader_name(agent_id: str, fence: int, pid: int) -> str:
    """Return the consumer name of one copy of a resident."""
    mailbox = mailbox_of(agent_id)
    if len(mailbox) > _LONG:
        mailbox = MAILBOX + hashlib.sha256(mailbox.encode()).hexdigest()
    return f"{mailbox}:{fence}:{pid}"


def copy_of(agent_id: str, reader: str) -> tuple[int, int] | None:
    """Return the fence and the pid of the copy with this consumer name; None if it is no copy's name."""
    found = _COPY.search(reader)
    copy = (int(found[1]), int(found[2])) if found else (0, 0)
    return copy if reader_name(agent_id, *copy) == reader else None


def mailbox_settings(settings: Settings, agent_id: str) -> QueueSettings:
    """Return the settings of the queue; a message that kills its reader is given up before the reader."""
    queue = settings.queue_named(mailbox_of(agent_id))
    attempts = min(queue.max_attempts, max(settings.hosts.max_restarts, 1))
    return msgspec.structs.replace(queue, slots=1, max_pending=1, max_attempts=attempts)
