"""The decisions of the local autoscaler, without processes: how many workers, why, and which of them to stop.

Invariant: without an answer from Redis nothing changes, and the time of an outage never counts as idle time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.errors import InputError
from holdfast.scaling.policy import Damper, slots_of, workers_wanted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.config import QueueSettings
    from holdfast.config.scaling import ScalingSettings
    from holdfast.scaling.depth import Need

MOST_WORKERS: Final = 1024
"""The limit of processes on one machine: a larger number is a mistake."""
_RANGE = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})")


class Bounds(msgspec.Struct, frozen=True):
    """The minimum and the maximum number of workers."""

    least: int
    most: int


class Plan(msgspec.Struct, frozen=True):
    """The number of workers there should be, and the reason."""

    workers: int
    why: str


class Hand(msgspec.Struct, frozen=True):
    """One worker: a larger number is younger; ``held`` is None until it has joined the group."""

    number: int
    held: int | None


def read_bounds(text: str) -> Bounds:
    """Parse ``MIN..MAX``."""
    found = _RANGE.fullmatch(text)
    if found is None:
        raise InputError(
            f"--autoscale {text!r} is not a range: write MIN..MAX like 0..8, or nothing to use "
            "the queue's scaling settings"
        )
    bounds = Bounds(int(found[1]), int(found[2]))
    check_bounds(bounds, f"--autoscale {text}")
    return bounds


def check_bounds(bounds: Bounds, source: str) -> None:
    """Raise InputError for a range without a useful number of processes; ``source`` names where it is set."""
    if bounds.most < 1:
        raise InputError(f"{source} allows no worker at all: the maximum must be at least 1")
    if bounds.least > bounds.most:
        raise InputError(f"{source} has a minimum ({bounds.least}) above its maximum ({bounds.most})")
    if bounds.most > MOST_WORKERS:
        raise InputError(
            f"{source} allows {bounds.most} processes on this machine: the maximum may be up to "
            f"{MOST_WORKERS}"
        )


def bounded(queue: QueueSettings, bounds: Bounds | None) -> QueueSettings:
    """Return a queue's settings, with these bounds instead of its own if given."""
    scaling = queue.scaling
    if bounds is not None:
        scaling = msgspec.structs.replace(scaling, min_workers=bounds.least, max_workers=bounds.most)
    source = f"queue {queue.name!r} (scaling.min_workers, scaling.max_workers)"
    check_bounds(Bounds(scaling.min_workers, scaling.max_workers), source)
    return msgspec.structs.replace(queue, scaling=scaling)


def capped(queue: QueueSettings, most: int | None) -> QueueSettings:
    """Return a queue's settings with at most so many workers, if a maximum is given."""
    return bounded(queue, None if most is None else Bounds(queue.scaling.min_workers, most))


def describe_range(queue: QueueSettings) -> str:
    """Return the text on how many workers a queue may have, or has if it is not scaled."""
    scaling, slots = queue.scaling, slots_of(queue)
    of_slots = f"of {slots} {'slot' if slots == 1 else 'slots'}"
    if not scaling.enabled:
        count = workers_wanted(0, slots, scaling)
        workers = f"{count} {'worker' if count == 1 else 'workers'}"
        return f"is not scaled (scaling.enabled is false): keeps {workers} {of_slots}"
    workers = f"{scaling.min_workers} to {scaling.max_workers} workers"
    return f"has {workers} {of_slots}, fewer after {scaling.down_seconds:g} s"


class Pilot:
    """Follows the demand of one queue: up at once, down slowly."""

    def __init__(self, scaling: ScalingSettings) -> None:
        self._scaling = scaling
        self._damper = Damper(scaling.down_seconds)

    def follow(self, now: float, need: Need, workers: int) -> Plan:
        """Return how many workers there should be; there are ``workers`` now."""
        wanted = self._damper.follow(now, need.wanted)
        if wanted < workers:
            return Plan(wanted, _down(wanted, need, self._scaling))
        return Plan(wanted, _up(need, self._scaling))

    def blind(self, now: float, workers: int) -> None:
        """Keep the present workers while Redis is unavailable: they count as needed until now."""
        self._damper.follow(now, workers)


def first_to_leave(hands: Sequence[Hand], count: int) -> list[Hand]:
    """Choose the workers to stop: those that have not joined, then by entries held, then the youngest."""

    def worth(hand: Hand) -> tuple[int, int]:
        return (-1 if hand.held is None else hand.held, -hand.number)

    return sorted(hands, key=worth)[:count]


def hands(numbers: Mapping[int, str], entries: Mapping[str, int]) -> list[Hand]:
    """Match workers, by number and consumer's name, with the consumers' pending entries."""
    return [Hand(number, entries.get(name)) for number, name in numbers.items()]


def _up(need: Need, scaling: ScalingSettings) -> str:
    if not scaling.enabled:
        return f"not scaled, {_are_kept(need.wanted)}"
    runs = need.in_flight if need.paused else need.undelivered + need.in_flight + need.due
    if need.wanted == scaling.min_workers and runs <= need.wanted * need.slots:
        return f"at least {_are_kept(need.wanted)}"
    why = f"{_runs(runs)} a slot"
    if need.paused:
        why += " in a paused queue"
    why += f", {need.slots} each"
    return f"{why}, at most {need.wanted}" if need.wanted * need.slots < need.depth else why


def _down(workers: int, need: Need, scaling: ScalingSettings) -> str:
    lately = f" in the last {scaling.down_seconds:g} s" if scaling.down_seconds else " now"
    if workers:
        return f"no more than {workers} {'was' if workers == 1 else 'were'} needed{lately}"
    return f"nothing to do{lately}{', and the queue is paused' if need.paused else ''}"


def _are_kept(count: int) -> str:
    return f"{count} {'is' if count == 1 else 'are'} kept"


def _runs(count: int) -> str:
    return "1 run wants" if count == 1 else f"{count} runs want"
