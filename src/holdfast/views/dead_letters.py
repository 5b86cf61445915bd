"""What the outside sees of dead letters."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.views.runs import ErrorView
from holdfast.views.times import add_iso


class LetterView(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was given up, and why."""

    id: str
    run_id: str
    queue: str
    agent: str
    tenant: str = ""
    status: str
    reason: str
    attempts: int
    error: ErrorView
    input: Any
    message: Annotated[
        str, Meta(description="What was sent, as text, where it can't be read; input is null then.")
    ] = ""
    at: float
    at_iso: str = ""

    def __post_init__(self) -> None:
        add_iso(self, "at")


class LetterList(msgspec.Struct, frozen=True):
    """Dead letters, newest first; without a cursor that was all."""

    letters: list[LetterView]
    cursor: str = ""


class LetterBatch(msgspec.Struct, frozen=True):
    """The letters that were replayed or deleted, and why others were not, by their ids."""

    done: list[LetterView]
    refused: dict[str, str]
