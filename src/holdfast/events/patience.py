"""How long a receiver that fails is waited for, and when an event is given up: pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.events.sinks.request import Verdict

if TYPE_CHECKING:
    from holdfast.config import RelaySettings
    from holdfast.events.sinks.request import Answer

REFUSALS_MOST: Final = 3
"""Times that one event may be refused before it is given up: sending it again rarely changes the answer."""
REJECTIONS_MOST: Final = 20
"""Times that a receiver which is not ours may reject an event: about 13 minutes with the default pauses."""

_DOUBLINGS_MOST: Final = 30


def pause_seconds(settings: RelaySettings, answer: Answer, *, tries: int, refusals: int) -> float:
    """How long to wait after this answer, having failed so often before; Retry-After is honoured."""
    before = refusals if answer.verdict is Verdict.REFUSED else tries
    doubled = settings.retry_first_seconds * 2 ** min(before, _DOUBLINGS_MOST)
    return max(min(doubled, settings.retry_most_seconds), answer.retry_after)


def counts_as_refusal(answer: Answer, *, ours: bool) -> bool:
    """Whether this answer uses up one of the event's refusals.

    The operator's own receiver that rejects everything (a rotated secret, a deploy that answers 404) is an
    outage: it is waited for as long as one that is down.
    """
    rejected = answer.verdict is Verdict.REJECTED and not ours  # guard: own-rejections-not-counted
    return rejected or answer.verdict is Verdict.REFUSED


def given_up(
    answer: Answer,
    *,
    ours: bool,
    refusals: int,
    event_at: float,
    failing_since: float,
    now: float,
    patience: float,
) -> str:
    """Why the event is given up after this answer, or nothing: it is tried again.

    ``refusals`` are the answers of the same kind before. An event has ``patience`` seconds from when it
    happened, or its receiver began to fail if that was later.
    """
    match answer.verdict:
        case Verdict.IMPOSSIBLE:
            return answer.reason
        case Verdict.REFUSED if refusals + 1 >= REFUSALS_MOST:
            return f"{answer.reason} ({refusals + 1} times)"
        case Verdict.REJECTED if _for_good(answer, refusals, ours=ours):
            return f"{answer.reason} ({refusals + 1} times)"
        case Verdict.RETRY | Verdict.REJECTED if (
            failing_since and now - max(event_at, failing_since) >= patience
        ):
            return f"{answer.reason} (tried for {patience:g} s)"
        case _:
            return ""


def _for_good(answer: Answer, refusals: int, *, ours: bool) -> bool:
    if ours:  # guard: own-rejections-outage
        return False
    return answer.gone or refusals + 1 >= REJECTIONS_MOST
