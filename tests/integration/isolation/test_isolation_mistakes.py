"""The known mistakes with attempts in processes, each put back: its test fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake

HERE = "tests/integration/isolation"
SAME, KILLING, CRASHES, LEAVING = (
    f"{HERE}/test_{name}.py" for name in ("same_as_inline", "killing", "crashes", "leaving")
)

MISTAKES = [
    Mistake(
        "an agent that ignores its stop is left alone after its grace",
        "processes/attempts.py",
        "        if not await _gone_within(child, grace):\n",
        "        if await _gone_within(child, grace):\n",
        f"{KILLING}::test_cancelled_it_is_gone_when_its_run_is_cancelled[spins]",
    ),
    Mistake(
        "an agent is killed without being asked first",
        "processes/attempts.py",
        """    return ("timed_out" if signals.stop is None else "cancelled"), grace_seconds""",
        """    return ("timed_out" if signals.stop is None else "cancelled"), 0.0""",
        f"{SAME}::test_a_willing_agent_tidies_up_when_it_is_cancelled[isolated]",
    ),
    Mistake(
        "an agent whose lease is lost has its grace",
        "processes/attempts.py",
        """        return "lost", 0.0""",
        """        return "lost", grace_seconds""",
        f"{KILLING}::test_a_lost_lease_ends_it_at_once",
        also=(("processes/zygote.py", "                self._end_overdue()\n", ""),),
    ),
    Mistake(
        "one that is handed back is waited for as long as one that is cancelled",
        "processes/attempts.py",
        "min(grace_seconds, _HAND_BACK_SECONDS)",
        "grace_seconds",
        f"{LEAVING}::test_sigterm_ends_an_unwilling_agent_and_hands_its_run_back",
    ),
    Mistake(
        "an attempt is begun again when its zygote was lost",
        "processes/supervisor.py",
        """        elif self._options.once:
            # It may""",
        """        elif False:
            # It may""",
        f"{CRASHES}::test_a_dead_zygote_costs_the_attempts_it_had_and_no_more",
    ),
    Mistake(
        "a frozen worker's attempt goes on",
        "processes/zygote.py",
        "                self._end_overdue()\n",
        "",
        f"{LEAVING}::test_a_frozen_workers_attempt_is_gone_before_it_begins_elsewhere",
    ),
    Mistake(
        "nobody tells the zygote that a lease was renewed",
        "processes/processes.py",
        "            self._loop.post(self._keep)\n",
        "            pass\n",
        f"{LEAVING}::test_an_agent_that_stays_in_c_for_longer_than_its_lease_keeps_it",
    ),
    Mistake(
        "an agent does not hear that its worker wants to leave",
        "processes/attempts.py",
        "                self._processes.tell(child.errand.id, draining=True)\n",
        "",
        f"{SAME}::test_an_agent_hears_that_its_worker_wants_to_leave[isolated]",
    ),
    Mistake(
        "a child that has answered may stay as long as it likes",
        "processes/attempts.py",
        "        if not await _gone_within(child, _EXIT_SECONDS):\n",
        "        if not await _gone_within(child, None):\n",
        f"{KILLING}::test_one_that_has_answered_may_not_linger",
    ),
    Mistake(
        "what is known of ended attempts is kept",
        "processes/attempts.py",
        "            self._processes.forget(event.process.agent_id)\n",
        "            pass\n",
        f"{CRASHES}::test_many_attempts_leave_nothing_behind",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
