"""The outcome of an attempt in its own process, sent to the worker in parts, since results may be large."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final, cast

import msgspec

from holdfast.agents.failures import Failure
from holdfast.agents.outcome import Cancelled, Failed, Interrupted, Lost, Succeeded, Yielded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.agents.outcome import Outcome

REPORT: Final = "outcome"
_PART_BYTES: Final = 180_000
"""A part of this size in base64 fits into one message."""


class OutcomeMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """An outcome as JSON, and how many events the attempt has written."""

    kind: str
    value: msgspec.Raw = msgspec.Raw(b"null")
    failure: Failure | None = None
    text: str = ""
    index: int = 0
    events: int = 0

    @property
    def outcome(self) -> Outcome:
        """The outcome that the worker settles."""
        match self.kind:
            case "succeeded":
                return Succeeded(self.value)
            case "interrupted":
                return Interrupted(self.index, bytes(self.value))
            case "yielded":
                return Yielded(self.text)
            case "cancelled":
                return Cancelled(self.text)
            case "failed" if self.failure is not None:
                return Failed(self.failure)
            case _:
                return Lost()


def answer(outcome: Outcome, events: int) -> OutcomeMessage:
    """Encode an outcome; the result of a succeeded attempt is JSON already."""
    match outcome:
        case Succeeded(result):
            return OutcomeMessage("succeeded", cast("msgspec.Raw", result), events=events)
        case Interrupted(index, value):
            return OutcomeMessage("interrupted", msgspec.Raw(value), index=index, events=events)
        case Yielded(reason):
            return OutcomeMessage("yielded", text=reason, events=events)
        case Cancelled(reason):
            return OutcomeMessage("cancelled", text=reason, events=events)
        case Failed(failure):
            return OutcomeMessage("failed", failure=failure, events=events)
        case _:
            return OutcomeMessage("lost", events=events)


def parts(answer: OutcomeMessage) -> Iterator[tuple[str, bool]]:
    """Split an answer into parts that fit into a message, each with whether it is the last."""
    data = msgspec.json.encode(answer)
    for start in range(0, len(data), _PART_BYTES):
        end = start + _PART_BYTES
        yield base64.b64encode(data[start:end]).decode("ascii"), end >= len(data)


def joined(received: Sequence[str]) -> OutcomeMessage:
    """Join the parts of an answer."""
    return msgspec.json.decode(b"".join(map(base64.b64decode, received)), type=OutcomeMessage)
