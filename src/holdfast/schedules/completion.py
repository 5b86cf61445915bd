"""The end of a firing: what it is (pure), its way to Redis in batches, and the two scripts.

An end that Redis did not take is sent again once per cycle. After three further tries in vain it is given up:
its lease ends, and any scheduler runs the turn again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.agents.failures import Failure, FailureClass
from holdfast.agents.outcome import Cancelled, Failed, Interrupted, Succeeded, TimedOut
from holdfast.config.scheduling import KEPT_TURNS
from holdfast.errors import RedisUnavailable
from holdfast.redis.client import DISCONNECTS, TROUBLE
from holdfast.redis.outages import redis_outages
from holdfast.redis.scripts import load
from holdfast.reliability.breaker import BreakerState
from holdfast.schedules.cadence import INTERRUPTED, Next, next_run
from holdfast.schedules.fire_times import count
from holdfast.schedules.history import fault_of, past_turn
from holdfast.schedules.redis_errors import log_discarded, script_failed
from holdfast.schedules.replies import CHUNK, Ended, score, words
from holdfast.telemetry.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.agents.outcome import Outcome
    from holdfast.config import SchedulerSettings
    from holdfast.errors import InputError
    from holdfast.leases.lease import Lease
    from holdfast.redis.client import Redis
    from holdfast.redis.keys import ScheduleKeys
    from holdfast.reliability.breaker import Breaker
    from holdfast.schedules.acquisition import Acquired
    from holdfast.schedules.firing import Firing
    from holdfast.schedules.redis_errors import Discarded
    from holdfast.telemetry.metrics import Metrics

ATTEMPTS: Final = 3
"""Further tries, after the first."""
_COMPLETE = load(__package__, "complete")
_GIVE_BACK = load(__package__, "give_back")
_ERROR_MOST: Final = 1000
"""Characters of an error that are kept; the rest is in the logs."""
_DAMAGED_SECONDS: Final = 60.0

_log = get_logger(__name__)


class Completion(msgspec.Struct, frozen=True):
    """How a firing ended and when its schedule's next turn is; ``next_at`` None is never again."""

    name: str
    fence: int
    next_at: float | None
    streak: int = 0
    outcome: str = "succeeded"
    error: str = ""
    duration_ms: float = 0.0
    pause_after: int = 0
    """Failures in a row after which the schedule is paused; Redis counts those of parallel firings, too."""
    doubtful: float | None = None
    """A turn that was perhaps placed beside this one: if Redis has not, that is the next one."""
    history: bytes = b""
    """The entry for the schedule's history; empty if it is not to be listed."""


# -- deciding: from an outcome to a completion


def decide(
    firing: Firing,
    outcome: Outcome,
    *,
    ended: float,
    settings: SchedulerSettings,
    random: Callable[[], float],
) -> tuple[Completion, Next]:
    """Return the completion of a firing, and why the next turn is when it is."""
    acquired, schedule = firing.acquired, firing.schedule
    following = next_run(
        schedule,
        # Turns that were placed beside it are not its own to plan: the next comes after the last of them.
        ready=max(acquired.ready, firing.beside),
        acquired=max(acquired.acquired_at, firing.beside),  # guard: beside-turns-planned
        ended=ended,
        outcome=outcome,
        streak=acquired.streak,
        # One in doubt counts: if it was not placed, it is the next turn, whatever is planned here.
        runs=acquired.runs + firing.placed + (firing.doubtful is not None) + (0 if acquired.triggered else 1),
        settings=settings,
        random=random,
        triggered=acquired.triggered,
    )
    word, error = described(outcome)
    if firing.beside and not acquired.beside and word in {"succeeded", "cancelled"}:
        # Those it was late for are left out, too: they were not placed, and what follows comes after them.
        owed = count(schedule, acquired.ready, acquired.acquired_at)
        # guard: owed-turns-counted
        following = msgspec.structs.replace(following, missed=following.missed + owed)
    duration_ms = max(ended - acquired.acquired_at, 0.0) * 1000
    completion = Completion(
        acquired.name,
        acquired.fence,
        # A turn that is a schedule of its own ends with its run: its schedule's next turn comes all the same.
        None if schedule.source == "turn" else following.at,
        streak=following.streak,
        outcome=word,
        error=error,
        duration_ms=duration_ms,
        pause_after=0 if following.reason == "max_runs" else schedule.pause_after_failures,
        doubtful=firing.doubtful,
        history=_history(firing, outcome, duration_ms),
    )
    return completion, following


