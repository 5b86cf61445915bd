"""The known mistakes with runs, from a submission to the archive, each put back: its test fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake, instead, removed, replaced

DAMAGED = "tests/integration/runs/test_damaged.py"
SIDECAR = "tests/integration/services/test_sidecar.py"
FIELDS = "tests/integration/runs/test_damaged_fields.py"
RIGHTS = "tests/integration/runs/test_rights.py"
ARCHIVE = "tests/integration/runs/test_archive.py"
FENCES = "tests/integration/runs/test_fences.py"
ATTEMPTS = "tests/integration/runs/test_attempts.py"
HEARD = "tests/integration/runs/test_listeners.py"
FOREIGN = "tests/integration/runs/test_foreign.py"
WORKER = "tests/integration/runs/test_worker.py"
LIMITS = "tests/integration/runs/test_limits.py"
THREADS = "tests/integration/runs/test_threads.py"
ASKS = "tests/integration/runs/test_interrupts.py"
PLAIN = "tests/integration/runs/test_plain_path.py"
STEPS = "tests/integration/runs/test_steps.py"
STATE = "tests/contract/store/test_state.py"
MOVED = "tests/integration/runs/test_partitions.py"
EXPIRY = "tests/integration/runs/test_expiry.py"
DEAD = "tests/integration/runs/test_deadletter.py"
RELAY = "tests/integration/events/test_relay.py"
IDLE = "tests/integration/events/test_relay_idle.py"
REDELIVERY = "tests/integration/events/test_redelivery.py"
RELAYED = "tests/integration/events/test_relay_of_runs.py"
INVOKE = "tests/unit/agents/test_invoke.py"
SENDER = "tests/integration/runs/test_sender.py"
DEADLINE = f"{WORKER}::test_the_deadline_is_the_runs_own_or_its_agents_or_the_queues"

MISTAKES = [
    Mistake(
        "a run that never began has an attempt of 0 after a retry",
        replaced("replay-attempt-of-begun-run", "redis.call('HEXISTS', record, 'fence') == 1", "true"),
        "tests/integration/runs/test_attempts.py::test_a_run_that_was_cancelled_before_it_began_has_its_first_attempt_after_a_retry",
    ),
    Mistake(
        "a pause of the relay itself is the receiver's timeout",
        instead("answer-timeout-slices", "self._timeout.reschedule(loop.time() + _SLICES * self._slice)"),
        f"{RELAY}::test_an_answer_that_came_while_the_relay_stood_still_counts",
    ),
    Mistake(
        "a pause at the very end of the timeout is the receiver's timeout",
        replaced("late-last-slice", " or (late and not self._extended)", ""),
        f"{RELAY}::test_an_answer_that_came_in_a_pause_at_the_very_end_of_the_timeout_counts",
    ),
    Mistake(
        "an Event API that rejects everything for a while loses events",
        (
            replaced("own-rejections-not-counted", " and not ours", ""),
            removed("own-rejections-outage"),
        ),
        f"{RELAY}::test_an_event_api_that_rejects_everything_for_longer_than_many_tries_loses_nothing",
    ),
    Mistake(
        "events to deliver again are passed over",
        removed("redeliveries-first"),
        f"{REDELIVERY}::test_what_was_given_up_is_delivered_again_in_order_and_leaves_the_list",
    ),
    Mistake(
        "a redelivery takes the entry away from its holder",
        replaced("redelivery-leaves-the-holder", "'NX', ", ""),
        f"{REDELIVERY}::test_a_run_that_goes_on_and_on_does_not_hold_up_what_is_delivered_again",
    ),
    Mistake(
        "a redelivery waits until the run says nothing more",
        replaced("redelivery-after-a-page", "== 1", "== 2"),
        f"{REDELIVERY}::test_a_run_that_goes_on_and_on_does_not_hold_up_what_is_delivered_again",
    ),
    Mistake(
        "a relay that lost the entry takes an undelivered event off the list",
        removed("redelivered-fence"),
        f"{REDELIVERY}::test_a_stale_holder_moves_nothing",
    ),
    Mistake(
        "relays are not notified of new events",
        removed("relay-notified"),
        f"{IDLE}::test_what_comes_after_a_rest_is_delivered_by_notification",
    ),
    Mistake(
        "a delivery that failed is forgotten until the next poll",
        replaced("delivery-ended-wakes", "self._wakeup.set()", "pass"),
        f"{IDLE}::test_a_try_that_failed_is_repeated_when_its_pause_is_over",
    ),
    Mistake(
        "XCLAIM steals the entry back",
        removed("run-renew-pending"),
        f"{FENCES}::test_a_renewal_after_an_operators_xclaim_is_lost",
    ),
    Mistake(
        "what woke a worker is trusted longer than its lease",
        removed("woken-entry-idle-time"),
        f"{FENCES}::test_an_entry_that_woke_us_is_fresh_from_its_claim_on",
    ),
    Mistake(
        "what woke a worker is claimed though another has it",
        replaced(
            "woken-entry-pending",
            "and #redis.pcall('XPENDING', lane, group, entry, entry, 1, owner) == 1 ",
            "",
        ),
        f"{FENCES}::test_an_entry_that_woke_us_and_was_taken_away_is_not_claimed",
    ),
    Mistake(
        "a body learns a turn of the loop later that its lease is gone",
        removed("lost-lease-cancels-body"),
        "tests/unit/agents/test_invoke.py::test_a_body_that_was_due_while_all_stood_still_does_not_go_on",
    ),
    Mistake(
        "what Redis has lost and gives again begins beside the body that goes on",
        removed("claimed-again"),
        f"{WORKER}::test_a_claim_that_redis_has_lost_gives_no_fence_to_two_bodies",
    ),
    Mistake(
        "a run that ended twice is dated by its last end",
        replaced("unarchived-first-end", "(tonumber(first:match('^%d+') or nil) or 0)", "now"),
        f"{ARCHIVE}::test_a_run_that_ended_twice_does_not_let_the_others_leave",
    ),
    Mistake(
        "the list of what is not archived names only the run",
        replaced("unarchived-end-time", "finished_at", "'1'"),
        f"{ARCHIVE}::test_a_janitor_that_was_frozen_does_not_take_off_what_ended_again",
    ),
    Mistake(
        "a message that only mentions RESUME answers a question",
        replaced("resume-action", "and envelope['action'] == 'RESUME'", ""),
        "tests/integration/runs/test_interrupts.py::test_the_same_message_once_more_is_no_answer",
    ),
    Mistake(
        "a damaged run takes the rest of its batch along",
        replaced(
            "settle-each-alone",
            "pcall(settle_one, run, status, field, extra, lane, fence, with_data)",
            "true, settle_one(run, status, field, extra, lane, fence, with_data)",
        ),
        f"{DAMAGED}::test_a_limit_that_was_overwritten_costs_the_others_of_a_batch_nothing",
    ),
    Mistake(
        "a run leaves before it is archived",
        replaced("expire-after-archive", "finished >= all_before", "false"),
        f"{ARCHIVE}::test_a_store_that_is_away_costs_no_run",
    ),
    Mistake(
        "an archived run waits for those that are not",
        replaced("expire-after-archive", "finished >= all_before and ", ""),
        f"{ARCHIVE}::test_what_is_archived_leaves_while_later_ones_wait_for_the_store",
    ),
    Mistake(
        "two that archive take each other's runs off the list",
        removed("archive-list-unchanged"),
        f"{ARCHIVE}::test_two_that_archive_at_once_lose_no_run",
    ),
    Mistake(
        "a zombie settles",
        removed("settle-fence"),
        f"{FENCES}::test_a_stale_settlement_is_refused_and_changes_nothing",
    ),
    Mistake(
        "a zombie emits",
        replaced("emit-fence", "have[1] == owner and have[2] == ARGV[at + 1]", "true"),
        f"{FENCES}::test_a_stale_event_is_refused",
    ),
    Mistake(
        "a zombie hands back",
        replaced("run-release-fence", "have[1] ~= owner or have[2] ~= fence or ", ""),
        f"{FENCES}::test_a_stale_hand_back_is_refused",
    ),
    Mistake(
        "a settlement sent again is called stale",
        replaced("settle-again", "have[1] == '' and 'already' or ", ""),
        f"{FENCES}::test_a_settlement_sent_twice_says_already",
    ),
    Mistake(
        "the second entry of a run is a second execution",
        replaced("claim-startable", "not same or ", ""),
        f"{FOREIGN}::test_two_entries_with_one_correlation_id_are_one_execution",
    ),
    Mistake(
        "a run that names no agent never gets the default agent",
        removed("empty-agent-default"),
        f"{FOREIGN}::test_an_entry_whose_agent_is_empty_goes_to_the_default_agent",
    ),
    Mistake(
        "a run that has not begun is claimed by any entry that names it",
        replaced("first-start", "have[3] == entry and ", ""),
        f"{FENCES}::test_another_entry_of_a_run_that_has_not_begun_is_not_the_run[its own]",
    ),
    Mistake(
        "a run that has not begun is claimed by an entry of another lane",
        replaced("first-start", "have[2] == lane and ", ""),
        f"{FENCES}::test_another_entry_of_a_run_that_has_not_begun_is_not_the_run[another]",
    ),
    Mistake(
        "a cancelled run begins for the first time",
        replaced("first-start", "== 'queued' ", ""),
        f"{WORKER}::test_a_queued_run_is_cancelled_and_never_started",
    ),
    Mistake(
        "every start of a run is its first",
        replaced("first-start", "not have[4] and ", ""),
        f"{ATTEMPTS}::test_an_attempt_that_died_counts",
    ),
    Mistake(
        "a run that begins for the first time does not wait for its key",
        replaced("first-start", "not have[6] and ", ""),
        f"{LIMITS}::test_a_concurrency_key_is_held_by_one_run",
    ),
    Mistake(
        "a run that begins for the first time does not wait for its agent's limit",
        replaced("first-start", " and not limited[agent]", ""),
        f"{LIMITS}::test_an_agents_limit_holds_over_all_workers_and_is_first_come_first_served",
    ),
    Mistake(
        "a run that begins for the first time is read by the place of its fields, whoever wrote them",
        replaced(
            "entry-written-by-us",
            "is_ours(fields) and run_prefix .. fields[10]",
            "run_prefix .. (fields[10] or '')",
        ),
        f"{DAMAGED}::test_a_foreign_entry_whose_adoption_was_cut_short_is_read_by_its_names",
    ),
    Mistake(
        "a run whose feed is damaged begins without an event",
        removed("started-event-retry"),
        f"{DAMAGED}::test_a_feed_that_is_none_any_more_stops_nobody[queued-overwritten]",
    ),
    Mistake(
        "of a run that is named twice in a batch the second one counts",
        removed("settle-in-order"),
        f"{DAMAGED}::test_of_a_run_that_is_named_twice_the_first_one_counts",
    ),
    Mistake(
        "a zombie's run succeeds with those of others",
        replaced("settle-together", "have[2] == fence and ", ""),
        f"{FENCES}::test_each_of_a_mixed_batch_gets_its_own_verdict",
    ),
    Mistake(
        "whoever knows the fence lets a run succeed",
        replaced("settle-together", "have[1] == owner and ", ""),
        f"{FENCES}::test_a_settlement_sent_twice_says_already",
    ),
    Mistake(
        "a run that is named twice in a batch ends twice",
        replaced("settle-together", "and not place_of[record] ", ""),
        f"{FENCES}::test_each_of_a_mixed_batch_gets_its_own_verdict",
    ),
    Mistake(
        "a run whose feed is damaged ends without its last event",
        replaced("finished-event-retry", "event.err", "false"),
        f"{DAMAGED}::test_a_feed_that_is_none_any_more_stops_nobody[running-overwritten]",
    ),
    Mistake(
        "a cancelled run is started",
        replaced("claim-startable", "(status ~= 'queued' and status ~= 'running')", "false"),
        f"{WORKER}::test_a_queued_run_is_cancelled_and_never_started",
    ),
    Mistake(
        "a paused queue loses what woke its reader",
        removed("paused-claim-undo"),
        f"{WORKER}::test_pausing_a_queue_whose_worker_is_blocked_in_a_read_loses_nothing",
    ),
    Mistake(
        "a full queue takes more",
        removed("queue-depth-limit"),
        f"{WORKER}::test_a_full_queue_refuses_instead_of_trimming",
    ),
    Mistake(
        "a hand-back is a failed attempt",
        replaced("run-release-attempt", "owner, 1", "owner, 0"),
        f"{FENCES}::test_a_run_handed_back_keeps_its_attempt_and_gets_a_higher_fence",
    ),
    Mistake(
        "DELCONSUMER destroys what was delivered",
        instead(
            "evict-keeps-pending", "local page\nredis.call('XGROUP', 'DELCONSUMER', lane, group, consumer)"
        ),
        f"{FENCES}::test_leaving_returns_what_was_delivered_but_never_started",
    ),
    Mistake(
        "a cancelled run is tried again",
        replaced("settle-cancelled", "cancelled", "false"),
        f"{WORKER}::test_a_cancel_that_meets_a_failing_attempt_ends_the_run",
    ),
    Mistake(
        "a trace is that of whoever came first",
        replaced("submission-own-trace", "inject() or submission.trace", "{}"),
        "tests/integration/runs/test_queues.py::test_each_of_many_submissions_carries_its_own_trace",
    ),
    Mistake(
        "the low lane starves",
        replaced("lane-order", "_ORDERS[claim % len(_ORDERS)]", '"1234"'),
        f"{WORKER}::test_no_lane_starves_beside_the_others",
    ),
    Mistake(
        "a newcomer overtakes those that wait for a limit",
        removed("limit-queue-order"),
        f"{LIMITS}::test_a_raised_limit_lets_the_parked_ones_go_on",
    ),
    Mistake(
        "a run that waits again waits behind those that came later",
        replaced("parked-place-kept", "extra_fields.place or ", ""),
        f"{LIMITS}::test_a_run_that_is_turned_away_goes_before_those_that_came_later",
    ),
    Mistake(
        "a lowered limit is not for those that were let in before",
        replaced("lowered-limit", "count <= most", "true"),
        f"{LIMITS}::test_a_lowered_limit_holds_for_those_that_wait_and_for_those_that_come_back",
    ),
    Mistake(
        "whoever ends lets the next one go on, whatever the limit is",
        replaced("limit-at-release", "redis.call('ZCARD', holding_of(limits, name)) >= n or ", ""),
        f"{LIMITS}::test_an_agents_limit_holds_over_all_workers_and_is_first_come_first_served",
    ),
    Mistake(
        "a raised limit is told only by one that is turned away",
        removed("raised-limit-applied"),
        f"{LIMITS}::test_a_raised_limit_is_told_by_the_first_that_goes_on",
    ),
    Mistake(
        "those that wait stand in the order of parking",
        replaced("parked-order", "tonumber(ms) * 1000 + math.min(tonumber(seq), 999)", "now_ms() * 1000"),
        f"{LIMITS}::test_those_that_wait_go_on_in_the_order_they_came_whoever_read_them_first",
    ),
    Mistake(
        "a feed of another type stops the queue",
        replaced("damaged-feed-deleted", "id.err:find('WRONGTYPE', 1, true) or ", ""),
        f"{DAMAGED}::test_a_feed_that_is_none_any_more_stops_nobody[queued-overwritten]",
    ),
    Mistake(
        "a feed without another id stops the queue",
        replaced("damaged-feed-deleted", "or id.err:find('exhausted', 1, true) ", ""),
        f"{DAMAGED}::test_a_feed_that_is_none_any_more_stops_nobody[queued-used up]",
    ),
    Mistake(
        "a run whose end may not be told never ends",
        replaced("feed-publish-optional", "pcall", "call"),
        f"{RIGHTS}::test_a_user_that_may_use_no_channels_ends_its_runs_once",
    ),
    Mistake(
        "a queue can't be paused by who may not tell it",
        replaced("gate-publish-optional", "pcall", "call"),
        f"{RIGHTS}::test_a_user_that_may_use_no_channels_ends_its_runs_once",
    ),
    Mistake(
        "one overwritten record costs a worker all its leases",
        replaced("run-renew-damaged-record", "pcall", "call"),
        f"{DAMAGED}::test_the_others_keep_their_leases",
    ),
    Mistake(
        "one overwritten record keeps the others from going back",
        replaced("run-release-damaged-record", "pcall", "call"),
        f"{DAMAGED}::test_the_others_are_handed_back",
    ),
    Mistake(
        "events stop at a record that is none",
        replaced("emit-damaged-record", "read_fields(record", "redis.call('HMGET', record"),
        f"{DAMAGED}::test_the_others_tell_what_happens",
    ),
    Mistake(
        "a line stops at a record that is none",
        replaced("parked-damaged-record", "pcall", "call"),
        f"{DAMAGED}::test_the_line_behind_it_goes_on",
    ),
    Mistake(
        "an entry is acked wherever a record says that it lies",
        removed("settle-known-place"),
        f"{DAMAGED}::test_the_others_of_a_batch_are_settled_whole[entry]",
    ),
    Mistake(
        "runs are not noted for the archive if they can't be noted to leave",
        replaced("ended-list-write", "write", "call"),
        f"{DAMAGED}::test_what_ended_is_noted_in_the_list_that_is_left[ended]",
    ),
    Mistake(
        "a list of runs stops at a record that is none",
        replaced("rows-damaged-record", "read_fields(run_prefix", "redis.call('HMGET', run_prefix"),
        f"{DAMAGED}::test_whoever_lists_runs_sees_the_others",
    ),
    Mistake(
        "a submission stops at a record that it pushes away",
        replaced("stop-damaged-record", "read_fields(record", "redis.call('HMGET', record"),
        f"{DAMAGED}::test_who_pushes_it_off_its_thread_is_accepted",
    ),
    Mistake(
        "a fence that is no number is counted on from",
        replaced("damaged-count", "is_count(text) and tonumber(text)", "tonumber(text or nil)"),
        f"{FIELDS}::test_the_others_are_begun_kept_and_ended_whatever_it_is[queued-fence]",
    ),
    Mistake(
        "permits that are none stop a queue",
        replaced(
            "damaged-permits",
            "pcall(cjson.decode, text or '')",
            "true, text and text ~= '' and cjson.decode(text) or {}",
        ),
        f"{FIELDS}::test_the_others_are_begun_kept_and_ended_whatever_it_is[queued-permits]",
    ),
    Mistake(
        "a worker ends at a time that is none",
        replaced("damaged-time", "int(digits) if is_count(digits) else 0", "int(digits or 0)"),
        f"{FIELDS}::test_the_others_are_begun_kept_and_ended_whatever_it_is[queued-submitted_at]",
    ),
    Mistake(
        "an entry is acked in a lane that is none",
        replaced("entry-known-lane", "is_lane[lane]", "lane"),
        f"{DAMAGED}::test_the_others_of_a_batch_are_settled_whole[lane]",
    ),
    Mistake(
        "a run never keeps one limit for another",
        replaced("permits-kept-in-order", ", extra_fields.place and has", ""),
        f"{LIMITS}::test_nobody_waits_for_ever_for_two_limits_that_are_never_free_together[tenant]",
    ),
    Mistake(
        "runs that wait for each other's limits keep what they have",
        replaced(
            "permits-kept-in-order",
            "extra_fields.place and has",
            "setmetatable({}, { __index = function() return true end })",
        ),
        f"{LIMITS}::test_no_two_runs_wait_for_what_the_other_has",
    ),
    Mistake(
        "a retried run lets its thread go",
        replaced("retry-keeps-thread", "pauses and is_thread(name) or ", ""),
        f"{THREADS}::test_a_retried_run_keeps_its_thread",
    ),
    Mistake(
        "a cancelled run keeps its permits",
        removed("stop-releases-permits"),
        f"{THREADS}::test_a_cancelled_run_lets_the_next_one_go_on[queued]",
    ),
    Mistake(
        "a parked run is taken for a lost one",
        removed("parked-run-not-lost"),
        f"{THREADS}::test_a_parked_run_is_not_taken_for_a_lost_one",
    ),
    Mistake(
        "asking uses up attempts",
        replaced("resume-resets-attempt", ", 'attempt', 0", ""),
        f"{ASKS}::test_asking_does_not_use_up_attempts",
    ),
    Mistake(
        "a plain run is begun unlike all others",
        replaced("plain-run-begun", "'1'", "'01'"),
        f"{PLAIN}::test_plain_runs_are_claimed_and_settled_as_all_others_are",
    ),
    Mistake(
        "a plain run is ended unlike all others",
        replaced("plain-run-ended", "'succeeded'", "'done'"),
        f"{PLAIN}::test_plain_runs_are_claimed_and_settled_as_all_others_are",
    ),
    Mistake(
        "a zombie writes a step",
        replaced("store-write-fence", " AND fence = :fence AND owner = :owner", ""),
        f"{STEPS}::test_what_a_paused_worker_writes_after_its_run_moved_on_is_refused",
    ),
    Mistake(
        "a late write of a thread's earlier run is kept",
        instead("earlier-run-of-thread-sealed", "pass"),
        f"{STEPS}::test_a_late_write_of_an_earlier_run_of_the_thread_is_refused",
    ),
    Mistake(
        "an earlier attempt that registers late takes its thread back",
        replaced("older-attempt-of-thread-refused", "_is_newer(generation, holder.generation, now)", "False"),
        f"{STEPS}::test_a_late_write_of_an_earlier_run_of_the_thread_is_refused",
    ),
    Mistake(
        "a wrong clock keeps a thread from the store until its time comes",
        replaced("wrong-clock-forgiven", "and generation <= (now + _CLOCK_SECONDS) * 1e6", ""),
        f"{STATE}::test_a_clock_that_was_wrong_keeps_no_thread_from_the_store[sqlite]",
    ),
    Mistake(
        "a thread in two partitions is one thread",
        replaced("thread-of-its-partition", "resources.settings.partition", "0"),
        f"{MOVED}::test_runs_of_a_thread_that_moves_to_another_partition_do_not_shut_each_other_out",
    ),
    Mistake(
        "a run whose thread was taken begins again at once, and no attempt is counted",
        replaced("taken-thread-counts", "Failed(classify(exc)) if isinstance(exc, ThreadTaken) else ", ""),
        f"{STEPS}::test_a_run_whose_thread_was_taken_is_retried_as_after_any_failure",
    ),
    Mistake(
        "what was written over the turns of a queue stops it",
        replaced(
            "damaged-turns",
            "type(known) == 'string' and #known <= 16 and tonumber(known:match('^%d+$') or nil) or 0",
            "tonumber(known)",
        ),
        f"{THREADS}::test_turns_that_were_overwritten_stop_no_queue",
    ),
    Mistake(
        "a frozen worker's transaction holds up the thread's next run",
        removed("idle-transaction-ended"),
        "tests/integration/store/test_postgresql_faults.py"
        "::test_a_transaction_that_stands_still_is_ended_by_the_server",
    ),
    Mistake(
        "attempts of a thread have no order",
        replaced("thread-generation", "next_place(limits, clock)", "1"),
        f"{STEPS}::test_a_late_write_of_an_earlier_run_of_the_thread_is_refused",
    ),
    Mistake(
        "a run expires before its events have left",
        replaced("expire-after-delivery", "has_undelivered(id, have[3]) or ", ""),
        f"{EXPIRY}::test_an_ended_run_stays_until_its_events_have_reached_the_outside[outbox]",
    ),
    Mistake(
        "a note of an end removes a live run",
        removed("expire-ended-only"),
        f"{EXPIRY}::test_a_live_run_under_the_id_of_an_ended_one_does_not_leave",
    ),
    Mistake(
        "a delayed run forgets that it was to interrupt",
        replaced("delayed-interrupt", "not PREEMPTS[multitask]", "true"),
        f"{THREADS}::test_a_delayed_run_that_interrupts_stops_the_running_one_when_it_is_due",
    ),
    Mistake(
        "a first attempt that died is not counted",
        replaced("returned-run-attempt", "attempt_of(have[4], have[5])", "(tonumber(have[5]) or 0)"),
        f"{ATTEMPTS}::test_an_attempt_that_died_counts",
    ),
    Mistake(
        "what comes back after its first attempt waits behind new runs",
        replaced("returned-run-lane", "attempt_of(have[8], have[5])", "(tonumber(have[5]) or 0)"),
        f"{ATTEMPTS}::test_what_comes_back_after_its_first_attempt_is_served_first",
    ),
    Mistake(
        "a run that was lost before it began counts an attempt",
        replaced("restored-run-attempt", "fence == 1", "false"),
        f"{ATTEMPTS}::test_what_was_lost_before_it_began_has_had_none",
    ),
    Mistake(
        "nobody at a replica hears how a run ends",
        replaced("live-listeners-elsewhere", "'repl_backlog_active:0\\r', ", ""),
        f"{HEARD}::test_who_listens_at_a_replica_hears_it[there]",
    ),
    Mistake(
        "nobody at a replica that was cut off hears how a run ended",
        replaced("live-listeners-elsewhere", "'repl_backlog_active:0\\r'", "'connected_slaves:0\\r'"),
        f"{HEARD}::test_who_listens_at_a_replica_hears_it[cut off]",
    ),
    Mistake(
        "nobody at another node of a cluster hears how a run ends",
        replaced("live-listeners-elsewhere", "'cluster_enabled:0\\r', ", ""),
        f"{HEARD}::test_who_listens_at_another_node_of_a_cluster_hears_it",
    ),
    Mistake(
        "nobody who listens by a pattern hears how a run ends",
        replaced("live-listeners-elsewhere", ", 'pubsub_patterns:0\\r'", ""),
        f"{HEARD}::test_who_listens_by_a_pattern_hears_all",
    ),
    Mistake(
        "a run that only its agent's limit binds ends with its permit",
        replaced("claim-bound-number", "bound", "have[6]"),
        f"{LIMITS}::test_an_agents_limit_holds_over_all_workers_and_is_first_come_first_served",
    ),
    Mistake(
        "a run leaves by the note of an earlier one of its id",
        removed("expire-same-end"),
        f"{EXPIRY}::test_of_those_that_succeeded_together_one_that_came_again_stays",
    ),
    Mistake(
        "a run leaves by the note of an earlier end that names it alone",
        replaced("expire-not-early", "not finished_at and expires_at > now", "false"),
        f"{EXPIRY}::test_a_run_that_came_again_does_not_leave_by_the_note_of_its_first_end",
    ),
    Mistake(
        "nothing is kept of a dead run that leaves",
        removed("expire-keeps-replay"),
        f"{DEAD}::test_a_run_revived_after_it_left_is_the_same_run",
    ),
    Mistake(
        "the events of a revived run are numbered from the beginning",
        replaced("revived-run-sequence", "sequence = earlier", "sequence = 0"),
        f"{RELAYED}::test_a_run_revived_after_it_left_goes_on_with_the_next_number",
    ),
    Mistake(
        "an agent that ignores its deadline is waited for",
        replaced("invocation-stop-grace", "grace_seconds=grace,", ""),
        f"{WORKER}::test_a_run_ends_though_its_agent_ignores_its_stop[deadline]",
    ),
    Mistake(
        "a run is handed back while its body goes on",
        replaced("yield-waits-for-body", " and not isinstance(outcome, Yielded)", ""),
        f"{INVOKE}::test_a_run_is_not_handed_back_while_its_body_goes_on",
    ),
    Mistake(
        "a sidecar is waited for while a body and its successor go on",
        replaced("sidecar-wait", "_HURRIED_SECONDS if hurried else ", ""),
        f"{SIDECAR}::test_a_silent_sidecar_does_not_keep_agents_that_ignore_their_stop",
    ),
    Mistake(
        "an idempotency key is forgotten when ended runs are",
        replaced(
            "idempotency-key-ttl",
            "settings.idempotency_ttl_seconds",
            "min(settings.idempotency_ttl_seconds, settings.retention_seconds)",
        ),
        f"{WORKER}::test_a_key_stands_for_its_run_as_long_as_that_is_known",
    ),
    Mistake(
        "an idempotency key stands for a run that has left",
        replaced("idempotency-key-of-known-run", "and redis.call('EXISTS', run_prefix .. run) == 1 ", ""),
        f"{WORKER}::test_a_key_stands_for_its_run_as_long_as_that_is_known",
    ),
    Mistake(
        "a process that leaves waits for agents that linger",
        replaced("exit-without-lingering", " or pool.lingering", ""),
        f"{WORKER}::test_a_worker_leaves_without_an_agent_that_lingers",
    ),
    Mistake(
        "a queue's deadline is for no run",
        replaced("agent-or-queue-timeout", "settings.timeout_seconds", "1800.0"),
        f"{DEADLINE}[the queue's]",
    ),
    Mistake(
        "a queue's deadline is for every agent",
        replaced("agent-or-queue-timeout", " if spec.timeout_seconds is None else spec.timeout_seconds", ""),
        f"{DEADLINE}[the agent's, longer]",
    ),
    Mistake(
        "an agent's deadline is for every run",
        replaced(
            "run-timeout",
            "envelope.timeout_seconds",
            "envelope.timeout_seconds if spec.timeout_seconds is None else None",
        ),
        f"{DEADLINE}[the run's, longer]",
    ),
    Mistake(
        "a submission waits for its process's reads",
        (
            replaced("sender-own-connection", "connect(self.settings.redis)", "self.redis"),
            removed("sender-connection-closed"),
        ),
        f"{SENDER}::test_a_flood_of_reads_does_not_delay_a_submission",
    ),
    Mistake(
        "every submission tries a Redis that stays away",
        replaced("sender-breaker", "breaker=breaker,", ""),
        f"{SENDER}::test_a_redis_that_stays_away_is_not_asked_by_every_submission",
    ),
    Mistake(
        "a worker that may not write the catalogue of its agents dies of it",
        replaced("catalogue-refused", "REFUSALS", "ZeroDivisionError"),
        f"{RIGHTS}::test_a_user_that_may_not_write_catalogues_has_its_agents_listed_by_name",
    ),
    Mistake(
        "the API submits without a breaker",
        replaced("api-submit-breaker", "connections.sender(settings)", "queue"),
        "tests/integration/api/test_nouns.py"
        "::test_a_redis_that_does_not_answer_is_not_asked_by_every_request",
    ),
    Mistake(
        "a scheduler submits without a breaker",
        replaced("scheduler-submit-breaker", "connections.sender", "connections.queue"),
        "tests/integration/schedules/test_outage.py"
        "::test_a_target_that_does_not_answer_is_not_asked_by_every_turn",
    ),
    Mistake(
        "whoever makes a SQLite file beside another process is refused at once",
        replaced("wal-retried", "not _is_busy(exc) or time.monotonic() > deadline", "True"),
        "tests/integration/store/test_sqlite_faults.py"
        "::test_a_file_that_another_process_is_making_is_waited_for",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
