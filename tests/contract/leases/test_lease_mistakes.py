"""The known mistakes with leases and with their renewal, each put back: its test fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake, instead, removed, replaced

CONTRACT = "tests/contract/leases/test_lease_contract.py"
KEEPER = "tests/integration/leases/test_keeper.py"

MISTAKES = [
    Mistake(
        "each failed renewal of an outage is a line in the log",
        replaced("outage-logged-once", "cause not in self._causes", "True"),
        "tests/integration/leases/test_keeper.py::test_an_outage_is_logged_once_with_a_summary_at_its_end",
    ),
    Mistake(
        "a stream lease is renewed without looking at its fence",
        replaced("run-renew-fence", "or have[2] ~= fence ", ""),
        f"{CONTRACT}::test_the_same_owner_under_an_old_fence_is_stale_too[streams]",
    ),
    Mistake(
        "a lease is renewed without looking at its owner",
        replaced("held-owner-and-fence", "have[1] == owner and have[2] == fence", "true"),
        f"{CONTRACT}::test_a_stale_holders_renewal_is_refused_and_changes_nothing[schedules]",
    ),
    Mistake(
        "an agent's record that was overwritten costs a host all of its agents",
        replaced("agent-renew-damaged-record", "redis.pcall", "redis.call"),
        f"{CONTRACT}::test_a_record_that_was_overwritten_costs_only_its_own_lease[agents]",
    ),
    Mistake(
        "a leader's term is prolonged by its predecessor",
        removed("leader-renew-fence"),
        f"{CONTRACT}::test_a_stale_holders_renewal_is_refused_and_changes_nothing[leader]",
    ),
    Mistake(
        "a leader's term is ended by its predecessor",
        removed("leader-resign-fence"),
        f"{CONTRACT}::test_a_stale_holders_release_is_refused[leader]",
    ),
    Mistake(
        "a leader's term is known by its owner alone",
        replaced("leader-owner-and-fence", " and have_fence == fence", ""),
        f"{CONTRACT}::test_the_same_owner_under_an_old_fence_is_stale_too[leader as a string]",
    ),
    Mistake(
        "a leader's term is trusted for as long as the keeper's other leases",
        replaced("leader-trust-of-its-ttl", "self._leadership.trust_seconds", "3600"),
        "tests/integration/leases/test_leadership.py::test_a_task_ends_before_its_short_term_though_the_keeper_trusts_longer",
    ),
    Mistake(
        "nobody looks when a lease's time is over",
        removed("lease-end-timer"),
        f"{KEEPER}::test_a_hung_redis_stops_the_body_before_the_lease_can_move",
    ),
    Mistake(
        "a body has no trust window",
        replaced("trust-window", "self.trust_seconds", "3600"),
        f"{KEEPER}::test_a_hung_redis_stops_the_body_before_the_lease_can_move",
    ),
    Mistake(
        "a renewal is trusted from its answer",
        replaced("trust-window", "requested_at", "boot_time()"),
        f"{KEEPER}::test_a_renewal_is_trusted_from_when_it_was_asked",
    ),
    Mistake(
        "a lease that was over is trusted again after a late renewal",
        removed("expired-lease-stays-lost"),
        f"{KEEPER}::test_a_lease_that_was_over_is_not_trusted_again",
    ),
    Mistake(
        "a lease is trusted by a clock that stands still while the machine is suspended",
        replaced("counts-suspended-time", "time.clock_gettime(CLOCK)", "time.monotonic()"),
        f"{KEEPER}::test_a_lease_that_ended_while_the_machine_was_suspended_is_not_trusted",
    ),
    Mistake(
        "leases are renewed on the worker's own loop",
        instead(
            "renewal-own-thread",
            "asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result()\nwhole = await self._renew_all(redis)",
        ),
        f"{KEEPER}::test_a_blocked_event_loop_does_not_lose_its_lease",
    ),
    Mistake(
        "one lease is renewed per call",
        replaced("renewal-batch-size", "2000", "1"),
        f"{KEEPER}::test_a_thousand_leases_are_kept_by_one_call_per_beat",
    ),
    Mistake(
        "a body that lost its lease is waited for before the next renewal",
        instead(
            "renewal-not-waiting-for-losers",
            "self._call_loop(self._apply, holds, standings)\nlosers = {hold for hold, found in zip(holds, standings) if found is RenewalReply.LOST}\nwhile losers & self.guarded:\n    await asyncio.sleep(0.01)",
        ),
        f"{KEEPER}::test_a_slow_loser_does_not_hurt_the_other_leases",
    ),
    Mistake(
        "stores are renewed one after the other",
        replaced(
            "stores-renewed-concurrently", "await asyncio.gather(*calls)", "[await call for call in calls]"
        ),
        f"{KEEPER}::test_a_store_that_hangs_costs_only_its_own_leases",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
