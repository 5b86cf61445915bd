"""How long a receiver that fails is waited for, and when an event is given up: pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.events.sinks.request import Verdict

if TYPE_CHECKING:
    from holdfast.config import RelaySettings
    from holdfast.events.sinks.request import Answer

REFUSALS_MOST: Final = 3
"""Times that one event may be refused (4xx) before it is given up: asking again rarely changes a mind."""

_DOUBLINGS_MOST: Final = 30


def pause_seconds(settings: RelaySettings, answer: Answer, *, tries: int, refusals: int) -> float:
    """How long to wait after this answer, having failed so often before; Retry-After is honoured."""
    before = refusals if answer.verdict is Verdict.REFUSED else tries
    doubled = settings.retry_first_seconds * 2 ** min(before, _DOUBLINGS_MOST)
    return max(min(doubled, settings.retry_most_seconds), answer.retry_after)


def given_up(
    answer: Answer, *, refusals: int, event_at: float, failing_since: float, now: float, patience: float
) -> str:
    """Why the event is given up after this answer, or nothing: it is tried again.

    An event has ``patience`` seconds from when it happened, or its receiver began to fail if that was later.
    """
    match answer.verdict:
        case Verdict.IMPOSSIBLE:
            return answer.reason
        case Verdict.REFUSED if refusals + 1 >= REFUSALS_MOST:
            return f"{answer.reason} ({refusals + 1} times)"
        case Verdict.RETRY if failing_since and now - max(event_at, failing_since) >= patience:
            return f"{answer.reason} (tried for {patience:g} s)"
        case _:
            return ""
