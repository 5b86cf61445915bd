"""How an invocation ended, as values: whoever invoked decides what to write from these and nothing else."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from holdfast.agents.failures import Failure


class StopReason(StrEnum):
    """Why a running agent is told to stop before its deadline."""

    CANCEL = "cancel"
    DRAIN = "drain"


class Succeeded(msgspec.Struct, frozen=True):
    """The agent returned; whether ``result`` can be written as JSON is checked by whoever settles."""

    result: Any


class Failed(msgspec.Struct, frozen=True):
    """The agent raised; ``retry_in`` is filled by whoever knows attempts and backoff, None = give up."""

    failure: Failure
    retry_in: float | None = None


class TimedOut(msgspec.Struct, frozen=True):
    """The deadline came first."""

    after_seconds: float


class Cancelled(msgspec.Struct, frozen=True):
    """Somebody cancelled the run while it was running."""

    reason: str


class Interrupted(msgspec.Struct, frozen=True):
    """The agent asks ``value`` and waits for an answer, without a worker; ``index`` counts its questions."""

    index: int
    value: bytes


class Yielded(msgspec.Struct, frozen=True):
    """The run goes back unfinished, to be run elsewhere; it keeps its attempt count."""

    reason: str


class Lost(msgspec.Struct, frozen=True):
    """Somebody else may hold the run now: nothing may be written."""


Outcome: TypeAlias = Succeeded | Failed | TimedOut | Cancelled | Interrupted | Yielded | Lost


class Decided(BaseException):
    """Ends a body whose outcome was found elsewhere: in the process that really ran the agent."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__("the outcome is known")
        self.outcome = outcome


class Asking(BaseException):
    """Unwinds an agent that waits for an answer: no error, so that no `except Exception` keeps it."""

    def __init__(self, question: Interrupted) -> None:
        super().__init__("the run waits for an answer")
        self.question = question
