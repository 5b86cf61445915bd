"""The known mistakes that scripts can make, each put back: the test named after it fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake, instead, removed, replaced

HERE = "tests/contract/schedules"
B, C, L = (f"{HERE}/test_{name}.py" for name in ("b_registration", "c_acquisition", "l_orphans"))
A, N, P = (f"{HERE}/test_{name}.py" for name in ("a_scripts", "n_shutdown", "p_invariants"))

S = f"{HERE}/test_s_history.py"

MISTAKES = [
    Mistake(
        "an end that is refused under an old fence is listed as a turn",
        instead("turn-history-fence", "if word then note_history(name, at) return word end"),
        f"{S}::test_s2_an_end_under_an_old_fence_is_not_listed",
    ),
    Mistake(
        "a turn that is given back under an old fence is listed",
        instead("give-back-fence", "if word then note_history(name, fence, turn) return word end"),
        f"{S}::test_s2_an_end_under_an_old_fence_is_not_listed",
    ),
    Mistake(
        "an end that is told again is listed again",
        instead("turn-history-fence", "if word then note_history(name, at) return word end"),
        f"{S}::test_s3_an_end_that_is_told_again_is_listed_once",
    ),
    Mistake(
        "a turn that died with its scheduler is not listed",
        removed("lost-turn-in-history"),
        f"{S}::test_s4_a_turn_that_died_with_its_scheduler_is_lost_and_its_next_attempt_follows",
    ),
    Mistake(
        "a history grows without end",
        removed("turn-history-bounded"),
        f"{S}::test_s6_only_so_many_are_kept_and_0_keeps_none",
    ),
    Mistake(
        "a removed schedule leaves its history behind",
        replaced("removed-history", ", prefix .. name .. '#history'", ""),
        f"{S}::test_s7_the_history_goes_with_its_schedule_and_no_late_end_brings_it_back",
    ),
    Mistake(
        "a name that is no text is acquired, again and again",
        replaced("acquire-readable-name", "is_unreadable(names[i])", "false"),
        "tests/contract/schedules/test_l_orphans.py::test_l19_a_name_that_is_no_text_is_discarded_once_and_told",
    ),
    Mistake(
        "a sweep leaves a name that is no text",
        replaced("sweep-unreadable-name", "is_unreadable(name) and discard or ", ""),
        "tests/contract/schedules/test_l_orphans.py::test_l20_a_sweep_discards_it_too",
    ),
    Mistake(
        "what is no name is registered again as another",
        replaced("missing-readable-name", "not is_unreadable(page[2][i]) and ", ""),
        "tests/contract/schedules/test_l_orphans.py::test_l21_what_is_no_name_is_not_registered_again_as_another",
    ),
    Mistake(
        "an overwritten key of a backfill fails whoever meets it",
        replaced("backfill-damaged-key", "pcall", "call"),
        "tests/contract/schedules/test_q_backfill.py::"
        "test_q51_a_key_of_a_backfill_that_was_overwritten_is_thrown_away_and_fails_nobody[#turns]",
    ),
    Mistake(
        "an overwritten key of a backfill is thrown away without a word",
        removed("backfill-damage-reported"),
        "tests/contract/schedules/test_q_backfill.py::test_q52_what_was_thrown_away_is_told_and_counted[#turns]",
    ),
    Mistake(
        "one more failure pauses at once what was resumed",
        removed("resume-resets-streak"),
        f"{B}::test_b16_a_resume_counts_the_failures_anew",
    ),
    Mistake(
        "a run from before a resume brings the failures back",
        replaced("failure-streak", "known and known + 1 or told", "math.max((known or 0) + 1, told)"),
        f"{HERE}/test_q_beside.py::test_q49_a_run_from_before_a_resume_does_not_bring_its_failures_back",
    ),
    Mistake(
        "R2 what was seen due is taken without asking again whether it is",
        instead(
            "acquire-still-due",
            "due[#due + 1], due[#due + 2] = names[i], score or '0'",
        ),
        f"{C}::test_r2_what_was_seen_due_is_asked_again_when_it_is_taken",
    ),
    Mistake(
        "R2 what is not due yet is acquired early",
        replaced("acquire-due-only", "now_score", "'+inf'"),
        f"{C}::test_c1_only_what_is_due_is_acquired",
    ),
    Mistake(
        "R3 the owner alone is the token of ownership",
        replaced("schedule-ownership-fence", "== fence ", ""),
        f"{C}::test_r3_a_second_holder_in_the_same_second_is_another_holder",
    ),
    Mistake(
        "R3 the fence is a whole second",
        replaced(
            "schedule-fence-rises",
            "math.max((tonumber(stored) or 0) + 1, clock_us)",
            "math.floor(clock_us / 1000000)",
        ),
        f"{C}::test_r3_a_second_holder_in_the_same_second_is_another_holder",
    ),
    Mistake(
        "R4 a late completion plans what was removed",
        replaced("complete-defined-only", "redis.call('HEXISTS', definitions, name) == 0", "false"),
        f"{C}::test_r4_a_late_completion_does_not_bring_back_what_was_removed",
    ),
    Mistake(
        "R5 only the head is looked at",
        replaced(
            "acquire-scan-pages",
            "range(min(self._scan_pages, math.ceil((head.due - head.size) / BATCH)))",
            "()",
        ),
        f"{C}::test_r5_foreign_entries_at_the_head_do_not_starve_a_pod",
    ),
    Mistake(
        "R5 every look begins where the last one began",
        removed("acquire-scan-position"),
        f"{C}::test_r5b_more_foreign_entries_than_one_look_may_scan_only_take_another_look",
    ),
    Mistake(
        "R5 what can't run blocks the head",
        instead("acquire-past-invalid", "break"),
        f"{C}::test_c15_entries_without_a_definition_never_run_and_never_block",
    ),
    Mistake(
        "patient ones at the head hide normal ones from the script",
        replaced("acquire-past-patient", "LOOK_MOST - window", "0"),
        f"{C}::test_c25_a_thousand_patient_ones_at_the_head_do_not_go_before_normal_ones[all]",
    ),
    Mistake(
        "patient ones at the head hide normal ones from a scheduler that chooses",
        replaced("look-past-patient", "sum(rank <= reached for rank in found.values())", "len(found)"),
        f"{C}::test_c25_a_thousand_patient_ones_at_the_head_do_not_go_before_normal_ones[chosen]",
    ),
    Mistake(
        "what is due and left here is the next turn to wait for",
        replaced("acquire-next-turn", "'(' .. known", "'-inf'"),
        f"{C}::test_c8_the_answer_says_when_to_look_again",
    ),
    Mistake(
        "what becomes due between the look and the taking waits for the longest sleep",
        replaced("acquire-due-since-look", "named and ARGV[6] or now_score", "now_score"),
        f"{C}::test_c8_what_becomes_due_between_the_look_and_the_taking_is_looked_for_at_once",
    ),
    Mistake(
        "a scheduler that leaves something due sleeps for its whole interval",
        replaced("pause-until-next-turn", "found.earliest is None", "found.earliest is None or found.due"),
        f"{C}::test_c26_a_due_schedule_that_is_not_run_here_makes_no_other_late[disabled]",
    ),
    Mistake(
        "all schedulers ask for the same head once everything is overdue",
        replaced("own-share-first", "max(limit - len(own), 0)", "limit"),
        f"{C}::test_c27_a_scheduler_names_others_only_where_its_own_leave_permits_free",
    ),
    Mistake(
        "R6 a pod wants exactly what every other pod has seen",
        replaced("acquire-spare-candidates", "= 4", "= 1"),
        f"{C}::test_r6_a_pod_that_was_slower_gets_the_next_ones_instead_of_none",
    ),
    Mistake(
        "R11 what was not completed waits for its deadline",
        replaced(
            "schedule-reclaim-by-lease",
            "leases, '-inf', math.floor(clock / 1000)",
            "working, '-inf', clock / 1000000 - 600",
        ),
        f"{L}::test_r11_a_completion_that_failed_does_not_wait_for_the_orphan_threshold",
    ),
    Mistake(
        "R12 a leader takes what it does not know for invalid",
        replaced("sweep-defined-in-redis", "redis.call('HEXISTS', definitions, name) == 1", "false"),
        f"{L}::test_r12_a_leader_does_not_delete_schedules_that_it_does_not_know",
    ),
    Mistake(
        "R16 only a completion plans the next turn",
        removed("reclaimed-schedule-planned"),
        f"{L}::test_r16_a_crash_in_the_middle_of_a_run_does_not_end_the_schedule",
    ),
    Mistake(
        "a stale completion is accepted",
        replaced("stale-completion", "'stale'", "nil"),
        f"{C}::test_c13_a_stale_completion_changes_nothing",
    ),
    Mistake(
        "a completion sent again moves the turn",
        replaced("completion-already-done", "then", "or have_owner == '' then"),
        f"{C}::test_c12_a_completion_sent_again_says_already",
    ),
    Mistake(
        "what another holds is acquired because it stands in both sets",
        replaced("acquire-not-held", "and not held[i] ", ""),
        f"{C}::test_c16_what_is_held_is_not_acquired_though_it_stands_in_both_sets",
    ),
    Mistake(
        "a damaged record fails the batch",
        replaced("schedule-damaged-record", "pcall", "call"),
        f"{A}::test_a9_a_damaged_record_costs_nobody_else_anything",
    ),
    Mistake(
        "registering again moves the turn",
        replaced("register-keeps-turn", "not old or (have[1] and have[1] ~= trigger)", "true"),
        f"{B}::test_b3_another_input_is_an_update_that_keeps_the_turn",
    ),
    Mistake(
        "registering what runs puts it into waiting too",
        replaced("register-busy", "busy", "false"),
        f"{B}::test_b7_a_trigger_changed_during_a_run_decides_the_next_turn",
    ),
    Mistake(
        "a fence begins again with a new record",
        replaced(
            "schedule-fence-rises",
            "math.max((tonumber(stored) or 0) + 1, clock_us)",
            "(tonumber(stored) or 0) + 1",
        ),
        f"{B}::test_b12_a_removed_schedules_fence_is_never_used_again",
    ),
    Mistake(
        "a manual run moves the turns",
        replaced("manual-run-keeps-turn", "cadence or ", ""),
        f"{B}::test_b17_a_trigger_runs_it_now_and_does_not_move_its_turns",
    ),
    Mistake(
        "a manual run asked for during a run is forgotten",
        replaced("buffered-manual-run", "not buffered", "true"),
        f"{B}::test_b20_triggering_what_runs_runs_it_once_more",
    ),
    Mistake(
        "one paused during its run goes on",
        replaced("paused-stays-out", "paused", "false"),
        f"{B}::test_b14_one_paused_while_it_runs_ends_and_stays_out",
    ),
    Mistake(
        "one that is removed and whose holder died comes back",
        replaced("schedule-reclaim-defined", "redis.call('HEXISTS', definitions, name) == 0", "false"),
        f"{L}::test_l5_one_removed_during_its_run_is_not_brought_back",
    ),
    Mistake(
        "a reclaim leaves the fence",
        replaced("schedule-reclaim-raises-fence", "'fence', raise_fence(have[2], clock), ", ""),
        f"{L}::test_l4_a_holder_that_wakes_up_late_is_told_and_refused",
    ),
    Mistake(
        "a sweep goes past as many as it has removed",
        replaced("sweep-page-position", " - gone", ""),
        f"{L}::test_l19_a_sweep_reaches_the_last_page_past_foreign_ones",
    ),
    Mistake(
        "a sweep with a budget begins at the head every time",
        removed("sweep-goes-on"),
        f"{L}::test_l22_the_next_sweep_goes_on_where_the_budget_ended_the_last[2]",
    ),
    Mistake(
        "a zombie gives back what another runs",
        removed("give-back-fence"),
        f"{N}::test_n5_a_stale_giving_back_changes_nothing",
    ),
    Mistake(
        "lazy ones starve",
        replaced(
            "priority-ages",
            "at + (class - NORMAL) * worth",
            "class",
        ),
        f"{C}::test_c20_nothing_starves_behind_urgent_ones",
    ),
    Mistake(
        "what is brought back from nowhere still has its last holder",
        removed("restored-has-no-owner"),
        f"{P}::test_p2_after_a_repair_each_schedule_is_in_its_place_again_whatever_was_done_to_it",
    ),
    Mistake(
        "an acquired schedule stays in waiting",
        removed("acquired-leaves-waiting"),
        f"{P}::test_p1_after_every_step_each_schedule_is_in_exactly_one_place",
    ),
    Mistake(
        "a trigger changed during a manual run loses the new turn",
        instead("register-busy-new-turn", "land(waiting, record, name, first, have[2])"),
        f"{P}::test_p1_after_every_step_each_schedule_is_in_exactly_one_place",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
