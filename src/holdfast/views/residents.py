"""What the outside sees of residents, which are long-lived agents on hosts."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.views.runs import ErrorView
from holdfast.views.times import add_iso


class Needs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an agent asks of its host; nothing by default."""

    cpu: float = 0.0
    memory_mb: float = 0.0
    near: tuple[str, ...] = ()
    """Labels that its host must have."""
    apart: tuple[str, ...] = ()
    """Labels of agents that its host must not hold yet."""
    labels: tuple[str, ...] = ()
    """Its own labels, which others may want to be apart from."""


class ResidentRow(msgspec.Struct, frozen=True, kw_only=True):
    """A resident and its host; times are epoch seconds, 0 where there is none."""

    id: str
    name: str
    """The name of its class in the app."""
    entry: str
    """``resident``, or the entry of another framework that its host runs."""
    tenant: str
    guild_id: str
    status: str
    """``placing``, ``starting``, ``running``, ``stopping`` or ``crashed``; a stop answers ``stopped``."""
    host: str
    address: str
    """The address of its host; over HTTP for operators only."""
    pid: int
    fence: int
    restarts: int
    error: str
    """Why it last ended or did not start."""
    created_at: float
    started_at: float
    created_at_iso: str = ""
    started_at_iso: str = ""

    def __post_init__(self) -> None:
        add_iso(self, "created_at", "started_at")


class MailboxView(msgspec.Struct, frozen=True):
    """How many messages wait, are being received, are tried again later, or were given up."""

    queue: str
    waiting: int
    receiving: int
    delayed: int
    dead: int


class ResidentView(ResidentRow, frozen=True, kw_only=True):
    """Everything known of a resident; an agent of another framework has no input and no mailbox.

    The mailbox is null also while the server that has it does not answer.
    """

    needs: Needs
    input: Any = None
    """What its class was made with."""
    mailbox: MailboxView | None = None


class ResidentList(msgspec.Struct, frozen=True):
    """A page of residents, oldest first; without a cursor that was all."""

    residents: list[ResidentRow]
    cursor: str = ""


class MessageView(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message, which is a run of the mailbox: its result is the reply."""

    id: str
    run_id: str
    queue: str
    status: str
    result: Any = msgspec.UNSET
    error: ErrorView | None = None
