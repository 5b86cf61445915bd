"""One event of a run; its id has its time and its position in the feed."""

from __future__ import annotations

from typing import Any, Final

import msgspec

FINAL: Final = frozenset({"succeeded", "failed", "timed_out", "cancelled"})
"""The types of final events, which are also the final statuses of runs."""


class Event(msgspec.Struct, frozen=True):
    """An entry of a run's feed; ``at`` is seconds since the epoch."""

    id: str
    type: str
    data: Any
    at: float

    @property
    def final(self) -> bool:
        """Whether the event ends the run, unless a ``replayed`` event follows it."""
        return self.type in FINAL

    @classmethod
    def of(cls, entry: bytes, fields: dict[bytes, bytes]) -> Event:
        """Decode an entry of the stream; data that is not JSON is returned as text."""
        event_id = entry.decode()
        return cls(
            id=event_id,
            type=fields.get(b"type", b"").decode(errors="replace"),
            data=_decoded(fields.get(b"data", b"null")),
            at=int(event_id.partition("-")[0]) / 1000,
        )


def order(event_id: str) -> tuple[int, int]:
    """Return the sort key of an event id: ids are not in the order of their text."""
    ms, _, number = event_id.partition("-")
    return int(ms), int(number or 0)


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data.decode(errors="replace")
