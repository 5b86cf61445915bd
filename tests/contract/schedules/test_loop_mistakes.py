"""The known mistakes that the loop, its pure parts and the later scripts can make, each put back: its test fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake, instead, removed, replaced

HERE = "tests/contract/schedules"
D, H, RECOVERY, J = (
    f"{HERE}/test_{name}.py" for name in ("d_shards", "h_classification", "i_recovery", "j_breakers")
)
M, P, R = (f"{HERE}/test_{name}.py" for name in ("m_meaning", "p_invariants", "r_loop"))
OVERLAP, BACKFILL, UPKEEP = (f"{HERE}/test_{name}.py" for name in ("q_overlap", "q_backfill", "l_upkeep"))
BESIDE, ZOMBIES = (f"{HERE}/test_{name}.py" for name in ("q_beside", "k_zombies"))
REPORT, ACQUISITION = f"{HERE}/test_o_report.py", f"{HERE}/test_c_acquisition.py"
SHARDS = "tests/integration/schedules/test_shards.py"
OUTAGE, RECONCILE = (f"tests/integration/schedules/test_{name}.py" for name in ("outage", "reconcile"))
LEASES = "tests/contract/leases/test_lease_contract.py"
EXPLAIN = "tests/unit/schedules/test_explain.py"

MISTAKES = [
    Mistake(
        "R1 what a failed batch had tried is left out of the next one",
        instead(
            "acquire-after-failure",
            "tried = self.__dict__.setdefault('tried', set())\nlook = await self.look(limit, accept)\nnames = [name for name in look.names if name not in tried]\ntried.update(names)\nreturn await self.take(limit, Look(names, look.at))",
        ),
        f"{R}::test_r1_what_a_failed_batch_had_tried_is_tried_again",
    ),
    Mistake(
        "R1 a scheduler whose batch failed forgets what was in it",
        instead(
            "acquire-after-failure",
            "tried = self.__dict__.setdefault('tried', set())\nlook = await self.look(limit, accept)\nnames = [name for name in look.names if name not in tried]\ntried.update(names)\nreturn await self.take(limit, Look(names, look.at))",
        ),
        f"{R}::test_r1_in_the_loop_too",
    ),
    Mistake(
        "R7 the builtin type is asked before the status",
        replaced(
            "http-status-before-type",
            "if status",
            "if isinstance(exc, OSError):\n    return FailureClass.TRANSIENT\nif status",
        ),
        f"{H}::test_r7_an_http_error_keeps_its_status_although_it_is_an_error_of_input_and_output",
    ),
    Mistake(
        "R8 the time is that of this machine",
        replaced("clock-of-redis", " if self._offset is None else self._local() + self._offset", ""),
        f"{R}::test_r8_the_time_is_that_of_redis_however_wrong_this_machine_is",
    ),
    Mistake(
        "R8 zombies are looked for on the local clock",
        replaced("zombie-scan-clock", "self.clock.now", "__import__('time').time"),
        f"{R}::test_r8_the_scan_asks_the_clock_of_redis",
    ),
    Mistake(
        "R9 answers are paired with what was sent in another order",
        removed("endings-stable-order"),
        f"{R}::test_r9_each_end_is_told_its_own_word_in_whatever_order_they_are_sent",
    ),
    Mistake(
        "R9 permits of what was not acquired are kept",
        removed("unused-permits-returned"),
        f"{R}::test_r1_in_the_loop_too",
    ),
    Mistake(
        "R10 all tries are used up in one pass",
        (
            replaced("retry-cycle", " + self._cycle_seconds", ""),
            replaced("cycle-before-retry", "end.failed_at <= latest", "True"),
        ),
        f"{RECOVERY}::test_r10_one_try_per_cycle",
    ),
    Mistake(
        "R10 the first further try follows the failure at once",
        replaced("cycle-before-retry", "end.failed_at <= latest", "True"),
        f"{RECOVERY}::test_r10_the_first_further_try_comes_a_cycle_after_the_failure",
    ),
    Mistake(
        "R10 an end that fails just before a cycle has lost a try at once",
        replaced("cycle-before-retry", "end.failed_at <= latest", "True"),
        f"{RECOVERY}::test_r10_one_that_fails_just_before_a_cycle_waits_for_the_next",
    ),
    Mistake(
        "tries that fail are counted only when an end is given up",
        removed("failed-recovery-counted"),
        f"{RECOVERY}::test_i8_each_further_try_is_counted_by_how_it_ended",
    ),
    Mistake(
        "what is not run here counts as the backlog of a scheduler",
        replaced("backlog-of-this-scheduler", "lacking or not accepts(name, counts.now - at)", "False"),
        f"{REPORT}::test_o11_what_is_not_run_here_is_no_backlog_and_makes_nobody_degraded[disabled]",
    ),
    Mistake(
        "what has no agent here counts as the backlog of a scheduler",
        replaced("backlog-of-this-scheduler", "lacking or ", ""),
        f"{REPORT}::test_o11_what_is_not_run_here_is_no_backlog_and_makes_nobody_degraded[without an agent]",
    ),
    Mistake(
        "health does not know schedules that are made at run time",
        removed("definitions-read-again"),
        f"{REPORT}::test_o12_schedules_made_at_run_time_count",
    ),
    Mistake(
        "only the first pages of what is due are counted",
        replaced("all-due-read", "page[-1][1] > counts.now", "True"),
        f"{REPORT}::test_o25_behind_any_number_of_others_its_own_are_seen",
    ),
    Mistake(
        "the repopulation ends after its last page only",
        replaced("repopulation-within-budget", " or time.monotonic() >= ends", ""),
        f"{RECONCILE}::test_the_budget_of_a_pass_ends_the_repopulation_too_and_the_next_goes_on_from_there",
    ),
    Mistake(
        "each refresh tries all schedules without an agent again",
        replaced("foreign-defined-anew", "for at in differing", "for at in range(len(known))"),
        f"{ACQUISITION}::test_c28_what_has_no_agent_here_is_tried_again_only_after_it_was_defined_anew",
    ),
    Mistake(
        "what has no agent here is never tried again, though it was defined anew",
        replaced("foreign-defined-anew", "for at in differing", "for at in ()"),
        f"{ACQUISITION}::test_c28_what_has_no_agent_here_is_tried_again_only_after_it_was_defined_anew",
    ),
    Mistake(
        "a paused schedule decides how late is too late",
        replaced(
            "shortest-of-active",
            "await self._registry.active([name for _, name in chunk])",
            "dict(self.known)",
        ),
        f"{REPORT}::test_o23_the_shortest_period_is_that_of_schedules_with_turns_to_come",
    ),
    Mistake(
        "that failures have paused a schedule is no change",
        removed("completion-notes-change"),
        f"{REPORT}::test_o23_the_shortest_period_is_that_of_schedules_with_turns_to_come",
    ),
    Mistake(
        "a scheduler without Redis calls itself well",
        replaced("silent-redis-degrades", "sample.silent_seconds is not None", "False"),
        f"{REPORT}::test_o13_while_redis_is_away_it_is_degraded_and_says_so",
    ),
    Mistake(
        "a scheduler that is refused an answer says that there is none",
        replaced("refusal-is-an-answer", "str(exc) or type(exc).__name__", '""'),
        f"{REPORT}::test_o21_an_error_that_redis_answers_with_is_no_silence",
    ),
    Mistake(
        "nobody counts what is due while all permits are taken",
        instead("backlog-of-full-scheduler", "pass"),
        f"{REPORT}::test_o20_permits_that_nothing_runs_with_are_suspected_while_schedules_wait",
    ),
    Mistake(
        "with shards the watchdogs see no backlog",
        replaced("watchdogs-see-backlog", "self.backlog", "self.backlog if self.shards is None else 0"),
        f"{REPORT}::test_o14_watchdogs_look_at_what_is_run_here_also_with_shards[rendezvous]",
    ),
    Mistake(
        "looks that an open breaker prevents are not counted",
        replaced("blocked-looks-counted", "self.breakers.count_blocked()", "pass"),
        f"{REPORT}::test_o15_looks_that_an_open_breaker_prevents_are_counted",
    ),
    Mistake(
        "scripts that Redis has forgotten are loaded without a word",
        replaced("forgotten-script-told", "forgotten", "False"),
        f"{HERE}/test_a_scripts.py::test_a12_a_forgotten_script_is_told_and_one_that_is_new_to_a_server_is_not",
    ),
    Mistake(
        "R11 the lease of an end that could not be told is kept",
        removed("unreported-end-lets-go"),
        f"{RECOVERY}::test_r11_a_failed_completion_does_not_wait_for_the_orphan_threshold",
    ),
    Mistake(
        "R13 the owner is the rest of a division",
        instead(
            "shard-by-hash",
            'return self.pods[int.from_bytes(blake2b(name.encode()).digest()[:4], "big") % len(self.pods)]',
        ),
        f"{D}::test_r13_a_scheduler_that_comes_or_goes_moves_its_share_only",
    ),
    Mistake(
        "a dead scheduler's share is nobody else's, however long it is overdue",
        replaced("overdue-is-anybodys", " or overdue > self._ttl_seconds", ""),
        f"{SHARDS}::test_a_dead_schedulers_share_is_run_by_others_once_it_is_overdue_by_a_ttl",
    ),
    Mistake(
        "a draining scheduler tells it with its next heartbeat",
        removed("draining-told-at-once"),
        f"{SHARDS}::test_a_scheduler_that_drains_has_no_share_from_then_on",
    ),
    Mistake(
        "a draining scheduler does not say that others should look",
        removed("members-told-of-change"),
        f"{SHARDS}::test_a_scheduler_that_drains_has_no_share_from_then_on",
    ),
    Mistake(
        "others hear that a scheduler drains, and do not look around",
        removed("look-around-on-change"),
        f"{SHARDS}::test_a_scheduler_that_drains_has_no_share_from_then_on",
    ),
    Mistake(
        "R14 a look at the breaker is a probe",
        instead(
            "breaker-look-no-probe", "silent = self._last_opened() != self._opened_at\nself._probing += 1"
        ),
        f"{J}::test_r14_checks_without_a_call_consume_no_probe",
    ),
    Mistake(
        "a stored time zone that is not known here keeps its lease for ever",
        instead("damaged-zone-at-end", "raise"),
        f"{R}::test_r18_a_stored_zone_that_is_not_known_here_fails_its_turn_and_nothing_else[coalesce]",
    ),
    Mistake(
        "turns of another app's schedule are a backlog of this one",
        replaced("agent-of-turns", " or self.known.get(family(name))", ""),
        f"{REPORT}::test_o17_turns_of_what_is_not_run_here_are_no_backlog_either",
    ),
    Mistake(
        "gauges are set before a sample is whole",
        (
            removed("sample-is-whole"),
            replaced("sample-shortest", "=shortest", "=await self._shortest()"),
        ),
        f"{REPORT}::test_o24_gauges_are_of_whole_samples",
    ),
    Mistake(
        "nothing is overdue while Redis is away if nothing waited before",
        removed("overdue-while-all-run"),
        f"{REPORT}::test_o18_what_ran_when_redis_went_away_is_overdue_a_period_later",
    ),
    Mistake(
        "a scheduler that runs no schedules has a share",
        replaced("disabled-scheduler-announced", "not self._is_enabled", "False"),
        f"{SHARDS}::test_a_scheduler_that_runs_no_schedules_has_no_share",
    ),
    Mistake(
        "a dead scheduler keeps its share for three heartbeats",
        replaced(
            "record-ends-with-leases",
            "min(settings.worker.heartbeat_seconds, at_most_seconds / 3)",
            "settings.worker.heartbeat_seconds",
        ),
        f"{SHARDS}::test_a_dead_scheduler_has_no_share_from_the_end_of_its_leases_on",
    ),
    Mistake(
        "a Redis that is full is taken for one that is back",
        replaced("probe-writes", '"ZADD", self._keys.waiting, "XX", 0, ""', '"EXISTS", self._keys.waiting'),
        f"{OUTAGE}::test_a_redis_that_takes_writes_again_is_asked_at_once_however_long_the_cooldown_is",
    ),
    Mistake(
        "after an outage a scheduler waits for the end of the cooldown",
        removed("cooldown-ends-with-outage"),
        f"{OUTAGE}::test_a_redis_that_is_back_is_asked_at_once_however_long_the_cooldown_is[5]",
    ),
    Mistake(
        "what a hung Redis granted after the timeout is left to the end of its lease",
        removed("acquisition-in-doubt"),
        f"{OUTAGE}::test_after_a_hang_no_schedule_waits_for_the_end_of_a_lease_that_no_scheduler_knows[10]",
    ),
    Mistake(
        "after a hang a scheduler gives back what it runs",
        replaced("known-leases-kept", " if lease not in known", ""),
        f"{OUTAGE}::test_after_a_hang_no_schedule_waits_for_the_end_of_a_lease_that_no_scheduler_knows[10]",
    ),
    Mistake(
        "a breaker that errors have opened is half open as soon as Redis answers",
        replaced("probe-absence-only", "breaker.cause in {AWAY, UNWRITABLE}", "True"),
        f"{OUTAGE}::test_a_breaker_that_errors_have_opened_keeps_its_cooldown_though_redis_answers",
    ),
    Mistake(
        "a pass whose budget is used up sends nothing",
        instead(
            "reconcile-one-batch",
            "if time.monotonic() >= ends:\n    return False, changed\nchanged += await self._send(self._at, self._at + BATCH)",
        ),
        f"{RECONCILE}::test_a_pass_sends_one_batch_though_its_budget_is_used_up_before",
    ),
    Mistake(
        "R15 leases are renewed on the event loop of the agents",
        replaced(
            "renewal-own-thread",
            "self._renew_all(redis)",
            "asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._renew_all(redis), self._loop))",
        ),
        f"{R}::test_r15_an_agent_that_blocks_the_event_loop_keeps_its_lease",
    ),
    Mistake(
        "R16 nobody brings back what its holder did not end",
        replaced("schedule-reclaim-runs", "await self._orphans.reclaim(_BATCH)", "[]"),
        f"{R}::test_r16_an_agent_that_never_ends_does_not_end_its_schedule",
    ),
    Mistake(
        "a record of another type fails the renewal of all leases",
        replaced("held-damaged-record", "pcall", "call"),
        f"{LEASES}::test_a_record_that_was_overwritten_costs_only_its_own_lease",
    ),
    Mistake(
        "a turn is placed beside another as often as it is asked for",
        removed("beside-once"),
        f"{OVERLAP}::test_q10_a_turn_is_placed_once_however_often_it_is_asked_for",
    ),
    Mistake(
        "a former holder places turns beside what another runs",
        removed("beside-fence"),
        f"{OVERLAP}::test_q11_only_the_holder_of_the_turn_places_others_beside_it",
    ),
    Mistake(
        "turns beside each other have no bound",
        replaced("beside-limit", "most - 1", "1000"),
        f"{OVERLAP}::test_q9_there_are_never_more_than_allowed_and_an_end_makes_room",
    ),
    Mistake(
        "a turn by itself stays defined after its end",
        replaced("single-turn-removed", "if of", "if false"),
        f"{P}::test_p1_after_every_step_each_schedule_is_in_exactly_one_place",
    ),
    Mistake(
        "turns placed beside a run are planned again by its end",
        replaced("beside-turns-planned", "max(acquired.acquired_at, firing.beside)", "acquired.acquired_at"),
        f"{OVERLAP}::test_q34_the_end_of_a_turn_plans_the_one_after_the_last_that_was_placed_beside_it",
    ),
    Mistake(
        "one that was paused goes on beside its last turn",
        removed("beside-paused"),
        f"{OVERLAP}::test_q32_one_paused_while_it_runs_has_no_turn_beside_it",
    ),
    Mistake(
        "a manual run has turns beside it",
        replaced("manual-run-alone", "firing.acquired.triggered", "False"),
        f"{OVERLAP}::test_q33_a_manual_run_has_no_turns_beside_it",
    ),
    Mistake(
        "turns placed beside a run do not count",
        replaced("beside-turns-planned", "firing.placed + ", ""),
        f"{OVERLAP}::test_q17_max_runs_counts_parallel_turns",
    ),
    Mistake(
        "turns are caught up and run side by side",
        replaced("catch-up-without-overlap", "sound.misfire in POLICIES[sound.overlap].excludes", "False"),
        f"{BESIDE}::test_q40_catching_up_and_running_side_by_side_are_refused_together",
    ),
    Mistake(
        "turns that a late one owes vanish when others run beside it",
        replaced("owed-turns-counted", " + owed", ""),
        f"{BESIDE}::test_q41_the_turns_that_a_late_one_owes_are_counted_though_others_ran_beside_it",
    ),
    Mistake(
        "the next holder does not know what was placed beside a turn",
        replaced("acquired-beside", "have[8] or ", ""),
        f"{BESIDE}::test_q42_the_next_holder_knows_what_was_placed_beside_the_turn[reclaimed]",
    ),
    Mistake(
        "a manual run forgets what was placed beside a turn",
        replaced("manual-run-keeps-beside", "and not have[6] ", ""),
        f"{BESIDE}::test_q43_a_manual_run_in_between_does_not_make_it_forgotten",
    ),
    Mistake(
        "a turn of which no answer came counts as placed",
        replaced(
            "doubtful-turn", "doubtful ~= '' and (tonumber(beside or nil) or 0) < tonumber(doubtful)", "false"
        ),
        f"{BESIDE}::test_q44_a_turn_that_redis_never_heard_of_is_the_next_one",
    ),
    Mistake(
        "a turn of which no answer came is run again",
        replaced("doubtful-turn", " and (tonumber(beside or nil) or 0) < tonumber(doubtful)", ""),
        f"{BESIDE}::test_q45_a_turn_whose_placing_was_done_but_not_answered_is_not_run_again",
    ),
    Mistake(
        "the end of a run overwrites the failures of those beside it",
        replaced("failure-streak", "known and known + 1 or ", ""),
        f"{BESIDE}::test_q46_failures_side_by_side_add_up_in_whatever_order_they_end",
    ),
    Mistake(
        "a cancelled run overwrites the failures of those beside it",
        replaced("cancelled-keeps-streak", "known or ", ""),
        f"{BESIDE}::test_q47_a_manual_or_cancelled_run_leaves_what_others_added",
    ),
    Mistake(
        "a pause for failures keeps the time of a manual run as the turn",
        replaced("failure-pause-keeps-turn", "cadence or ", ""),
        f"{BESIDE}::test_q48_a_pause_for_failures_keeps_the_turn_and_gives_up_the_manual_run",
    ),
    Mistake(
        "a backfill counts all turns of its window, whatever its limit is",
        replaced("backfill-limit", "most + 1", "100_000"),
        "tests/contract/schedules/test_q_backfill.py"
        "::test_q22_no_more_turns_are_computed_than_show_that_there_are_too_many[1-1]",
    ),
    Mistake(
        "a backfill computes its turns on the event loop",
        replaced(
            "backfill-off-loop",
            "await asyncio.to_thread(turns_between, schedule, start, end, now=now, limit=limit)",
            "turns_between(schedule, start, end, now=now, limit=limit)",
        ),
        "tests/contract/schedules/test_q_backfill.py::test_q22_turns_are_computed_beside_the_event_loop",
    ),
    Mistake(
        "missed turns are walked one by one",
        instead(
            "missed-turns-computed",
            "left_out = 0\nwhile (turns := fire_times(schedule, at, 1)) and turns[0] <= now:\n    at, left_out = turns[0], left_out + 1\nreturn at, left_out",
        ),
        f"{BESIDE}::test_q49_the_last_of_any_number_of_turns_is_found_without_walking_them",
    ),
    Mistake(
        "turns count as schedules that may be lost",
        replaced("count-without-turns", " - turns", ""),
        f"{BESIDE}::test_q50_turns_that_come_and_go_do_not_look_like_lost_schedules",
    ),
    Mistake(
        "a scan for zombies that its budget ended begins with the first turn again",
        instead("zombie-scan-goes-on", "self._left = []"),
        f"{ZOMBIES}::test_k4_a_scan_over_its_budget_stops_between_items_and_the_next_goes_on_there",
    ),
    Mistake(
        "a zombie that the scan found is the dead-man timer's, too",
        instead(
            "zombie-ended-once", 'self._metrics.schedule_zombies.labels("scan").inc()\nself._end(turn, over)'
        ),
        f"{ZOMBIES}::test_k1_the_scan_lets_the_schedule_go_on_without_its_zombie",
    ),
    Mistake(
        "a pattern is asked for the name of a turn",
        replaced("pattern-by-family", "family(name)", "name"),
        f"{OVERLAP}::test_q18_patterns_mean_the_schedule_and_its_turns",
    ),
    Mistake(
        "the turn that waited is left to the misfire policy",
        replaced("buffered-turn", "POLICIES[schedule.overlap].waiting(schedule, acquired, ended)", "0"),
        f"{OVERLAP}::test_q1_with_buffer_one_turn_waits_and_runs_right_after_whatever_the_misfire_policy[skip]",
    ),
    Mistake(
        "a backfilled turn is forgotten when it has ended",
        removed("backfilled-turn-ended"),
        f"{BACKFILL}::test_q26_a_turn_that_was_backfilled_is_not_run_again",
    ),
    Mistake(
        "a whole backfill takes its turns at once",
        replaced("backfill-concurrency", "redis.call('ZCARD', begun) + 1, most", "1, 1000"),
        f"{BACKFILL}::test_q25_without_a_target_so_many_at_once_take_their_turn_and_the_others_follow",
    ),
    Mistake(
        "a sweep asks nobody whether another leads",
        replaced("sweep-leader-only", '"elsewhere"', "await self._pass()"),
        f"{UPKEEP}::test_l22_while_another_leads_nothing_is_swept",
    ),
    Mistake(
        "a pass is cancelled as soon as the scheduler stops",
        replaced("round-stop-grace", "self._stop_timeouts[0]", "0"),
        f"{M}::test_m16_a_pass_that_is_on_may_end_and_no_other_begins",
    ),
    Mistake(
        "the last answer is trusted, however slow it was",
        replaced("clock-quickest-answer", "self.is_old or took <= self._took", "True"),
        f"{M}::test_m14_a_quick_answer_is_trusted_over_slow_ones_until_it_is_too_old",
    ),
    Mistake(
        "a scheduler with all permits taken does not ask for the time",
        removed("time-asked-when-full"),
        f"{M}::test_m15_while_nothing_is_acquired_redis_is_asked_for_its_time_again",
    ),
    Mistake(
        "an open breaker is not explained",
        replaced("explain-open-breaker", 'if not fields.get("breakers")', ""),
        f"{EXPLAIN}::test_by_who_could_run_it",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
