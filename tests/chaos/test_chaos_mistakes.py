"""The known mistakes that only a dead process or a Redis that fails shows, each put back: its test fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake, instead, removed, replaced

REDIS = "tests/chaos/test_redis_fails.py"
AWAY = "tests/chaos/test_redis_away.py"
DIE = "tests/chaos/test_workers_die.py"
HISTORY = (
    "tests/chaos/test_schedulers_random.py::"
    "test_p5_a_random_history_loses_nothing_doubles_nothing_and_leaks_nothing[1-6]"
)
TRUST = "tests/unit/agents/test_trust.py"
OWNER_CANCELS = "test_a_body_whose_owner_cancels_it_does_not_handle_what_has_woken_it_either"
IN_A_STEP = "test_a_body_that_waits_in_a_step_or_a_call_does_not_handle_its_end"
FREEZES = "tests/chaos/test_freezes.py"
FROZEN = f"{FREEZES}::test_a_frozen_worker_repeats_no_effect"
OUTAGE = "tests/chaos/test_schedules_outage.py::test_redis_is_away_under_load"

MISTAKES = [
    Mistake(
        "a body goes on after a freeze, because its timer comes before its lease's",
        replaced("trust-before-each-step", "self._trust.holds()", "True"),
        f"{FROZEN}[app-uvloop]",
    ),
    Mistake(
        "a body handles what has failed while it was frozen, and goes on",
        replaced("trust-before-each-exception", "self._trust.holds()", "True"),
        f"{TRUST}::test_a_body_does_not_handle_what_has_woken_it_after_the_end_of_its_lease[a_call_that_failed]",
    ),
    Mistake(
        "a body handles the error of a child that fails while it is ended, and goes on",
        replaced("failed-child-not-handled", "_child_has_failed(self._body)", "False"),
        f"{TRUST}::{OWNER_CANCELS}[tasks_that_fail_when_they_end]",
    ),
    Mistake(
        "a TaskGroup of the body swallows the cancellation of a body that lost its lease",
        replaced("own-cancellation-swallowed", "self._woken_by_cancel", "False"),
        f"{TRUST}::{OWNER_CANCELS}[a_task_that_failed_beside_a_wait]",
    ),
    Mistake(
        "a body handles the end of a step or a framework's call in which it waited, and goes on",
        replaced("outer-end-passed-on", "self._ended_outside = True", "True"),
        f"{TRUST}::{IN_A_STEP}[its_own_timeout-a_step-owner_cancels]",
    ),
    Mistake(
        "a timeout around a TaskGroup takes the cancellation of a body that lost its lease for its own",
        replaced(
            "group-inside-timeout", "not self._woken_by_cancel or self._cancelled_group is None", "True"
        ),
        f"{TRUST}::test_a_body_does_not_handle_what_has_woken_it_after_the_end_of_its_lease"
        "[its_own_timeout_of_tasks]",
    ),
    Mistake(
        "the tasks of a step go on after the body that waits for them was ended",
        replaced("trusted-shows-its-body", "self._body", "None"),
        f"{TRUST}::test_a_timeout_around_a_step_with_tasks_ends_the_tasks_and_does_not_handle_its_end",
    ),
    Mistake(
        "what a framework makes of a lost lease is handled by the agent around it, which goes on",
        replaced("lost-body-ends-as-it-is", "self._scope.signals.trust.ends_with(exc)", "False"),
        f"{TRUST}::test_a_body_does_not_handle_what_a_framework_makes_of_its_end",
    ),
    Mistake(
        "wait_for swallows the cancellation of a body that lost its lease (Python 3.11)",
        replaced("wait-for-swallows-cancellation", "or _wait_for_has_result(self._body)", ""),
        f"{TRUST}::{OWNER_CANCELS}[an_answer_in_time]",
    ),
    Mistake(
        "a body that lost its lease is cancelled without a turn for its owner",
        replaced("owner-cancels-first", "self._turns > 0", "False"),
        f"{TRUST}::test_the_owners_cancellation_does_not_interrupt_the_clean_up_of_a_body",
    ),
    Mistake(
        "a call of the context looks at a flag, and not at the clock",
        replaced("context-calls-need-lease", "self.over", "self.closed"),
        f"{TRUST}::test_a_call_of_the_context_needs_the_lease[step]",
    ),
    Mistake(
        "a step is begun though the lease ended while the step was looked up",
        removed("step-needs-lease"),
        f"{TRUST}::test_a_step_is_not_begun_if_the_lease_ended_while_it_was_looked_up",
    ),
    Mistake(
        "a step of a thread is begun though the lease ended while the step was looked up",
        removed("thread-goes-on-with-lease"),
        f"{TRUST}::test_a_step_of_a_thread_is_not_begun_if_the_lease_ended_while_it_was_looked_up",
    ),
    Mistake(
        "a step takes its next step after the end of the lease",
        replaced("step-trusts-its-lease", "Trusted(awaited(value), self._signals.trust)", "value"),
        f"{TRUST}::test_a_step_takes_no_step_of_its_own_after_the_end_of_the_lease",
    ),
    Mistake(
        "state that was read before is returned after the end of the lease",
        removed("state-needs-lease"),
        f"{TRUST}::test_a_call_of_the_context_needs_the_lease[state.get]",
    ),
    Mistake(
        "state is returned though the lease ended while it was read",
        removed("state-read-needs-lease"),
        f"{TRUST}::test_state_is_not_returned_if_the_lease_ended_while_it_was_read",
    ),
    Mistake(
        "a thread goes on though the lease ended while it waited for a call of its context",
        removed("thread-goes-on-with-lease"),
        f"{TRUST}::test_a_thread_does_not_go_on_if_the_lease_ended_inside_its_call",
    ),
    Mistake(
        "a run's context does not know its lease",
        replaced("run-context-trust", ", Trust(trusted_until)", ""),
        f"{FROZEN}[app-asyncio]",
    ),
    Mistake(
        "a turn's context does not know its lease",
        replaced("schedule-context-trust", ", Trust(hold.trusted_until)", ""),
        f"{FREEZES}::test_a_frozen_scheduler_repeats_no_effect[schedules-uvloop]",
    ),
    Mistake(
        "a turn with a target submits its run after the end of its lease",
        replaced(
            "firing-needs-lease",
            "Trusted(_submit(context, firing), Trust(firing.hold.trusted_until))",
            "_submit(context, firing)",
        ),
        "tests/unit/schedules/test_firing.py::test_nothing_is_submitted_after_the_end_of_the_lease",
    ),
    Mistake(
        "a turn in a process of its own trusts its lease for ever",
        replaced("isolated-turn-trust", "trusted=hold.trusted_until", 'trusted=lambda: float("inf")'),
        f"{FREEZES}::test_a_frozen_scheduler_repeats_no_effect[isolated_schedules-uvloop]",
    ),
    Mistake(
        "an isolated attempt does not know its lease",
        replaced("child-trusts-its-lease", "trust=Trust(control.trusted_until)", ""),
        f"{FROZEN}[isolated-uvloop]",
    ),
    Mistake(
        "nobody ends an agent that is frozen with its zygote",
        replaced("frozen-agents-end", "(hosts.ttl_seconds - hosts.trust_seconds) / 2", "None"),
        "tests/integration/hosts/test_host_outages.py"
        "::test_no_message_is_handled_by_two_copies_of_an_agent[all frozen]",
    ),
    Mistake(
        "a settlement whose reply is lost is called stale when it is sent again",
        replaced("settle-again", "have[1] == '' and 'already' or ", ""),
        f"{REDIS}::test_a_settlement_whose_reply_is_lost_is_settled_once",
    ),
    Mistake(
        "a body goes on while Redis hangs for longer than its lease",
        removed("lease-end-timer"),
        f"{REDIS}::test_redis_hangs_longer_than_the_lease",
    ),
    Mistake(
        "a submission sent again is a second run",
        removed("submit-once"),
        f"{REDIS}::test_a_submission_whose_reply_is_lost_is_one_run",
    ),
    Mistake(
        "an event sent again is in the feed twice",
        replaced("emit-once", "number > counted(have[3])", "true"),
        f"{REDIS}::test_an_event_whose_reply_is_lost_is_in_the_feed_once",
    ),
    Mistake(
        "attempts are counted only when they end",
        replaced("attempt-counted-at-claim", "'attempt')) + 1", "'attempt'))"),
        f"{DIE}::test_a_run_that_kills_its_workers_is_given_up_as_poison",
    ),
    Mistake(
        "attempts are known by their run alone",
        replaced("attempt-by-fence", "run.fence", "0"),
        f"{REDIS}::test_a_run_that_comes_back_to_a_worker_still_unwinding_it_does_no_harm",
    ),
    Mistake(
        "a claim without an answer is forgotten",
        replaced("unanswered-claim", "self._unanswered", "False"),
        f"{REDIS}::test_a_claim_whose_reply_is_lost_comes_back_at_once",
    ),
    Mistake(
        "two workers share a name",
        replaced("worker-name-unique", "not await self._name_is_taken(connections)", "True"),
        f"{DIE}::test_a_second_worker_of_the_same_name_waits_until_the_first_is_gone",
    ),
    Mistake(
        "a server that takes no writes is taken for a damaged run",
        removed("settle-write-refused"),
        f"{REDIS}::test_a_result_outlives_a_redis_that_takes_no_writes[full]",
    ),
    Mistake(
        "a worker dies of a heartbeat that Redis does not take",
        replaced("heartbeat-outage", "*TROUBLE", ""),
        f"{AWAY}::test_workers_outlive_a_redis_that_is_away[4.0]",
    ),
    Mistake(
        "a worker dies of results that Redis does not take",
        replaced("settle-outage-retried", "TROUBLE", "ZeroDivisionError"),
        f"{AWAY}::test_workers_outlive_a_redis_that_is_away[4.0]",
    ),
    Mistake(
        "a connection that was reset is written to",
        (
            replaced(
                "reset-connection-on-send", "self._writer.transport.is_closing()", "self._writer is False"
            ),
            replaced("reset-connection-on-check", "writer.transport.is_closing()", "writer is False"),
        ),
        f"{AWAY}::test_workers_outlive_connections_that_are_reset_again_and_again",
    ),
    Mistake(
        "a connection that is closed slowly is a failure",
        replaced("slow-closing", "RedisTimeoutError", "ZeroDivisionError"),
        "tests/integration/redis/test_client.py::test_closing_is_no_failure_however_long_it_takes",
    ),
    Mistake(
        "one that never joined leaves as if it had",
        replaced("leave-after-join-only", "registration)", "registration) or True"),
        f"{DIE}::test_one_that_is_stopped_while_it_waits_for_its_name_takes_nothing_from_who_has_it",
    ),
    Mistake(
        "one that has lost its name goes on under it",
        removed("member-name-taken"),
        f"{DIE}::test_a_worker_that_wakes_up_without_its_name_takes_nothing_from_who_has_it",
    ),
    Mistake(
        "one that has lost its name hands back what goes by it",
        replaced("lost-name-no-hand-back", "not self._own_name.lost", "True"),
        f"{DIE}::test_a_worker_that_wakes_up_without_its_name_takes_nothing_from_who_has_it",
    ),
    Mistake(
        "a process waits for threads that nobody ends",
        removed("exit-without-threads"),
        f"{DIE}::test_a_worker_leaves_without_the_threads_that_its_agents_left",
    ),
    Mistake(
        "a worker dies of a password that is changed",
        replaced("password-refused-type", ", RedisConnectionError", ""),
        f"{DIE}::test_a_worker_outlives_a_password_that_is_changed",
    ),
    Mistake(
        "a fence is given out again",
        replaced(
            "schedule-fence-rises",
            "string.format('%.0f', math.max((tonumber(stored) or 0) + 1, clock_us))",
            "stored or '1'",
        ),
        HISTORY,
    ),
    Mistake(
        "what a dead scheduler held stays its own",
        replaced("schedule-reclaim-runs", "await self._orphans.reclaim(_BATCH)", "[]"),
        HISTORY,
    ),
    Mistake(
        "permits that were taken for nothing are kept",
        replaced("unused-permits-returned", "taken - kept", "max(taken - kept - 1, 0)"),
        HISTORY,
    ),
    Mistake(
        "every missed turn is run",
        instead("missed-turns-policy", 'at = fire_after(schedule, ready)\nreturn at, 0, "turn"'),
        f"{OUTAGE}[4 s-frozen]",
    ),
    Mistake(
        "the breaker does not hear of failures",
        # The breaker around Redis also hears of ends and of the upkeep.
        (
            replaced(
                "breaker-counts-acquisition",
                "with acquisition.guard(), redis.guard()",
                "if acquisition and redis",
            ),
            replaced("breaker-counts-time", "with self.breakers.redis.guard()", "if self.breakers"),
            replaced("breaker-counts-endings", ", self._breaker.guard()", ""),
        ),
        "tests/integration/schedules/test_told.py::test_while_redis_is_away_the_breaker_is_in_the_log_and_in_the_metrics",
    ),
    Mistake(
        "more is acquired than there are permits",
        replaced(
            "acquire-within-permits",
            "self.permits.take(self._settings.batch_operations.per_script)",
            "self._settings.batch_operations.per_script",
        ),
        f"{OUTAGE}[4 s-frozen]",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
