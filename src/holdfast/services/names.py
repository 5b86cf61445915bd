"""Names that only one live process may have: whether the record of another one is in the way."""

from __future__ import annotations

import os
import platform
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.redis.members import Member


def is_taken(member: Member) -> bool:
    """Whether a record is that of another process which may live; our own predecessor's is not."""
    host, pid = member.fields.get("host"), member.fields.get("pid", "")
    if host != platform.node() or not pid.isdigit():
        return True
    if int(pid) == os.getpid():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
