"""The executor of one partition: every claimed run becomes an attempt, whose slot is given back once."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.agents.outcome import StopReason
from holdfast.runs.execution.attempt import LEAVING, Attempt, key_of
from holdfast.runs.execution.preparation import log_context_of
from holdfast.telemetry.logs import speaking_of

if TYPE_CHECKING:
    from holdfast.leases.permits import Permits
    from holdfast.runs.execution.attempt import AttemptResources
    from holdfast.runs.execution.claim import Claimed


class Executor:
    """Performs claimed runs until the last is settled; ``hand_back`` stops those that still run."""

    def __init__(self, resources: AttemptResources, slots: Permits) -> None:
        self._resources = resources
        self._slots = slots
        self._attempts: dict[tuple[str, int], Attempt] = {}
        """From the claim until Redis has confirmed the settlement."""
        self._without_slot: set[Attempt] = set()
        """Ended attempts whose slots were released before Redis has confirmed the settlement."""
        self._is_handing_back = False
        self.lingering = 0
        """Agents that continue after their runs have ended; a shutdown does not wait for them."""

    async def perform(self, run: Claimed, requested_at: float) -> None:
        """Perform a claimed run that has a slot; its lease was requested at ``requested_at``."""
        key = key_of(run)
        if (known := self._attempts.get(key)) is not None:  # guard: claimed-again
            self._claimed_again(run, known)
            return
        attempt = self._attempts[key] = Attempt(
            self._resources, run, requested_at, self._settled, hand_back=self._is_handing_back
        )
        await attempt.run()

    def _claimed_again(self, run: Claimed, known: Attempt) -> None:
        """Call the agent once, although Redis lost the first claim in a restart and gave its fence again.

        A running attempt is stopped, and its run is handed back under the next fence. An ended attempt
        settles the run.
        """
        with speaking_of(log_context_of(self._resources, run)):
            self._resources.log.warning("run claimed again under the same fence, Redis may have lost writes")
        self._slots.give()
        if known.hold in self._resources.keeper.guarded:
            known.hold.lose()

    # -- slots

    def _settled(self, attempt: Attempt) -> None:
        """Give the slot back; if the agent ignored its stop, its slot stays taken until it returns."""
        self._attempts.pop(attempt.key, None)
        if attempt in self._without_slot:  # guard: released-slot-given-once
            self._without_slot.discard(attempt)
        elif attempt.lingering:
            self._linger(attempt)
        else:
            self._slots.give()

    def _linger(self, attempt: Attempt) -> None:
        self.lingering += 1
        self._resources.metrics.runs(self._resources.settings.name, attempt.agent).abandoned()
        self._resources.log.warning(
            "agent ignored its stop, its slot stays taken until it returns",
            lingering=self.lingering,
            slots=self._slots.limit,
        )
        assert attempt.invocation is not None
        attempt.invocation.when_it_ends(self._lingered)

    def _lingered(self) -> None:
        self.lingering -= 1
        self._slots.give()

    def release_unanswered(self, silent_seconds: float) -> int:
        """Release the slots of ended attempts without a reply after ``silent_seconds``; return how many."""
        silent = time.monotonic() - self._resources.settler.silent_since
        if silent <= silent_seconds:  # guard: settlement-releases-slots
            return 0
        ended = {
            attempt
            for attempt in self._attempts.values()
            if not attempt.performing and not attempt.lingering and attempt not in self._without_slot
        }
        self._without_slot |= ended
        return len(ended)

    @property
    def has_released_slots(self) -> bool:
        """Whether ended attempts without a slot still wait for the reply of Redis."""
        return bool(self._without_slot)

    # -- unsettled runs

    @property
    def attended(self) -> set[str]:
        """The ids of the runs that are not settled yet."""
        return {run_id for run_id, _ in self._attempts}

    @property
    def running(self) -> list[Attempt]:
        """The attempts whose agents are called now."""
        return [attempt for attempt in self._attempts.values() if attempt.performing]

    def cancel(self, run_id: str, reason: str) -> None:
        """Cancel a run, if it runs here."""
        for attempt in self.running:
            if attempt.key[0] == run_id:
                attempt.stop(StopReason.CANCEL, reason)

    def hand_back(self) -> int:
        """Stop every running attempt, so that another worker starts its run; return how many were stopped."""
        self._is_handing_back = True
        return sum([attempt.stop(StopReason.DRAIN, LEAVING) for attempt in self.running])
