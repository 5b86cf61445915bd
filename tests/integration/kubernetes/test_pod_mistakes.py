"""The known mistakes with pods as proofs and with what their deletion costs, each put back: its test fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake

HERE = "tests/integration/kubernetes"
PODS, CLEANUP, JANITOR = (f"{HERE}/test_{name}.py" for name in ("pods", "cleanup_pods", "janitor_pods"))
PROOF = "tests/unit/test_podproof.py"
COSTS = "tests/unit/scaling/test_deletioncost.py"

MISTAKES = [
    Mistake(
        "a pod that is gone is proof enough, whatever the leases say",
        "runs/cleanup.py",
        "redis, consumer.name, min_idle_ms=self._ttl_ms, look_only=dry_run",
        "redis, consumer.name, min_idle_ms=0, look_only=dry_run",
        f"{CLEANUP}::test_who_is_removed[False-gone-long-True]",
    ),
    Mistake(
        "a pod that is gone is proof enough, whatever the idle time says",
        "runs/cleanup.py",
        "least = min(self._threshold, self._ttl_ms / 1000) if proof is Proof.GONE else self._threshold",
        "least = 0 if proof is Proof.GONE else self._threshold",
        f"{CLEANUP}::test_who_is_removed[False-gone-not for a ttl-False]",
    ),
    Mistake(
        "a pod that lives does not keep its consumer",
        "runs/cleanup.py",
        "if proof is Proof.LIVES:",
        "if False:",
        f"{CLEANUP}::test_a_consumer_whose_pod_is_gone_is_removed_long_before_the_threshold",
    ),
    Mistake(
        "who never was in a pod is dead because there is none",
        "runs/podproof.py",
        "if known is None or known.namespace != namespace:",
        "if known is None and found is not None:",
        f"{CLEANUP}::test_a_worker_that_never_was_in_a_pod_is_not_dead_because_there_is_none",
    ),
    Mistake(
        "a pod speaks for all processes that ever were in it",
        "runs/podproof.py",
        "any(member.name != consumer and",
        "any(False and",
        f"{CLEANUP}::test_earlier_processes_of_a_pod_that_runs_don_t_stay_for_ever",
    ),
    Mistake(
        "each consumer of a pass waits for an API that does not answer",
        "runs/podproof.py",
        "self._rest_until = time.monotonic() + _REST_SECONDS",
        "pass",
        f"{CLEANUP}::test_without_an_answer_all_is_as_without_pods[forbidden]",
    ),
    Mistake(
        "a proxy's 404 is taken for a pod that is gone",
        "kubernetes/pods.py",
        "    except msgspec.MsgspecError:\n        return None\n",
        '    except msgspec.MsgspecError:\n        return _Details("pods")\n',
        f"{PODS}::test_what_no_api_says_proves_nothing[get]",
    ),
    Mistake(
        "what a webhook denies is taken for a pod that is gone",
        "kubernetes/pods.py",
        "if _says_not_found(answer) or _says_another(answer):",
        "if answer.status_code in {404, 422}:",
        f"{PODS}::test_a_webhook_that_denies_the_patch_does_not_mean_that_the_pod_is_gone",
    ),
    Mistake(
        "a cost is written to whoever has the name now",
        "kubernetes/pods.py",
        '{"metadata": {"uid": pod.uid, "annotations"',
        '{"metadata": {"annotations"',
        f"{PODS}::test_a_pod_that_is_gone_or_another_one_is_not_written",
    ),
    Mistake(
        "a hung watch is waited for without end",
        "kubernetes/pods.py",
        "read=WATCH_SECONDS + _LATE_SECONDS",
        "read=None",
        f"{PODS}::test_an_api_that_hangs_is_not_waited_for[watch]",
    ),
    Mistake(
        "what went while the janitor settled is forgotten",
        "services/podkeeping.py",
        "        nudge.clear()\n        await asyncio.sleep(self._settle_seconds)\n",
        "        await asyncio.sleep(self._settle_seconds)\n        nudge.clear()\n",
        f"{JANITOR}::test_who_goes_while_the_janitor_settles_is_not_forgotten",
    ),
    Mistake(
        "what went while nobody watched is forgotten",
        "services/podkeeping.py",
        "        self._somebody_left()  # perhaps, while nobody watched\n",
        "",
        f"{JANITOR}::test_a_pod_that_went_before_the_watch_began_is_not_forgotten",
    ),
    Mistake(
        "every janitor watches",
        "services/podkeeping.py",
        "await self._office.perform(keeper, self._watch, endless=True)",
        "await self._watch()",
        f"{JANITOR}::test_one_janitor_at_a_time_watches_and_another_takes_over",
    ),
    Mistake(
        "whoever watches has the office for a janitor's turn",
        "services/podkeeping.py",
        "            ttl_seconds=settings.lease.ttl_seconds,\n",
        "            ttl_seconds=settings.janitor.lock_ttl_seconds,\n",
        f"{JANITOR}::test_a_killed_janitors_watch_is_taken_over_when_its_lease_ends_not_its_turn",
    ),
    Mistake(
        "a cost follows every run down",
        "scaling/deletioncost.py",
        "self._most = Damper(lower_seconds)",
        "self._most = Damper(0.0)",
        f"{COSTS}::test_a_short_pause_of_a_busy_worker_does_not_lower_its_cost",
    ),
    Mistake(
        "a cost follows every run up",
        "scaling/deletioncost.py",
        "self._least = Damper(raise_seconds)",
        "self._least = Damper(0.0)",
        f"{COSTS}::test_runs_that_come_and_go_write_nothing",
    ),
    Mistake(
        "time in which nobody looked counts",
        "scaling/deletioncost.py",
        "            self._known.clear()\n",
        "            pass\n",
        f"{COSTS}::test_after_a_gap_in_which_nobody_looked_nothing_is_known_to_have_lasted",
    ),
    Mistake(
        "a pod that refuses its cost is asked at every look",
        "scaling/deletioncost.py",
        "return None if memory.tried_lately(now, patch.cost) else patch",
        "return patch",
        f"{COSTS}::test_a_pod_that_does_not_show_what_was_written_is_not_asked_at_every_look",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
