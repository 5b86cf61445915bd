"""What the outside sees of events that no receiver has accepted."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.views.times import add_iso


class UndeliveredView(msgspec.Struct, frozen=True, kw_only=True):
    """An event that no receiver took, and why; ``at`` is when it was given up."""

    id: str
    queue: str
    run_id: str
    event_id: str
    sequence: int
    type: str
    sink: str
    error: str
    data: Any
    at: float
    at_iso: str = ""
    tenant: str = ""
    redelivering: bool = False

    def __post_init__(self) -> None:
        add_iso(self, "at")


class UndeliveredList(msgspec.Struct, frozen=True):
    """Undelivered events, newest first; without a cursor that was all."""

    events: list[UndeliveredView]
    cursor: str = ""


class Redelivering(msgspec.Struct, frozen=True):
    """How many events relays will deliver again, and why others can't be, by their ids."""

    queued: int
    refused: dict[str, str]
