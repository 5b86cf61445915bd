"""The decisions of the local autoscaler, without processes: how many workers, why, and which of them leave.

Invariant: without an answer from Redis nothing changes, and the time without one never counts as time with
nothing to do.
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
"""More processes than this on one machine are a slip of the finger."""
_RANGE = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})")


class Bounds(msgspec.Struct, frozen=True):
    """How many workers there may be at least and at most."""

    least: int
    most: int


class Plan(msgspec.Struct, frozen=True):
    """How many workers there should be, and why."""

    workers: int
    why: str


class Hand(msgspec.Struct, frozen=True):
    """One worker: the larger its number, the younger; what it holds is not known until it has joined."""

    number: int
    held: int | None


def read_bounds(text: str) -> Bounds:
    """Read ``MIN..MAX``."""
    found = _RANGE.fullmatch(text)
    if found is None:
        raise InputError(
            f"--autoscale {text!r} is not a range: write MIN..MAX like 0..8, or nothing for what "
            "the queue's scaling settings say"
        )
    bounds = Bounds(int(found[1]), int(found[2]))
    check_bounds(bounds, f"--autoscale {text}")
    return bounds


def check_bounds(bounds: Bounds, said: str) -> None:
    """Refuse a range in which no number of processes makes sense; ``said`` is where it came from."""
    if bounds.most < 1:
        raise InputError(f"{said} allows no worker at all: the maximum must be at least 1")
    if bounds.least > bounds.most:
        raise InputError(f"{said} has a minimum ({bounds.least}) above its maximum ({bounds.most})")
    if bounds.most > MOST_WORKERS:
        raise InputError(
            f"{said} allows {bounds.most} processes on this machine: the maximum may be up to {MOST_WORKERS}"
        )


def bounded(queue: QueueSettings, bounds: Bounds | None) -> QueueSettings:
    """Return a queue's settings with this range instead of its own, if one is given."""
    scaling = queue.scaling
    if bounds is not None:
        scaling = msgspec.structs.replace(scaling, min_workers=bounds.least, max_workers=bounds.most)
    said = f"queue {queue.name!r} (scaling.min_workers, scaling.max_workers)"
    check_bounds(Bounds(scaling.min_workers, scaling.max_workers), said)
    return msgspec.structs.replace(queue, scaling=scaling)


def capped(queue: QueueSettings, most: int | None) -> QueueSettings:
    """Return a queue's settings with at most so many workers, if that is said."""
    return bounded(queue, None if most is None else Bounds(queue.scaling.min_workers, most))


def describe_range(queue: QueueSettings) -> str:
    """Return how many workers a queue may have, or how many it keeps if it is not scaled."""
    scaling, slots = queue.scaling, slots_of(queue)
    of_slots = f"of {slots} {'slot' if slots == 1 else 'slots'}"
    if not scaling.enabled:
        count = workers_wanted(0, slots, scaling)
        workers = f"{count} {'worker' if count == 1 else 'workers'}"
        return f"is not scaled (scaling.enabled is false): keeps {workers} {of_slots}"
    workers = f"{scaling.min_workers} to {scaling.max_workers} workers"
    return f"has {workers} {of_slots}, fewer after {scaling.down_seconds:g} s"


class Pilot:
    """Follows what one queue needs: up at once, down slowly."""

    def __init__(self, scaling: ScalingSettings) -> None:
        self._scaling = scaling
        self._damper = Damper(scaling.down_seconds)

    def follow(self, now: float, need: Need, workers: int) -> Plan:
        """Say how many workers there should be, where there are ``workers`` now."""
        wanted = self._damper.follow(now, need.wanted)
        if wanted < workers:
            return Plan(wanted, _down(wanted, need, self._scaling))
        return Plan(wanted, _up(need, self._scaling))

    def blind(self, now: float, workers: int) -> None:
        """Keep what there is while Redis can't be asked: it counts as having been needed until now."""
        self._damper.follow(now, workers)


def first_to_leave(hands: Sequence[Hand], count: int) -> list[Hand]:
    """Choose who leaves: who has not joined yet, then who holds least; of the same, the youngest."""

    def worth(hand: Hand) -> tuple[int, int]:
        return (-1 if hand.held is None else hand.held, -hand.number)

    return sorted(hands, key=worth)[:count]


def hands(numbers: Mapping[int, str], entries: Mapping[str, int]) -> list[Hand]:
    """Match workers, by number and consumer's name, with what the consumers hold."""
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
