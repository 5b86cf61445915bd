"""Every guard against a race is shown to be needed: with the mistake put back, its test fails.

Each row edits a copy of the source and runs one test against it. Slow, so ``make chaos`` runs it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Guard:
    """A mistake (``old`` becomes ``new`` in ``file``) and the test that must notice it."""

    name: str
    file: str
    old: str
    new: str
    test: str


DAMAGED = "tests/integration/runs/test_damaged.py"
SIDECAR = "tests/integration/services/test_sidecar.py"
FIELDS = "tests/integration/runs/test_damaged_fields.py"
RIGHTS = "tests/integration/runs/test_rights.py"
CONTRACT = "tests/contract/leases/test_lease_contract.py"
ARCHIVE = "tests/integration/runs/test_archive.py"
KEEPER = "tests/integration/leases/test_keeper.py"
FENCES = "tests/integration/runs/test_fences.py"
ATTEMPTS = "tests/integration/runs/test_attempts.py"
HEARD = "tests/integration/runs/test_listeners.py"
REDIS = "tests/chaos/test_redis_fails.py"
AWAY = "tests/chaos/test_redis_away.py"
FOREIGN = "tests/integration/runs/test_foreign.py"
WORKER = "tests/integration/runs/test_worker.py"
DIE = "tests/chaos/test_workers_die.py"
LIMITS = "tests/integration/runs/test_limits.py"
THREADS = "tests/integration/runs/test_threads.py"
ASKS = "tests/integration/runs/test_interrupts.py"
STEPS = "tests/integration/runs/test_steps.py"
EXPIRY = "tests/integration/runs/test_expiry.py"
DEAD = "tests/integration/runs/test_deadletter.py"
RELAYED = "tests/integration/events/test_relay_of_runs.py"
INVOKE = "tests/unit/agents/test_invoke.py"
SENDER = "tests/integration/runs/test_sender.py"
DEADLINE = f"{WORKER}::test_the_deadline_is_the_runs_own_or_its_agents_or_the_queues"

GUARDS = [
    Guard(
        "a stream lease is renewed without looking at its fence",
        "leases/lua/stream_renew.lua",
        "if have[1] ~= owner or have[2] ~= fence then return 'lost' end",
        "if have[1] ~= owner then return 'lost' end",
        f"{CONTRACT}::test_the_same_owner_under_an_old_fence_is_stale_too[streams]",
    ),
    Guard(
        "a lease is renewed without looking at its owner",
        "redis/lua/held.lua",
        "have[1] == owner and have[2] == fence",
        "true",
        f"{CONTRACT}::test_a_stale_holders_renewal_is_refused_and_changes_nothing[sorted sets]",
    ),
    Guard(
        "a lease is released by whoever asks",
        "leases/lua/zset_release.lua",
        "if held(prefix .. key, owner, ARGV[i + 1]) and",
        "if",
        f"{CONTRACT}::test_a_stale_holders_release_is_refused[sorted sets]",
    ),
    Guard(
        "a leader's term is prolonged by its predecessor",
        "leases/lua/lead_renew.lua",
        "if not held(leader, owner, fence) then return 'lost' end",
        "",
        f"{CONTRACT}::test_a_stale_holders_renewal_is_refused_and_changes_nothing[leader]",
    ),
    Guard(
        "a leader's term is ended by its predecessor",
        "leases/lua/resign.lua",
        "if not held(leader, owner, fence) then return 'stale' end",
        "",
        f"{CONTRACT}::test_a_stale_holders_release_is_refused[leader]",
    ),
    Guard(
        "XCLAIM steals the entry back",
        "leases/lua/stream_renew.lua",
        "if #redis.pcall('XPENDING', lane, group, entry, entry, 1, owner) ~= 1 then return 'lost' end",
        "",
        f"{FENCES}::test_a_renewal_after_an_operators_xclaim_is_lost",
    ),
    Guard(
        "what woke a worker is trusted longer than its lease",
        "runs/lua/claim.lua",
        "redis.call('XCLAIM', lane, group, owner, 0, entry, 'IDLE', 0, 'JUSTID')",
        "",
        f"{FENCES}::test_an_entry_that_woke_us_is_fresh_from_its_claim_on",
    ),
    Guard(
        "what woke a worker is claimed though another has it",
        "runs/lua/claim.lua",
        "if found[1] and #redis.pcall('XPENDING', lane, group, entry, entry, 1, owner) == 1 then",
        "if found[1] then",
        f"{FENCES}::test_an_entry_that_woke_us_and_was_taken_away_is_not_claimed",
    ),
    Guard(
        "a body learns a turn of the loop later that its lease is gone",
        "agents/invoke.py",
        "self._body.cancel()\n        return super()",
        "return super()",
        "tests/unit/agents/test_invoke.py::test_a_body_that_was_due_while_all_stood_still_does_not_go_on",
    ),
    Guard(
        "what Redis has lost and gives again begins beside the body that goes on",
        "runs/worker.py",
        "self._claimed_again(run, known)\n            return",
        "pass",
        f"{WORKER}::test_a_claim_that_redis_has_lost_gives_no_fence_to_two_bodies",
    ),
    Guard(
        "a run that ended twice is dated by its last end",
        "runs/lua/expire.lua",
        "first and (tonumber(first:match('^%d+') or nil) or 0)",
        "first and now",
        f"{ARCHIVE}::test_a_run_that_ended_twice_does_not_let_the_others_leave",
    ),
    Guard(
        "the list of what is not archived names only the run",
        "runs/lua/settle.lua",
        "'RPUSH', unarchived, finished_at",
        "'RPUSH', unarchived, '1'",
        f"{ARCHIVE}::test_a_janitor_that_was_frozen_does_not_take_off_what_ended_again",
    ),
    Guard(
        "a message that only mentions RESUME answers a question",
        "runs/lua/claim.lua",
        "and envelope['action'] == 'RESUME'",
        "",
        "tests/integration/runs/test_interrupts.py::test_the_same_message_once_more_is_no_answer",
    ),
    Guard(
        "a damaged run takes the rest of its batch along",
        "runs/lua/settle.lua",
        "local fine, word = pcall(settle, run,",
        "local fine, word = true, settle(run,",
        f"{DAMAGED}::test_the_others_of_a_batch_are_settled_whole[feed]",
    ),
    Guard(
        "nobody looks when a lease's time is over",
        "leases/keeper.py",
        "self.keeper.lookout.at(self.until)",
        "pass",
        f"{KEEPER}::test_a_hung_redis_stops_the_body_before_the_lease_can_move",
    ),
    Guard(
        "a run leaves before it is archived",
        "runs/lua/expire.lua",
        "finished >= all_before and",
        "false and",
        f"{ARCHIVE}::test_a_store_that_is_away_costs_no_run",
    ),
    Guard(
        "an archived run waits for those that are not",
        "runs/lua/expire.lua",
        "finished >= all_before and",
        "",
        f"{ARCHIVE}::test_what_is_archived_leaves_while_later_ones_wait_for_the_store",
    ),
    Guard(
        "two that archive take each other's runs off the list",
        "runs/lua/filed.lua",
        "if not same then return 0 end",
        "",
        f"{ARCHIVE}::test_two_that_archive_at_once_lose_no_run",
    ),
    Guard(
        "a body has no trust window",
        "leases/keeper.py",
        "hold.until = asked + self.trust_seconds",
        "hold.until = asked + 3600",
        f"{KEEPER}::test_a_hung_redis_stops_the_body_before_the_lease_can_move",
    ),
    Guard(
        "a renewal is trusted from its answer",
        "leases/keeper.py",
        "hold.until = asked + self.trust_seconds",
        "hold.until = time.monotonic() + self.trust_seconds",
        f"{KEEPER}::test_a_renewal_is_trusted_from_when_it_was_asked",
    ),
    Guard(
        "leases are renewed on the worker's own loop",
        "leases/keeper.py",
        "whole = await self._beat(redis)",
        "asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop).result(); whole = await self._beat(redis)",
        f"{KEEPER}::test_a_blocked_event_loop_does_not_lose_its_lease",
    ),
    Guard(
        "one lease is renewed per call",
        "leases/keeper.py",
        "_BATCH = 2000",
        "_BATCH = 1",
        f"{KEEPER}::test_a_thousand_leases_are_kept_by_one_call_per_beat",
    ),
    Guard(
        "a zombie settles",
        "runs/lua/settle.lua",
        "if have[2] ~= fence then return 'stale' end",
        "",
        f"{FENCES}::test_a_stale_settlement_is_refused_and_changes_nothing",
    ),
    Guard(
        "a zombie emits",
        "runs/lua/emit.lua",
        "if have[1] == owner and have[2] == ARGV[at + 1] then",
        "if true then",
        f"{FENCES}::test_a_stale_event_is_refused",
    ),
    Guard(
        "a zombie hands back",
        "leases/lua/stream_release.lua",
        "if have[1] ~= owner or have[2] ~= fence or not",
        "if not",
        f"{FENCES}::test_a_stale_hand_back_is_refused",
    ),
    Guard(
        "a settlement sent again is called stale",
        "runs/lua/settle.lua",
        "have[1] == '' and 'already' or 'stale'",
        "'stale'",
        f"{FENCES}::test_a_settlement_sent_twice_says_already",
    ),
    Guard(
        "a submission sent again is a second run",
        "runs/lua/submit.lua",
        "if redis.call('EXISTS', run_prefix .. id) == 1 then return id end",
        "",
        f"{REDIS}::test_a_submission_whose_reply_is_lost_is_one_run",
    ),
    Guard(
        "an event sent again is in the feed twice",
        "runs/lua/emit.lua",
        "if number > counted(have[3]) then",
        "if true then",
        f"{REDIS}::test_an_event_whose_reply_is_lost_is_in_the_feed_once",
    ),
    Guard(
        "the second entry of a run is a second execution",
        "runs/lua/claim.lua",
        "if not same or (status",
        "if (status",
        f"{FOREIGN}::test_two_entries_with_one_correlation_id_are_one_execution",
    ),
    Guard(
        "a run that has not begun is claimed by any entry that names it",
        "runs/lua/claim.lua",
        "return have[3] == entry and have[2] == lane and have[1]",
        "return have[2] == lane and have[1]",
        f"{FENCES}::test_another_entry_of_a_run_that_has_not_begun_is_not_the_run[its own]",
    ),
    Guard(
        "a run that has not begun is claimed by an entry of another lane",
        "runs/lua/claim.lua",
        "return have[3] == entry and have[2] == lane and have[1]",
        "return have[3] == entry and have[1]",
        f"{FENCES}::test_another_entry_of_a_run_that_has_not_begun_is_not_the_run[another]",
    ),
    Guard(
        "a cancelled run begins for the first time",
        "runs/lua/claim.lua",
        "have[1] == 'queued' and not have[4]",
        "have[1] and not have[4]",
        f"{WORKER}::test_a_queued_run_is_cancelled_and_never_started",
    ),
    Guard(
        "every start of a run is its first",
        "runs/lua/claim.lua",
        "not have[4] and not have[6] and",
        "not have[6] and",
        f"{ATTEMPTS}::test_an_attempt_that_died_counts",
    ),
    Guard(
        "a run that begins for the first time does not wait for its key",
        "runs/lua/claim.lua",
        "not have[4] and not have[6] and",
        "not have[4] and",
        f"{LIMITS}::test_a_concurrency_key_is_held_by_one_run",
    ),
    Guard(
        "a run that begins for the first time does not wait for its agent's limit",
        "runs/lua/claim.lua",
        " and not limited[agent]\n",
        "\n",
        f"{LIMITS}::test_an_agents_limit_holds_over_all_workers_and_is_first_come_first_served",
    ),
    Guard(
        "a run that begins for the first time is read by the place of its fields, whoever wrote them",
        "runs/lua/claim.lua",
        "local record = is_ours(fields) and run_prefix .. fields[10]",
        "local record = run_prefix .. (fields[10] or '')",
        f"{DAMAGED}::test_a_foreign_entry_whose_adoption_was_cut_short_is_read_by_its_names",
    ),
    Guard(
        "a run whose feed is damaged begins without an event",
        "runs/lua/claim.lua",
        "if event.err then append_event(records[i], 'started', data, false) end",
        "",
        f"{DAMAGED}::test_a_feed_that_is_none_any_more_stops_nobody[queued-overwritten]",
    ),
    Guard(
        "of a run that is named twice in a batch the second one counts",
        "runs/lua/settle.lua",
        "  table.sort(others)",
        "  --",
        f"{DAMAGED}::test_of_a_run_that_is_named_twice_the_first_one_counts",
    ),
    Guard(
        "a zombie's run succeeds with those of others",
        "runs/lua/settle.lua",
        "if have[1] == owner and have[2] == fence and not",
        "if have[1] == owner and not",
        f"{FENCES}::test_each_of_a_mixed_batch_gets_its_own_verdict",
    ),
    Guard(
        "whoever knows the fence lets a run succeed",
        "runs/lua/settle.lua",
        "if have[1] == owner and have[2] == fence and not",
        "if have[2] == fence and not",
        f"{FENCES}::test_a_settlement_sent_twice_says_already",
    ),
    Guard(
        "a run that is named twice in a batch ends twice",
        "runs/lua/settle.lua",
        " and not place_of[record] then",
        " then",
        f"{FENCES}::test_each_of_a_mixed_batch_gets_its_own_verdict",
    ),
    Guard(
        "a run whose feed is damaged ends without its last event",
        "runs/lua/settle.lua",
        "if event.err then",
        "if false then",
        f"{DAMAGED}::test_a_feed_that_is_none_any_more_stops_nobody[running-overwritten]",
    ),
    Guard(
        "a cancelled run is started",
        "runs/lua/claim.lua",
        "(status ~= 'queued' and status ~= 'running')",
        "false",
        f"{WORKER}::test_a_queued_run_is_cancelled_and_never_started",
    ),
    Guard(
        "a paused queue loses what woke its reader",
        "runs/lua/claim.lua",
        "if paused then return { 'paused', dropped, adopted, undo } end",
        "",
        f"{WORKER}::test_pausing_a_queue_whose_worker_is_blocked_in_a_read_loses_nothing",
    ),
    Guard(
        "a full queue takes more",
        "runs/lua/submit.lua",
        "if depth >= max_depth then return { 'full', id, '' } end",
        "",
        f"{WORKER}::test_a_full_queue_refuses_instead_of_trimming",
    ),
    Guard(
        "attempts are counted only when they end",
        "runs/lua/claim.lua",
        "'attempt')) + 1",
        "'attempt'))",
        f"{DIE}::test_a_run_that_kills_its_workers_is_given_up_as_poison",
    ),
    Guard(
        "a hand-back is a failed attempt",
        "leases/lua/stream_release.lua",
        "'handed_back', owner, 1) and",
        "'handed_back', owner, 0) and",
        f"{FENCES}::test_a_run_handed_back_keeps_its_attempt_and_gets_a_higher_fence",
    ),
    Guard(
        "DELCONSUMER destroys what was delivered",
        "leases/lua/stream_evict.lua",
        "  local lane = KEYS[i]\n  local page\n",
        "  local lane = KEYS[i]\n  local page\n  redis.call('XGROUP', 'DELCONSUMER', lane, group, consumer)\n",
        f"{FENCES}::test_leaving_returns_what_was_delivered_but_never_started",
    ),
    Guard(
        "a body that lost its lease is waited for before the next renewal",
        "leases/keeper.py",
        "self._call_loop(self._apply, holds, standings)\n        return True",
        "self._call_loop(self._apply, holds, standings)\n"
        "        losers = {hold for hold, found in zip(holds, standings) if found is Standing.LOST}\n"
        "        while losers & self.guarded:\n"
        "            await asyncio.sleep(0.01)\n"
        "        return True",
        f"{KEEPER}::test_a_slow_loser_does_not_hurt_the_other_leases",
    ),
    Guard(
        "stores are renewed one after the other",
        "leases/keeper.py",
        "return all(await asyncio.gather(*calls))",
        "return all([await call for call in calls])",
        f"{KEEPER}::test_a_store_that_hangs_costs_only_its_own_leases",
    ),
    Guard(
        "attempts are known by their run alone",
        "runs/worker.py",
        "key = (run.run_id, run.fence)",
        "key = (run.run_id, 0)",
        f"{REDIS}::test_a_run_that_comes_back_to_a_worker_still_unwinding_it_does_no_harm",
    ),
    Guard(
        "a claim without an answer is forgotten",
        "runs/worker.py",
        "if self._unsure:",
        "if False:",
        f"{REDIS}::test_a_claim_whose_reply_is_lost_comes_back_at_once",
    ),
    Guard(
        "a cancelled run is tried again",
        "runs/lua/settle.lua",
        "if cancelled then\n",
        "if false then\n",
        f"{WORKER}::test_a_cancel_that_meets_a_failing_attempt_ends_the_run",
    ),
    Guard(
        "a trace is that of whoever came first",
        "runs/submit.py",
        "self._batches.add((submission, inject() or submission.trace))",
        "self._batches.add((submission, {}))",
        "tests/integration/runs/test_queues.py::test_each_of_many_submissions_carries_its_own_trace",
    ),
    Guard(
        "two workers share a name",
        "services/worker.py",
        "if not await self._name_is_taken(connections):",
        "if True:",
        f"{DIE}::test_a_second_worker_of_the_same_name_waits_until_the_first_is_gone",
    ),
    Guard(
        "the low lane starves",
        "runs/claim.py",
        "return _ORDERS[turn % len(_ORDERS)]",
        'return "1234"',
        f"{WORKER}::test_no_lane_starves_beside_the_others",
    ),
    Guard(
        "a newcomer overtakes those that wait for a limit",
        "runs/lua/limits.lua",
        "if first and not (place and place < tonumber(first)) then return false end",
        "",
        f"{LIMITS}::test_a_raised_limit_lets_the_parked_ones_go_on",
    ),
    Guard(
        "a run that waits again waits behind those that came later",
        "runs/lua/claim.lua",
        "local has, place = {}, bonds.place or place_of_entry(entry)",
        "local has, place = {}, place_of_entry(entry)",
        f"{LIMITS}::test_a_run_that_is_turned_away_goes_before_those_that_came_later",
    ),
    Guard(
        "a lowered limit is not for those that were let in before",
        "runs/lua/limits.lua",
        "if count <= most then return true end",
        "if true then return true end",
        f"{LIMITS}::test_a_lowered_limit_holds_for_those_that_wait_and_for_those_that_come_back",
    ),
    Guard(
        "whoever ends lets the next one go on, whatever the limit is",
        "runs/lua/limits.lua",
        "if redis.call('ZCARD', holding_of(limits, name)) >= n or not admit_next",
        "if not admit_next",
        f"{LIMITS}::test_an_agents_limit_holds_over_all_workers_and_is_first_come_first_served",
    ),
    Guard(
        "a raised limit is told only by one that is turned away",
        "runs/lua/claim.lua",
        "if bonds.place then apply_limit(name, n) end",
        "",
        f"{LIMITS}::test_a_raised_limit_is_told_by_the_first_that_goes_on",
    ),
    Guard(
        "those that wait stand in the order of parking",
        "runs/lua/limits.lua",
        "return tonumber(ms) * 1000 + math.min(tonumber(seq), 999)",
        "return now_ms() * 1000",
        f"{LIMITS}::test_those_that_wait_go_on_in_the_order_they_came_whoever_read_them_first",
    ),
    Guard(
        "a feed of another type stops the queue",
        "redis/lua/feed.lua",
        "if id.err:find('WRONGTYPE', 1, true) or",
        "if",
        f"{DAMAGED}::test_a_feed_that_is_none_any_more_stops_nobody[queued-overwritten]",
    ),
    Guard(
        "a feed without another id stops the queue",
        "redis/lua/feed.lua",
        " or id.err:find('exhausted', 1, true) then",
        " then",
        f"{DAMAGED}::test_a_feed_that_is_none_any_more_stops_nobody[queued-used up]",
    ),
    Guard(
        "a run whose end may not be told never ends",
        "redis/lua/feed.lua",
        "redis.pcall('PUBLISH'",
        "redis.call('PUBLISH'",
        f"{RIGHTS}::test_a_user_that_may_use_no_channels_ends_its_runs_once",
    ),
    Guard(
        "a queue can't be paused by who may not tell it",
        "runs/lua/gate.lua",
        "redis.pcall('PUBLISH'",
        "redis.call('PUBLISH'",
        f"{RIGHTS}::test_a_user_that_may_use_no_channels_ends_its_runs_once",
    ),
    Guard(
        "one overwritten record costs a worker all its leases",
        "leases/lua/stream_renew.lua",
        "redis.pcall('HMGET'",
        "redis.call('HMGET'",
        f"{DAMAGED}::test_the_others_keep_their_leases",
    ),
    Guard(
        "one overwritten record keeps the others from going back",
        "leases/lua/stream_release.lua",
        "redis.pcall('HMGET'",
        "redis.call('HMGET'",
        f"{DAMAGED}::test_the_others_are_handed_back",
    ),
    Guard(
        "events stop at a record that is none",
        "runs/lua/emit.lua",
        "read_fields(record, ",
        "redis.call('HMGET', record, ",
        f"{DAMAGED}::test_the_others_tell_what_happens",
    ),
    Guard(
        "a line stops at a record that is none",
        "runs/lua/limits.lua",
        "redis.pcall('HMGET'",
        "redis.call('HMGET'",
        f"{DAMAGED}::test_the_line_behind_it_goes_on",
    ),
    Guard(
        "an entry is acked wherever a record says that it lies",
        "runs/lua/settle.lua",
        "if not is_place(lane, entry) then return 'damaged' end",
        "",
        f"{DAMAGED}::test_the_others_of_a_batch_are_settled_whole[entry]",
    ),
    Guard(
        "runs are not noted for the archive if they can't be noted to leave",
        "runs/lua/settle.lua",
        "write('ZADD'",
        "call('ZADD'",
        f"{DAMAGED}::test_what_ended_is_noted_in_the_list_that_is_left[ended]",
    ),
    Guard(
        "a list of runs stops at a record that is none",
        "runs/lua/rows.lua",
        "read_fields(run_prefix .. ARGV[i], ",
        "redis.call('HMGET', run_prefix .. ARGV[i], ",
        f"{DAMAGED}::test_whoever_lists_runs_sees_the_others",
    ),
    Guard(
        "a submission stops at a record that it pushes away",
        "runs/lua/stopping.lua",
        "read_fields(record, ",
        "redis.call('HMGET', record, ",
        f"{DAMAGED}::test_who_pushes_it_off_its_thread_is_accepted",
    ),
    Guard(
        "a fence that is no number is counted on from",
        "redis/lua/attempt.lua",
        "return is_count(text) and tonumber(text) or 0",
        "return tonumber(text or nil) or 0",
        f"{FIELDS}::test_the_others_are_begun_kept_and_ended_whatever_it_is[queued-fence]",
    ),
    Guard(
        "permits that are none stop a queue",
        "runs/lua/limits.lua",
        "pcall(cjson.decode, text or '')",
        "true, text and text ~= '' and cjson.decode(text) or {}",
        f"{FIELDS}::test_the_others_are_begun_kept_and_ended_whatever_it_is[queued-permits]",
    ),
    Guard(
        "a worker ends at a time that is none",
        "runs/record.py",
        "return int(digits) if is_count(digits) else 0",
        "return int(digits or 0)",
        f"{FIELDS}::test_the_others_are_begun_kept_and_ended_whatever_it_is[queued-submitted_at]",
    ),
    Guard(
        "an entry is acked in a lane that is none",
        "redis/lua/place.lua",
        "if not is_lane[lane] then return false end",
        "if not lane then return false end",
        f"{DAMAGED}::test_the_others_of_a_batch_are_settled_whole[lane]",
    ),
    Guard(
        "a server that takes no writes is taken for a damaged run",
        "runs/lua/settle.lua",
        "if refusal then return refusal end",
        "",
        f"{REDIS}::test_a_result_outlives_a_redis_that_takes_no_writes[full]",
    ),
    Guard(
        "a run never keeps one limit for another",
        "runs/lua/claim.lua",
        "clock, true, bonds.place and has)",
        "clock, true)",
        f"{LIMITS}::test_nobody_waits_for_ever_for_two_limits_that_are_never_free_together[tenant]",
    ),
    Guard(
        "runs that wait for each other's limits keep what they have",
        "runs/lua/claim.lua",
        "clock, true, bonds.place and has)",
        "clock, true, setmetatable({}, { __index = function() return true end }))",
        f"{LIMITS}::test_no_two_runs_wait_for_what_the_other_has",
    ),
    Guard(
        "a retried run lets its thread go",
        "runs/lua/limits.lua",
        "if pauses and is_thread(name) or keeps",
        "if keeps",
        f"{THREADS}::test_a_retried_run_keeps_its_thread",
    ),
    Guard(
        "a cancelled run keeps its permits",
        "runs/lua/stopping.lua",
        "release_permits(at.limits, record, id, have[4], at.returned, at.run_prefix, now)",
        "",
        f"{THREADS}::test_a_cancelled_run_lets_the_next_one_go_on[queued]",
    ),
    Guard(
        "a parked run is taken for a lost one",
        "runs/lua/restore.lua",
        "if have[8] and have[8] ~= '' and redis.call('ZSCORE', parked_of(limits, have[8]), id) then return 'fine' end",
        "",
        f"{THREADS}::test_a_parked_run_is_not_taken_for_a_lost_one",
    ),
    Guard(
        "asking uses up attempts",
        "runs/lua/resuming.lua",
        ", 'attempt', 0)",
        ")",
        f"{ASKS}::test_asking_does_not_use_up_attempts",
    ),
    Guard(
        "a zombie writes a step",
        "store/fences.py",
        "WHERE run = :run AND fence = :fence AND owner = :owner {share}",
        "WHERE run = :run {share}",
        f"{STEPS}::test_what_a_paused_worker_writes_after_its_run_moved_on_is_refused",
    ),
    Guard(
        "a run expires before its events have left",
        "runs/lua/expire.lua",
        "if goes_outside(id, have[3]) or waits_for_archive(have[4]) then",
        "if waits_for_archive(have[4]) then",
        f"{EXPIRY}::test_an_ended_run_stays_until_its_events_have_reached_the_outside[outbox]",
    ),
    Guard(
        "a note of an end removes a live run",
        "runs/lua/expire.lua",
        "if LIVE[have[1]] then return end",
        "",
        f"{EXPIRY}::test_a_live_run_under_the_id_of_an_ended_one_does_not_leave",
    ),
    Guard(
        "a delayed run forgets that it was to interrupt",
        "runs/lua/promote.lua",
        "if not PUSHY[multitask] then return false end",
        "if true then return false end",
        f"{THREADS}::test_a_delayed_run_that_interrupts_stops_the_running_one_when_it_is_due",
    ),
    Guard(
        "a first attempt that died is not counted",
        "redis/lua/entry.lua",
        "attempt_of(have[4], have[5])",
        "(tonumber(have[5]) or 0)",
        f"{ATTEMPTS}::test_an_attempt_that_died_counts",
    ),
    Guard(
        "what comes back after its first attempt waits behind new runs",
        "runs/lua/promote.lua",
        "attempt_of(have[8], have[5])",
        "(tonumber(have[5]) or 0)",
        f"{ATTEMPTS}::test_what_comes_back_after_its_first_attempt_is_served_first",
    ),
    Guard(
        "a run that was lost before it began counts an attempt",
        "runs/lua/restore.lua",
        "if fence == 1 then",
        "if false then",
        f"{ATTEMPTS}::test_what_was_lost_before_it_began_has_had_none",
    ),
    Guard(
        "nobody at a replica hears how a run ends",
        "runs/lua/hearing.lua",
        "'repl_backlog_active:0\\r', ",
        "",
        f"{HEARD}::test_who_listens_at_a_replica_hears_it[there]",
    ),
    Guard(
        "nobody at a replica that was cut off hears how a run ended",
        "runs/lua/hearing.lua",
        "'repl_backlog_active:0\\r', ",
        "'connected_slaves:0\\r', ",
        f"{HEARD}::test_who_listens_at_a_replica_hears_it[cut off]",
    ),
    Guard(
        "nobody at another node of a cluster hears how a run ends",
        "runs/lua/hearing.lua",
        "'cluster_enabled:0\\r', ",
        "",
        f"{HEARD}::test_who_listens_at_another_node_of_a_cluster_hears_it",
    ),
    Guard(
        "nobody who listens by a pattern hears how a run ends",
        "runs/lua/hearing.lua",
        ", 'pubsub_patterns:0\\r'",
        "",
        f"{HEARD}::test_who_listens_by_a_pattern_hears_all",
    ),
    Guard(
        "a run that only its agent's limit binds ends with its permit",
        "runs/lua/claim.lua",
        "bound and 0 or number",
        "have[6] and 0 or number",
        f"{LIMITS}::test_an_agents_limit_holds_over_all_workers_and_is_first_come_first_served",
    ),
    Guard(
        "a run leaves by the note of an earlier one of its id",
        "runs/lua/expire.lua",
        "if finished_at and have[4] and have[4] ~= finished_at then return end",
        "",
        f"{EXPIRY}::test_of_those_that_succeeded_together_one_that_came_again_stays",
    ),
    Guard(
        "a run leaves by the note of an earlier end that names it alone",
        "runs/lua/expire.lua",
        "if not finished_at and leaves > now then",
        "if false then",
        f"{EXPIRY}::test_a_run_that_came_again_does_not_leave_by_the_note_of_its_first_end",
    ),
    Guard(
        "nothing is kept of a dead run that leaves",
        "runs/lua/expire.lua",
        "  keep_for_replay(record, have[2])\n",
        "",
        f"{DEAD}::test_a_run_revived_after_it_left_is_the_same_run",
    ),
    Guard(
        "the events of a revived run are numbered from the beginning",
        "events/lua/line.lua",
        "sequence = told, tries",
        "sequence = 0, tries",
        f"{RELAYED}::test_a_run_revived_after_it_left_goes_on_with_the_next_number",
    ),
    Guard(
        "a worker dies of a heartbeat that Redis does not take",
        "services/worker.py",
        "with contextlib.suppress(*TROUBLE):  # the next beat",
        "with contextlib.nullcontext():  # the next beat",
        f"{AWAY}::test_workers_outlive_a_redis_that_is_away[3.0]",
    ),
    Guard(
        "a worker dies of results that Redis does not take",
        "runs/settle.py",
        "except TROUBLE as exc:",
        "except ZeroDivisionError as exc:",
        f"{AWAY}::test_workers_outlive_a_redis_that_is_away[3.0]",
    ),
    Guard(
        "a connection that was reset is written to",
        "redis/connections.py",
        "writer.transport.is_closing():",
        "writer is False:",
        f"{AWAY}::test_workers_outlive_connections_that_are_reset_again_and_again",
    ),
    Guard(
        "an agent that ignores its deadline is waited for",
        "runs/perform.py",
        "        grace_seconds=grace,\n",
        "",
        f"{WORKER}::test_a_run_ends_though_its_agent_ignores_its_stop[deadline]",
    ),
    Guard(
        "a run is handed back while its body goes on",
        "agents/invoke.py",
        " and not isinstance(outcome, Yielded):",
        ":",
        f"{INVOKE}::test_a_run_is_not_handed_back_while_its_body_goes_on",
    ),
    Guard(
        "one that never joined leaves as if it had",
        "services/worker.py",
        "if await self._join(connections, floor):",
        "if await self._join(connections, floor) or True:",
        f"{DIE}::test_one_that_is_stopped_while_it_waits_for_its_name_takes_nothing_from_who_has_it",
    ),
    Guard(
        "one that has lost its name goes on under it",
        "redis/lua/announce.lua",
        "if theirs and theirs ~= ours then return 0 end",
        "",
        f"{DIE}::test_a_worker_that_wakes_up_without_its_name_takes_nothing_from_who_has_it",
    ),
    Guard(
        "one that has lost its name hands back what goes by it",
        "services/worker.py",
        "if not self._own_name.lost:  # what",
        "if True:  # what",
        f"{DIE}::test_a_worker_that_wakes_up_without_its_name_takes_nothing_from_who_has_it",
    ),
    Guard(
        "a process waits for threads that nobody ends",
        "services/process.py",
        "        leave_at_once()\n",
        "",
        f"{DIE}::test_a_worker_leaves_without_the_threads_that_its_agents_left",
    ),
    Guard(
        "a worker dies of a password that is changed",
        "redis/connections.py",
        "class PasswordRefused(ConfigError, RedisConnectionError):",
        "class PasswordRefused(ConfigError):",
        f"{DIE}::test_a_worker_outlives_a_password_that_is_changed",
    ),
    Guard(
        "a sidecar is waited for while a body and its successor go on",
        "services/sidecar.py",
        "_HURRIED_SECONDS if hurried else ",
        "",
        f"{SIDECAR}::test_a_silent_sidecar_does_not_keep_agents_that_ignore_their_stop",
    ),
    Guard(
        "an idempotency key is forgotten when ended runs are",
        "runs/submit.py",
        "int(settings.idempotency_ttl_seconds * 1000)",
        "int(min(settings.idempotency_ttl_seconds, settings.retention_seconds) * 1000)",
        f"{WORKER}::test_a_key_stands_for_its_run_as_long_as_that_is_known",
    ),
    Guard(
        "an idempotency key stands for a run that has left",
        "runs/lua/submit.lua",
        "if run and redis.call('EXISTS', run_prefix .. run) == 1 then",
        "if run then",
        f"{WORKER}::test_a_key_stands_for_its_run_as_long_as_that_is_known",
    ),
    Guard(
        "a process that leaves waits for agents that linger",
        "services/worker.py",
        " or any(desk.worker.lingering for desk in desks)",
        "",
        f"{WORKER}::test_a_worker_leaves_without_an_agent_that_lingers",
    ),
    Guard(
        "a queue's deadline is for no run",
        "runs/perform.py",
        "return settings.timeout_seconds if",
        "return 1800.0 if",
        f"{DEADLINE}[the queue's]",
    ),
    Guard(
        "a queue's deadline is for every agent",
        "runs/perform.py",
        "return settings.timeout_seconds if spec.timeout_seconds is None else spec.timeout_seconds",
        "return settings.timeout_seconds",
        f"{DEADLINE}[the agent's, longer]",
    ),
    Guard(
        "an agent's deadline is for every run",
        "runs/perform.py",
        "own = envelope.timeout_seconds",
        "own = envelope.timeout_seconds if spec.timeout_seconds is None else None",
        f"{DEADLINE}[the run's, longer]",
    ),
    Guard(
        "a submission waits for its process's reads",
        "services/connections.py",
        "client = connect(self.settings.redis)\n        self._stack.push_async_callback(client.aclose)\n",
        "client = self.redis\n",
        f"{SENDER}::test_a_flood_of_reads_does_not_delay_a_submission",
    ),
    Guard(
        "every submission tries a Redis that stays away",
        "services/connections.py",
        "            breaker=breaker,\n",
        "",
        f"{SENDER}::test_a_redis_that_stays_away_is_not_asked_by_every_submission",
    ),
    Guard(
        "the API submits without a breaker",
        "services/api.py",
        "Line(connections.sender(settings), queue,",
        "Line(queue, queue,",
        "tests/integration/api/test_nouns.py"
        "::test_a_redis_that_does_not_answer_is_not_asked_by_every_request",
    ),
    Guard(
        "a scheduler submits without a breaker",
        "services/scheduler.py",
        "connections.sender(",
        "connections.queue(",
        "tests/integration/schedules/test_outage.py"
        "::test_a_target_that_does_not_answer_is_not_asked_by_every_turn",
    ),
]


def run_test(source: Path, test: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "--timeout=60", test]
    environ = {**os.environ, "PYTHONPATH": str(source)}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_every_guard_is_still_where_it_was(guard: Guard):
    """Quick, so that a row which no longer breaks anything is noticed with the change that made it so."""
    assert guard.old in (ROOT / "src" / "holdfast" / guard.file).read_text()
    file, _, test = guard.test.partition("::")
    assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_without_its_guard_the_test_fails(guard: Guard, tmp_path: Path):
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src", source)
    broken = source / "holdfast" / guard.file
    text = broken.read_text()
    assert text.count(guard.old) >= 1, f"{guard.file} no longer has the guarded line: {guard.old}"
    broken.write_text(text.replace(guard.old, guard.new))
    done = run_test(source, guard.test)
    assert "1 failed" in done.stdout, f"{guard.test} does not notice: {guard.name}\n{done.stdout[-3000:]}"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_with_all_guards_the_same_tests_pass(tmp_path: Path):
    shutil.copytree(ROOT / "src", tmp_path / "src")
    command = [sys.executable, "-m", "pytest", "-q", "-n0", *sorted({guard.test for guard in GUARDS})]
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
