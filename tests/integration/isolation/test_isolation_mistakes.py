"""The known mistakes with attempts in processes, each put back: its test fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake, removed, replaced

HERE = "tests/integration/isolation"
SAME, KILLING, CRASHES, LEAVING = (
    f"{HERE}/test_{name}.py" for name in ("same_as_inline", "killing", "crashes", "leaving")
)
# A child that knows when its lease ends leaves by itself.
NO_CLOCK = replaced("trust-by-clock", "boot_time() < self.until()", "True")

TRACING = "tests/integration/services/test_tracing.py"

MISTAKES = [
    Mistake(
        "an attempt in a process does not take its thread from the run before",
        replaced("process-thread-generation", "task.generation", "0"),
        f"{SAME}::test_a_run_takes_its_thread_from_the_run_before[isolated]",
    ),
    Mistake(
        "the last spans of a process are never sent",
        removed("last-spans-sent"),
        f"{TRACING}::test_what_is_left_is_sent_when_a_process_ends",
    ),
    Mistake(
        "the spans of an attempt's process are never sent",
        replaced("attempt-spans-sent", "traces.finish(_TRACES_SECONDS)", "pass"),
        f"{TRACING}::test_a_request_its_run_and_what_the_agent_does_are_one_trace[isolated]",
    ),
    Mistake(
        "a collector that hangs holds up the end of a process",
        replaced("bounded-flush", "seconds", "None"),
        f"{TRACING}::test_a_collector_that_hangs_holds_up_no_run_and_no_end",
    ),
    Mistake(
        "the process that tried the zygote is known for ever",
        removed("ended-probe-forgotten"),
        f"{CRASHES}::test_nothing_is_left_of_the_process_that_tried_the_zygote",
    ),
    Mistake(
        "an agent that ignores its stop is left alone after its grace",
        replaced("stop-grace-enforced", "not await", "await"),
        f"{KILLING}::test_cancelled_it_is_gone_when_its_run_is_cancelled[spins]",
    ),
    Mistake(
        "an agent is killed without being asked first",
        replaced("stop-grace", "grace_seconds", "0.0"),
        f"{SAME}::test_a_willing_agent_tidies_up_when_it_is_cancelled[isolated]",
    ),
    Mistake(
        "an agent whose lease is lost has its grace",
        (
            replaced("lost-lease-no-grace", ", 0.0", ", grace_seconds"),
            removed("zygote-ends-overdue"),
            NO_CLOCK,
        ),
        f"{KILLING}::test_a_lost_lease_ends_it_at_once",
    ),
    Mistake(
        "one that is handed back is waited for as long as one that is cancelled",
        replaced("hand-back-grace", "min(grace_seconds, _HAND_BACK_SECONDS)", "grace_seconds"),
        f"{LEAVING}::test_sigterm_ends_an_unwilling_agent_and_hands_its_run_back",
    ),
    Mistake(
        "an attempt is begun again when its zygote was lost",
        replaced("attempt-begins-once", "self._options.once", "False"),
        f"{CRASHES}::test_a_dead_zygote_costs_the_attempts_it_had_and_no_more",
    ),
    Mistake(
        "a frozen worker's attempt goes on",
        (removed("zygote-ends-overdue"), NO_CLOCK),
        f"{LEAVING}::test_a_frozen_workers_attempt_is_gone_before_it_begins_elsewhere",
    ),
    Mistake(
        "a child does not hear that its lease was renewed",
        removed("child-reads-renewals"),
        f"{LEAVING}::test_an_agent_that_stays_in_c_for_longer_than_its_lease_keeps_it",
    ),
    Mistake(
        "nobody tells the zygote that a lease was renewed",
        removed("zygote-lease-renewal"),
        f"{LEAVING}::test_an_agent_that_stays_in_c_for_longer_than_its_lease_keeps_it",
    ),
    Mistake(
        "an agent does not hear that its worker wants to leave",
        removed("attempt-told-draining"),
        f"{SAME}::test_an_agent_hears_that_its_worker_wants_to_leave[isolated]",
    ),
    Mistake(
        "a child that has answered may stay as long as it likes",
        replaced("answered-child-exit-timeout", "_EXIT_SECONDS", "None"),
        f"{KILLING}::test_one_that_has_answered_may_not_linger",
    ),
    Mistake(
        "what is known of ended attempts is kept",
        removed("ended-attempt-forgotten"),
        f"{CRASHES}::test_many_attempts_leave_nothing_behind",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