def unreadable(acquired: Acquired, exc: InputError) -> Completion:
    """Return the end of a firing whose definition can't be read, or names a zone that is not known here."""
    _log.error("a schedule's definition can't be read", schedule=acquired.name, error=str(exc))
    fault = Failed(Failure.because(FailureClass.INVALID, str(exc)))
    return Completion(
        acquired.name,
        acquired.fence,
        acquired.acquired_at + _DAMAGED_SECONDS,
        acquired.streak,
        "failed",
        str(exc),
        history=past_turn(acquired, None, "failed", 0.0, **fault_of(fault, str(exc))),
    )


def described(outcome: Outcome) -> tuple[str, str]:
    """Return an outcome as a word, and what went wrong if something did."""
    match outcome:
        case Succeeded():
            return "succeeded", ""
        case Failed(failure=failure):
            return "failed", failure.message
        case TimedOut(after_seconds=seconds):
            return "timed_out", f"no end after {seconds:g} s"
        case Cancelled(reason=reason):
            return "cancelled", reason
        case Interrupted():
            return "failed", INTERRUPTED
        case _:
            return "given_back", ""


def _history(firing: Firing, outcome: Outcome, duration_ms: float) -> bytes:
    word, error = described(outcome)
    if word == "succeeded" and firing.schedule.target:
        where = {"queue": firing.schedule.target, "run_id": firing.run_id}
        return past_turn(firing.acquired, firing.schedule, "submitted", duration_ms, **where)
    return past_turn(firing.acquired, firing.schedule, word, duration_ms, **fault_of(outcome, error))


# -- on the way to Redis


@dataclasses.dataclass(slots=True, eq=False)
class FiringEnd:
    """The end of one firing: completed, or given back if there is no ``completion``."""

    lease: Lease
    completion: Completion | None
    on_reply: Callable[[Ended | None], None]
    """Called once, with the reply of Redis; None if it was given up."""
    after_seconds: float | None = None
    """When a turn that is given back is due again, from now; None is at its original turn."""
    history: bytes = b""
    """The history entry of a firing that is given back; empty if it had not begun."""
    recovering: bool = False
    """Whether it could not be sent at once and is tried again."""
    tries: int = 0
    """How many of those further tries have failed."""
    failed_at: float = 0.0
    """When it could not be sent, by the event loop's clock."""


