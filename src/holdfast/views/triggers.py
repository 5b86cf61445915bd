"""What makes a schedule due, as it is stored and shown: an interval, a cron expression or one moment."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

LONGEST_SECONDS: Final = 10 * 365 * 86400
SHORTEST_SECONDS: Final = 0.001
LATEST: Final = 32_503_680_000
"""The year 3000: a later time is taken for a mistake."""

Since: TypeAlias = Literal["start", "completion"]
Moment: TypeAlias = Annotated[float, Meta(ge=0, le=LATEST)]


class Every(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="every"):
    """Due again ``seconds`` after its last start, or after its last completion."""

    seconds: Annotated[float, Meta(ge=SHORTEST_SECONDS, le=LONGEST_SECONDS)]
    since: Since = "start"


class Cron(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="cron"):
    """Due whenever the clocks of ``zone`` match: five fields, or six with the seconds in front."""

    expression: Annotated[str, Meta(min_length=1, max_length=1000)]
    zone: Annotated[str, Meta(min_length=1, max_length=100)] = "UTC"


class Once(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="once"):
    """Due at one moment, epoch seconds."""

    at: Moment


Trigger: TypeAlias = Every | Cron | Once
