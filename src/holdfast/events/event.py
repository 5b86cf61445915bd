"""One thing that happened to a run; its id orders it among the others and carries its time."""

from __future__ import annotations

from typing import Any, Final

import msgspec

FINAL: Final = frozenset({"succeeded", "failed", "timed_out", "cancelled"})
"""The types that end a run, which are also the statuses it then has."""


class Event(msgspec.Struct, frozen=True):
    """An entry of a run's feed; ``at`` is seconds since the epoch."""

    id: str
    type: str
    data: Any
    at: float

    @property
    def final(self) -> bool:
        """Whether it says that the run has ended, which holds until a ``replayed`` follows it."""
        return self.type in FINAL

    @classmethod
    def of(cls, entry: bytes, fields: dict[bytes, bytes]) -> Event:
        """Read an entry of the stream; data that is not JSON is shown as the text it is."""
        event_id = entry.decode()
        return cls(
            id=event_id,
            type=fields.get(b"type", b"").decode(errors="replace"),
            data=_decoded(fields.get(b"data", b"null")),
            at=int(event_id.partition("-")[0]) / 1000,
        )


def order(event_id: str) -> tuple[int, int]:
    """Where an id stands among the others: ids are not in the order of their letters."""
    ms, _, number = event_id.partition("-")
    return int(ms), int(number or 0)


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data.decode(errors="replace")
