"""The history of a schedule: its last firings, each added by the script that ended it, under its fence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.agents.outcome import Failed
from holdfast.redis.client import REFUSALS
from holdfast.redis.command import command
from holdfast.schedules.schedule import turn_name
from holdfast.schedules.trigger import Once
from holdfast.views.schedules import PastTurn

if TYPE_CHECKING:
    from holdfast.agents.outcome import Outcome
    from holdfast.redis.client import Redis
    from holdfast.redis.keys import ScheduleKeys
    from holdfast.schedules.acquisition import Acquired
    from holdfast.schedules.schedule import Schedule

_ERROR_MOST: Final = 300
"""Characters of an error that a history keeps; the last error is kept longer in the schedule's record."""


class _Stored(PastTurn, frozen=True, kw_only=True, omit_defaults=True):
    """An entry as it is sent: without what the script adds, and without default values."""


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(PastTurn)


def planned_at(run: Acquired, schedule: Schedule) -> float:
    """Return the time that a turn was due."""
    trigger = schedule.trigger
    # A turn that is a schedule of its own waits from when it was placed: its time is in its definition.
    return trigger.at if schedule.source == "turn" and isinstance(trigger, Once) else run.ready


def turn_id(run: Acquired, schedule: Schedule) -> str:
    """Return the id of a turn: the same when it is run again because its scheduler died."""
    return turn_name(run.name, planned_at(run, schedule))


def past_turn(
    run: Acquired, schedule: Schedule | None, outcome: str, duration_ms: float, **end: Any
) -> bytes:
    """Return an entry for the script that ends a firing and adds its owner, its fence and when it ended."""
    return _encoder.encode(
        _Stored(
            outcome=outcome,
            planned_at=run.ready if schedule is None else planned_at(run, schedule),
            started_at=run.acquired_at,
            duration_ms=round(duration_ms, 3),
            attempt=run.attempt,
            manual=run.triggered,
            **end,
        )
    )


def fault_of(outcome: Outcome, error: str) -> dict[str, str]:
    """Return the fields of an entry that have the failure."""
    kind = outcome.failure.kind.value if isinstance(outcome, Failed) else ""
    return {"error_kind": kind, "error": error[:_ERROR_MOST]}


class History:
    """Reads the past turns of the schedules of one set of keys."""

    def __init__(self, redis: Redis, keys: ScheduleKeys) -> None:
        self._redis = redis
        self._keys = keys

    async def turns(self, name: str, limit: int) -> list[PastTurn]:
        """Read up to ``limit`` past turns of a schedule, the newest first; what can't be read is left out."""
        try:
            found = await command(self._redis, "LRANGE", self._keys.history(name), 0, limit - 1)
        except REFUSALS as exc:
            if not str(exc).startswith("WRONGTYPE"):
                raise
            return []  # overwritten from outside: the end of the next firing replaces it
        return [turn for turn in (_read(name, raw) for raw in found) if turn is not None]


def _read(name: str, raw: bytes) -> PastTurn | None:
    try:
        turn = _decoder.decode(raw)
    except msgspec.DecodeError:
        return None
    return msgspec.structs.replace(turn, turn=turn_name(name, turn.planned_at))
