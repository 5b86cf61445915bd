"""The known mistakes with pods as proofs and with what their deletion costs, each put back: its test fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake, instead, removed, replaced

HERE = "tests/integration/kubernetes"
PODS, CLEANUP, JANITOR = (f"{HERE}/test_{name}.py" for name in ("pods", "cleanup_pods", "janitor_pods"))
PROOF = "tests/unit/test_podproof.py"
COSTS = "tests/unit/scaling/test_deletioncost.py"

MISTAKES = [
    Mistake(
        "a pod that is gone is proof enough, whatever the leases say",
        replaced("gone-pod-leases", "self._ttl_ms", "0"),
        f"{CLEANUP}::test_who_is_removed[False-gone-long-True]",
    ),
    Mistake(
        "a pod that is gone is proof enough, whatever the idle time says",
        replaced("gone-pod-idle-time", "min(self._threshold, self._ttl_ms / 1000)", "0"),
        f"{CLEANUP}::test_who_is_removed[False-gone-not for a ttl-False]",
    ),
    Mistake(
        "a pod that lives does not keep its consumer",
        replaced("live-pod-consumer", "proof is Proof.LIVES", "False"),
        f"{CLEANUP}::test_a_consumer_whose_pod_is_gone_is_removed_long_before_the_threshold",
    ),
    Mistake(
        "who never was in a pod is dead because there is none",
        replaced("pod-proof-known-pod", "or known.namespace != namespace", "and found is not None"),
        f"{CLEANUP}::test_a_worker_that_never_was_in_a_pod_is_not_dead_because_there_is_none",
    ),
    Mistake(
        "a pod speaks for all processes that ever were in it",
        replaced("pod-proof-one-process", "member.name != consumer", "False"),
        f"{CLEANUP}::test_earlier_processes_of_a_pod_that_runs_don_t_stay_for_ever",
    ),
    Mistake(
        "each consumer of a pass waits for an API that does not answer",
        removed("pod-proof-rest"),
        f"{CLEANUP}::test_without_an_answer_all_is_as_without_pods[forbidden]",
    ),
    Mistake(
        "a proxy's 404 is taken for a pod that is gone",
        replaced("pod-not-found-body", "None", '_Details("pods")'),
        f"{PODS}::test_what_no_api_says_proves_nothing[get]",
    ),
    Mistake(
        "what a webhook denies is taken for a pod that is gone",
        replaced(
            "pod-gone-status",
            "_is_not_found(response) or _is_another_pod(response)",
            "response.status_code in {404, 422}",
        ),
        f"{PODS}::test_a_webhook_that_denies_the_patch_does_not_mean_that_the_pod_is_gone",
    ),
    Mistake(
        "a cost is written to whoever has the name now",
        replaced("pod-cost-uid", '"uid": pod.uid, ', ""),
        f"{PODS}::test_a_pod_that_is_gone_or_another_one_is_not_written",
    ),
    Mistake(
        "a hung watch is waited for without end",
        replaced("pod-watch-timeout", "WATCH_SECONDS + _LATE_SECONDS", "None"),
        f"{PODS}::test_an_api_that_hangs_is_not_waited_for[watch]",
    ),
    Mistake(
        "what went while the janitor settled is forgotten",
        instead("nudge-cleared-before-settling", "await asyncio.sleep(self._settle_seconds)\nnudge.clear()"),
        f"{JANITOR}::test_who_goes_while_the_janitor_settles_is_not_forgotten",
    ),
    Mistake(
        "what went while nobody watched is forgotten",
        removed("pod-watch-begins-with-look"),
        f"{JANITOR}::test_a_pod_that_went_before_the_watch_began_is_not_forgotten",
    ),
    Mistake(
        "every janitor watches",
        replaced(
            "pod-watch-leader-only", "_leader_task.perform(keeper, self._watch, endless=True)", "_watch()"
        ),
        f"{JANITOR}::test_one_janitor_at_a_time_watches_and_another_takes_over",
    ),
    Mistake(
        "whoever watches has the office for a janitor's turn",
        replaced("pod-watch-lease-ttl", "lease.ttl_seconds", "janitor.lock_ttl_seconds"),
        f"{JANITOR}::test_a_killed_janitors_watch_is_taken_over_when_its_lease_ends_not_its_turn",
    ),
    Mistake(
        "a cost follows every run down",
        replaced("cost-lower-damped", "lower_seconds", "0.0"),
        f"{COSTS}::test_a_short_pause_of_a_busy_worker_does_not_lower_its_cost",
    ),
    Mistake(
        "a cost follows every run up",
        replaced("cost-raise-damped", "raise_seconds", "0.0"),
        f"{COSTS}::test_runs_that_come_and_go_write_nothing",
    ),
    Mistake(
        "a worker that takes a run waits for its heartbeat to say so",
        replaced("busy-announced-at-once", "self._idle and self._load(pool)", "False"),
        "tests/integration/runs/test_worker.py::test_a_workers_record_says_at_once_that_it_has_work",
    ),
    Mistake(
        "time in which nobody looked counts",
        removed("cost-times-cleared"),
        f"{COSTS}::test_after_a_gap_in_which_nobody_looked_nothing_is_known_to_have_lasted",
    ),
    Mistake(
        "a pod that refuses its cost is asked at every look",
        replaced("refused-cost-backoff", "None if memory.tried_lately(now, patch.cost) else ", ""),
        f"{COSTS}::test_a_pod_that_does_not_show_what_was_written_is_not_asked_at_every_look",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
