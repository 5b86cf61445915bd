"""Which agent this process is, if it is one: an agent that stops itself must not wait for its own end."""

from __future__ import annotations

from typing import ClassVar


class Inside:
    """Set once by the entry, in a process that has forked from the zygote for this."""

    agent_id: ClassVar[str] = ""
