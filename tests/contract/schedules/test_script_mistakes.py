"""The known mistakes that scripts can make, each put back: the test named after it fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake

HERE = "tests/contract/schedules"
B, C, L = (f"{HERE}/test_{name}.py" for name in ("b_registration", "c_acquisition", "l_orphans"))
A, N, P = (f"{HERE}/test_{name}.py" for name in ("a_scripts", "n_shutdown", "p_invariants"))
LUA = "schedules/lua"

MISTAKES = [
    Mistake(
        "a name that is no text is acquired, again and again",
        "schedules/lua/acquire.lua",
        "if is_unreadable(names[i]) then",
        "if false then",
        "tests/contract/schedules/test_l_orphans.py::test_l19_a_name_that_is_no_text_is_discarded_once_and_told",
    ),
    Mistake(
        "a sweep leaves a name that is no text",
        "schedules/lua/sweep.lua",
        "is_unreadable(name) and discard or ",
        "",
        "tests/contract/schedules/test_l_orphans.py::test_l20_a_sweep_discards_it_too",
    ),
    Mistake(
        "what is no name is registered again as another",
        "schedules/lua/missing.lua",
        "not is_unreadable(page[2][i]) and ",
        "",
        "tests/contract/schedules/test_l_orphans.py::test_l21_what_is_no_name_is_not_registered_again_as_another",
    ),
    Mistake(
        "an overwritten key of a backfill fails whoever meets it",
        "schedules/lua/turns.lua",
        "redis.pcall(command, key, ...)",
        "redis.call(command, key, ...)",
        "tests/contract/schedules/test_q_backfill.py::"
        "test_q51_a_key_of_a_backfill_that_was_overwritten_is_thrown_away_and_fails_nobody[#turns]",
    ),
    Mistake(
        "an overwritten key of a backfill is thrown away without a word",
        "schedules/lua/turns.lua",
        "discarded[#discarded + 1] = key",
        "",
        "tests/contract/schedules/test_q_backfill.py::test_q52_what_was_thrown_away_is_told_and_counted[#turns]",
    ),
    Mistake(
        "one more failure pauses at once what was resumed",
        f"{LUA}/resume.lua",
        "redis.call('HSET', record, 'streak', '0')",
        "",
        f"{B}::test_b16_a_resume_counts_the_failures_anew",
    ),
    Mistake(
        "a run from before a resume brings the failures back",
        f"{LUA}/complete.lua",
        "known and known + 1 or told",
        "math.max((known or 0) + 1, told)",
        f"{HERE}/test_q_beside.py::test_q49_a_run_from_before_a_resume_does_not_bring_its_failures_back",
    ),
    Mistake(
        "R2 what was seen due is taken without asking again whether it is",
        f"{LUA}/acquire.lua",
        "if at and at <= now then candidates[#candidates + 1] = { name = names[i], score = score, at = at } end",
        "candidates[#candidates + 1] = { name = names[i], score = score or '0', at = at or 0 }",
        f"{C}::test_r2_what_was_seen_due_is_asked_again_when_it_is_taken",
    ),
    Mistake(
        "R2 what is not due yet is acquired early",
        f"{LUA}/acquire.lua",
        "'-inf', now_score, 'WITHSCORES'",
        "'-inf', '+inf', 'WITHSCORES'",
        f"{C}::test_c1_only_what_is_due_is_acquired",
    ),
    Mistake(
        "R3 the owner alone is the token of ownership",
        f"{LUA}/state.lua",
        "if have_fence == fence then",
        "if have_fence then",
        f"{C}::test_r3_a_second_holder_in_the_same_second_is_another_holder",
    ),
    Mistake(
        "R3 the fence is a whole second",
        f"{LUA}/state.lua",
        "math.max((tonumber(stored) or 0) + 1, clock_us)",
        "math.floor(clock_us / 1000000)",
        f"{C}::test_r3_a_second_holder_in_the_same_second_is_another_holder",
    ),
    Mistake(
        "R4 a late completion plans what was removed",
        f"{LUA}/complete.lua",
        "if redis.call('HEXISTS', definitions, name) == 0 then",
        "if false then",
        f"{C}::test_r4_a_late_completion_does_not_bring_back_what_was_removed",
    ),
    Mistake(
        "R5 only the head is looked at",
        "schedules/acquisition.py",
        "for _ in range(min(self._scan_pages, math.ceil((due - len(head)) / BATCH))):",
        "for _ in ():",
        f"{C}::test_r5_foreign_entries_at_the_head_do_not_starve_a_pod",
    ),
    Mistake(
        "R5 every look begins where the last one began",
        "schedules/acquisition.py",
        "self._rank = rank\n",
        "pass\n",
        f"{C}::test_r5b_more_foreign_entries_than_one_look_may_scan_only_take_another_look",
    ),
    Mistake(
        "R5 what can't run blocks the head",
        f"{LUA}/acquire.lua",
        "if dropped == before or room <= 0 then break end",
        "break",
        f"{C}::test_c15_entries_without_a_definition_never_run_and_never_block",
    ),
    Mistake(
        "R6 a pod wants exactly what every other pod has seen",
        "schedules/acquisition.py",
        "_SPARE = 4",
        "_SPARE = 1",
        f"{C}::test_r6_a_pod_that_was_slower_gets_the_next_ones_instead_of_none",
    ),
    Mistake(
        "R11 what was not completed waits for its deadline",
        f"{LUA}/reclaim.lua",
        "redis.call('ZRANGEBYSCORE', leases, '-inf', math.floor(clock / 1000), 'LIMIT', 0, limit)",
        "redis.call('ZRANGEBYSCORE', working, '-inf', clock / 1000000 - 600, 'LIMIT', 0, limit)",
        f"{L}::test_r11_a_completion_that_failed_does_not_wait_for_the_orphan_threshold",
    ),
    Mistake(
        "R12 a leader takes what it does not know for invalid",
        f"{LUA}/sweep.lua",
        "local defined = redis.call('HEXISTS', definitions, name) == 1",
        "local defined = false",
        f"{L}::test_r12_a_leader_does_not_delete_schedules_that_it_does_not_know",
    ),
    Mistake(
        "R16 only a completion plans the next turn",
        f"{LUA}/state.lua",
        "land(waiting, record, name, replan or at, paused and not cadence)",
        "",
        f"{L}::test_r16_a_crash_in_the_middle_of_a_run_does_not_end_the_schedule",
    ),
    Mistake(
        "a stale completion is accepted",
        f"{LUA}/state.lua",
        "  return 'stale'\nend",
        "  return nil\nend",
        f"{C}::test_c13_a_stale_completion_changes_nothing",
    ),
    Mistake(
        "a completion sent again moves the turn",
        f"{LUA}/state.lua",
        "if have_owner == owner then return nil end",
        "if have_owner == owner or have_owner == '' then return nil end",
        f"{C}::test_c12_a_completion_sent_again_says_already",
    ),
    Mistake(
        "what another holds is acquired because it stands in both sets",
        f"{LUA}/acquire.lua",
        "if specs[i] and not held[i] then",
        "if specs[i] then",
        f"{C}::test_c16_what_is_held_is_not_acquired_though_it_stands_in_both_sets",
    ),
    Mistake(
        "a damaged record fails the batch",
        f"{LUA}/state.lua",
        "redis.pcall('HMGET', record, ...)",
        "redis.call('HMGET', record, ...)",
        f"{A}::test_a9_a_damaged_record_costs_nobody_else_anything",
    ),
    Mistake(
        "registering again moves the turn",
        f"{LUA}/register.lua",
        "if not old or (have[1] and have[1] ~= trigger) then",
        "if true then",
        f"{B}::test_b3_another_input_is_an_update_that_keeps_the_turn",
    ),
    Mistake(
        "registering what runs puts it into waiting too",
        f"{LUA}/register.lua",
        "  if busy then\n",
        "  if false then\n",
        f"{B}::test_b7_a_trigger_changed_during_a_run_decides_the_next_turn",
    ),
    Mistake(
        "a fence begins again with a new record",
        f"{LUA}/state.lua",
        "math.max((tonumber(stored) or 0) + 1, clock_us)",
        "(tonumber(stored) or 0) + 1",
        f"{B}::test_b12_a_removed_schedules_fence_is_never_used_again",
    ),
    Mistake(
        "a manual run moves the turns",
        f"{LUA}/complete.lua",
        "turn = replan or cadence or turn",
        "turn = replan or turn",
        f"{B}::test_b17_a_trigger_runs_it_now_and_does_not_move_its_turns",
    ),
    Mistake(
        "a manual run asked for during a run is forgotten",
        f"{LUA}/complete.lua",
        "if not buffered then return",
        "if true then return",
        f"{B}::test_b20_triggering_what_runs_runs_it_once_more",
    ),
    Mistake(
        "one paused during its run goes on",
        f"{LUA}/state.lua",
        "  elseif paused then\n",
        "  elseif false then\n",
        f"{B}::test_b14_one_paused_while_it_runs_ends_and_stays_out",
    ),
    Mistake(
        "one that is removed and whose holder died comes back",
        f"{LUA}/reclaim.lua",
        "if redis.call('HEXISTS', definitions, name) == 0 then",
        "if false then",
        f"{L}::test_l5_one_removed_during_its_run_is_not_brought_back",
    ),
    Mistake(
        "a reclaim leaves the fence",
        f"{LUA}/reclaim.lua",
        "'fence', raise_fence(have[2], clock), ",
        "",
        f"{L}::test_l4_a_holder_that_wakes_up_late_is_told_and_refused",
    ),
    Mistake(
        "a former leader prolongs another's term",
        f"{LUA}/lead_renew.lua",
        "if redis.call('GET', leader) ~= term then return 'lost' end",
        "",
        f"{L}::test_l9_a_former_leader_can_neither_renew_nor_resign",
    ),
    Mistake(
        "a former leader ends another's term",
        f"{LUA}/resign.lua",
        "if redis.call('GET', leader) ~= term then return 'stale' end",
        "",
        f"{L}::test_l9_a_former_leader_can_neither_renew_nor_resign",
    ),
    Mistake(
        "a sweep begins every page at the head",
        "schedules/orphans.py",
        "rank += kept\n",
        "rank += 0 * kept\n                seen = 0 if not rest else seen\n",
        f"{L}::test_l19_a_sweep_reaches_the_last_page_past_foreign_ones",
    ),
    Mistake(
        "a zombie gives back what another runs",
        f"{LUA}/give_back.lua",
        "if word then return word end",
        "",
        f"{N}::test_n5_a_stale_giving_back_changes_nothing",
    ),
    Mistake(
        "lazy ones starve",
        f"{LUA}/order.lua",
        "candidate.rank = candidate.at + ((tonumber(class or NORMAL)) - NORMAL) * worth",
        "candidate.rank = tonumber(class or NORMAL)",
        f"{C}::test_c20_nothing_starves_behind_urgent_ones",
    ),
    Mistake(
        "an acquired schedule stays in waiting",
        f"{LUA}/acquire.lua",
        "  redis.call('ZREM', waiting, unpack(leaving))\n",
        "",
        f"{P}::test_p1_after_every_step_each_schedule_is_in_exactly_one_place",
    ),
    Mistake(
        "a trigger changed during a manual run loses the new turn",
        f"{LUA}/register.lua",
        "redis.call('HSET', record, have[3] and 'cadence' or 'replan', first)",
        "land(waiting, record, name, first, have[2])",
        f"{P}::test_p1_after_every_step_each_schedule_is_in_exactly_one_place",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