class CompletionQueue:
    """Sends the ends of firings to Redis; ``add`` never waits, ``run`` sends."""

    def __init__(
        self, completer: Completer, breaker: Breaker, metrics: Metrics, *, cycle_seconds: float
    ) -> None:
        self._completer = completer
        self._breaker = breaker
        self._metrics = metrics
        self._cycle_seconds = cycle_seconds
        self._cycle = 0.0
        self._outages = redis_outages("ends of turns", "they are sent again each cycle")
        self._new: list[FiringEnd] = []
        self._again: list[FiringEnd] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def depth(self) -> int:
        """How many ends wait for another try."""
        return len(self._again)

    def add(self, end: FiringEnd) -> None:
        """Send with the next batch."""
        self._new.append(end)
        self._idle.clear()
        self._wake.set()

    async def flushed(self) -> None:
        """Wait until everything added so far was sent or given up."""
        await self._idle.wait()

    async def run(self) -> None:
        """Send batches until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            pause = max(self._cycle - loop.time(), 0) if self._again else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            self._wake.clear()
            while self._new:
                batch, self._new = self._new[:CHUNK], self._new[CHUNK:]
                await self._send(batch)
            if self._again and loop.time() >= self._cycle:
                await self.try_again()
                self._cycle = loop.time() + self._cycle_seconds  # guard: retry-cycle
            if not self._new and not self._again:
                self._idle.set()

    async def try_again(self) -> None:
        """Try once more to send each that failed; an open breaker uses up no try."""
        if self._breaker.state is BreakerState.OPEN:
            return
        # An end that failed within this cycle waits for the next: at once would use up a try for nothing.
        latest = asyncio.get_running_loop().time() - self._cycle_seconds
        kept, waiting, self._again = self._again, list[FiringEnd](), []
        for end in kept:
            # guard: cycle-before-retry
            (waiting if end.failed_at <= latest else self._again).append(end)
        for start in range(0, len(waiting), CHUNK):
            await self._send(waiting[start : start + CHUNK])

    async def _send(self, batch: list[FiringEnd]) -> None:
        completed = [end for end in batch if end.completion is not None]
        returned = [end for end in batch if end.completion is None]
        for part, call in ((completed, self._complete), (returned, self._give_back)):
            if not part:
                continue
            try:
                with self._outages, self._breaker.guard():  # guard: breaker-counts-endings
                    replies = await call(part)
            except RedisUnavailable:
                self._keep(part)  # the breaker did not let it try
            except TROUBLE as exc:
                self._failed(part, exc)
            else:
                self._sent(part, replies)

    async def _complete(self, batch: list[FiringEnd]) -> list[Ended]:
        return await self._completer.complete([end.completion for end in batch if end.completion is not None])

    async def _give_back(self, batch: list[FiringEnd]) -> list[Ended]:
        replies: list[Ended] = []
        for where in (True, False):
            part = [end for end in batch if (end.after_seconds is None) is where]
            delays = None if where else [end.after_seconds or 0.0 for end in part]
            if part:
                leases, history = [each.lease for each in part], [each.history for each in part]
                replies += await self._completer.give_back(leases, delays, history)
        batch.sort(key=lambda end: end.after_seconds is not None)  # guard: endings-stable-order
        return replies

    def _keep(self, batch: list[FiringEnd]) -> None:
        """Try these again with the next cycle."""
        now = asyncio.get_running_loop().time()
        for end in batch:
            end.recovering, end.failed_at = True, now
        self._again += batch

    def _sent(self, batch: list[FiringEnd], replies: list[Ended]) -> None:
        _log.debug("turn ends reported", turns=len(batch), words=[reply.value for reply in replies])
        for end, reply in zip(batch, replies, strict=True):
            if end.recovering:
                self._metrics.schedule_recovery.labels("told").inc()
            end.on_reply(reply)

    def _failed(self, batch: list[FiringEnd], exc: Exception) -> None:
        script_failed(self._metrics, exc)
        if not isinstance(exc, DISCONNECTS):
            _log.error("Redis refuses ends of turns", turns=len(batch), error=str(exc))
        for end in batch:
            if end.recovering:
                self._metrics.schedule_recovery.labels("failed").inc()  # guard: failed-recovery-counted
                end.tries += 1
            if end.tries < ATTEMPTS:
                self._keep([end])
                continue
            self._metrics.schedule_recovery.labels("given_up").inc()
            _log.error(
                "the end of a turn could not be reported: its lease ends by itself", schedule=end.lease.key
            )
            end.on_reply(None)  # guard: unreported-end-lets-go


class Completer:
    """The scripts that end the firings of one owner."""

    def __init__(
        self,
        redis: Redis,
        keys: ScheduleKeys,
        *,
        owner: str,
        kept_turns: int = KEPT_TURNS,
        discarded: Discarded = log_discarded,
    ) -> None:
        self._redis = redis
        self._where: list[Any] = [keys.waiting, keys.working, keys.leases, keys.definitions]
        self._where += [keys.record_prefix]
        self._priorities, self._nudge, self._changes = keys.priorities, keys.nudge, keys.changes
        self._head: list[Any] = [owner, kept_turns]
        self._discarded = discarded

    async def complete(self, completions: Sequence[Completion]) -> list[Ended]:
        """End firings; a stale one changes nothing. Safe to send again when the reply was lost."""
        where = [*self._where, self._priorities, self._changes]
        done: list[Ended] = []
        for start in range(0, len(completions), CHUNK):
            args = list(self._head)
            for one in completions[start : start + CHUNK]:
                args += (one.name, one.fence, score(one.next_at), one.streak, one.outcome)
                args += (one.error[:_ERROR_MOST], round(one.duration_ms, 3), one.pause_after)
                args += (score(one.doubtful), one.history)
            discarded, *reply = await _COMPLETE(self._redis, where, args)
            self._discarded(discarded)
            done += words(Ended, reply)
        return done

    async def give_back(
        self,
        leases: Sequence[Lease],
        after: Sequence[float] | None = None,
        history: Sequence[bytes] | None = None,
    ) -> list[Ended]:
        """Give firings back that did not end: due so many seconds from now, or at their original turn.

        ``history`` has the entries of those that had begun.
        """
        done: list[Ended] = []
        delays = ["" for _ in leases] if after is None else [f"{delay:.6f}" for delay in after]
        firings = list(zip(leases, delays, history or [b""] * len(leases), strict=True))
        for start in range(0, len(firings), CHUNK):
            args = list(self._head)
            for lease, delay, turn in firings[start : start + CHUNK]:
                args += (lease.key, lease.fence, delay, turn)
            discarded, *reply = await _GIVE_BACK(self._redis, [*self._where, self._nudge], args)
            self._discarded(discarded)
            done += words(Ended, reply)
        return done
