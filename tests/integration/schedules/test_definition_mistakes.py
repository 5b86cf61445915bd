"""The known mistakes around definitions in SQL, the reconcile and what is told, each put back: the test named after it fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake

D = "tests/integration/schedules/test_definitions.py"
R = "tests/integration/schedules/test_reconcile.py"
H = "tests/integration/api/test_schedules.py"
TENANTS = "tests/integration/api/test_schedules_of_tenants.py"
T = "tests/integration/schedules/test_told.py"
LUA = "schedules/lua"

MISTAKES = [
    Mistake(
        "an older definition is written over a newer one",
        f"{LUA}/register.lua",
        "if outdated(revision, have[5])",
        "if false",
        f"{D}::test_an_old_definition_never_overwrites_a_newer_one",
    ),
    Mistake(
        "an older removal removes what is newer",
        f"{LUA}/changes.lua",
        "(tonumber(stored) or 0) > (tonumber(revision) or 0)",
        "false",
        f"{D}::test_an_old_definition_never_overwrites_a_newer_one",
    ),
    Mistake(
        "SQL takes any revision",
        "store/schedules.py",
        "WHERE excluded.revision > holdfast_schedules.revision",
        "WHERE true",
        "tests/contract/store/test_schedules.py::test_an_older_revision_never_replaces_a_newer_one_and_hears_what_stands[sqlite]",
    ),
    Mistake(
        "what SQL has comes back without its pause",
        f"{LUA}/register.lua",
        "if since ~= '' then redis.call('HSET', record, 'paused', why, 'paused_since', since) end",
        "",
        f"{D}::test_a_pause_and_its_reason_survive_a_flush_and_nothing_runs_meanwhile",
    ),
    Mistake(
        "what the code declares comes back without its pause",
        "schedules/reconcile.py",
        "await self._with_pauses(planned)",
        "planned",
        f"{D}::test_a_pause_of_what_the_code_declares_survives_a_flush",
    ),
    Mistake(
        "a removal leaves no tombstone",
        "schedules/definitions.py",
        "revision=base.revision, removed=True)",
        "revision=base.revision, spec=base.spec)",
        f"{D}::test_a_removed_one_does_not_come_back_with_a_flush",
    ),
    Mistake(
        "a schedule that is done begins anew",
        "schedules/healing.py",
        "first=None if row.done else planned.first",
        "first=planned.first",
        f"{D}::test_what_was_done_does_not_happen_again_after_a_flush",
    ),
    Mistake(
        "SQL wins over the code",
        "schedules/healing.py",
        'return decoded(spec).source == "api"',
        "return bool(decoded(spec))",
        f"{D}::test_the_code_wins_over_what_was_made_under_the_same_name",
    ),
    Mistake(
        "a Redis that was emptied is taken for what it was",
        f"{LUA}/changes.lua",
        "(era or string.format('%.0f', now_us()))",
        "'1'",
        f"{D}::test_nothing_is_compared_while_nothing_has_changed",
    ),
    Mistake(
        "everything is sent again in every pass",
        "schedules/reconcile.py",
        "places = await self._registry.differing(self._digests[start:end])",
        "places = range(len(self._digests[start:end]))",
        f"{R}::test_what_has_not_changed_is_sent_once_and_then_not_even_compared",
    ),
    Mistake(
        "an empty Redis counts as unchanged",
        "schedules/reconcile.py",
        "if self._found.changes and self._found == self._seen",
        "if self._found == self._seen",
        f"{R}::test_all_removed_right_after_the_first_pass_come_back_too",
    ),
    Mistake(
        "what was overwritten is not noticed",
        f"{LUA}/register.lua",
        "  note_change(changes)\n",
        "",
        f"{R}::test_what_was_removed_or_overwritten_or_flushed_comes_back",
    ),
    Mistake(
        "a pause is not given the reason that SQL has",
        f"{LUA}/pause.lua",
        "if anew then",
        "if false then",
        f"{D}::test_another_reason_for_a_pause_is_written_without_resuming",
    ),
    Mistake(
        "a pause is ended to be given another reason",
        "schedules/healing.py",
        "        since = row.paused_since\n",
        "        since = row.paused_since\n        await self._registry.resume([row.name], revisions=under)\n",
        f"{D}::test_another_reason_for_a_pause_is_written_without_resuming",
    ),
    Mistake(
        "the revision of a removal is forgotten with it",
        f"{LUA}/state.lua",
        "redis.call('EXPIRE', record, 600)",
        "redis.call('DEL', record)",
        f"{D}::test_an_old_definition_does_not_bring_back_what_was_removed_since",
    ),
    Mistake(
        "a backfill into a full queue fails as a group",
        "schedules/backfill.py",
        "raise failed.exceptions[0] from None",
        "raise",
        f"{H}::test_a_backfill_into_a_full_queue_says_so_and_when_to_come_back",
    ),
    Mistake(
        "a tenant must begin like a name",
        "schedules/schedule.py",
        'plain = f"_{name[len(tenant) :]}" if tenant and name.startswith(f"{tenant}/") else name',
        "plain = name",
        f"{TENANTS}::test_every_tenant_that_a_key_may_have_may_have_schedules",
    ),
    Mistake(
        "a tenant reads the schedules of another",
        "api/scheduling.py",
        "return fits and self.here.caller.sees(schedule.tenant)",
        "return fits",
        f"{TENANTS}::test_a_name_in_front_does_not_make_it_the_tenants",
    ),
    Mistake(
        "a tenant steers what only looks like its own",
        "api/scheduling.py",
        "if not self.here.caller.sees(found.schedule.tenant):",
        "if False:",
        f"{TENANTS}::test_a_name_in_front_does_not_make_it_the_tenants",
    ),
    Mistake(
        "a page forgets where it was in a large batch",
        "api/scheduling.py",
        "if name > after and family(name) == name",
        "if family(name) == name",
        f"{H}::test_pages_bring_every_schedule_once[25]",
    ),
    Mistake(
        "what the code declares is removed, and comes back",
        "schedules/definitions.py",
        "kept = set[str]() if force else await self._held_by_code(asked)",
        "kept = set[str]()",
        f"{H}::test_one_that_the_code_declares_is_not_removed_but_by_force",
    ),
    Mistake(
        "a failed turn leaves no traceback",
        "schedules/turns.py",
        'why["traceback"] = outcome.failure.traceback',
        "pass",
        f"{T}::test_a_failed_turn_is_logged_with_its_traceback_its_schedule_its_turn_and_its_attempt",
    ),
    Mistake(
        "a good run forgets the last error",
        f"{LUA}/complete.lua",
        "if ARGV[at + 5] ~= '' then redis.call",
        "if true then redis.call",
        f"{T}::test_the_last_error_stays_after_a_good_run_with_its_time",
    ),
    Mistake(
        "every attempt is the first",
        "schedules/acquisition.py",
        "1 + _whole(died)",
        "1",
        f"{T}::test_a_turn_of_a_dead_scheduler_is_the_next_attempt",
    ),
    Mistake(
        "only a turn's own count tells that it has paused its schedule",
        "schedules/turns.py",
        "if word is Ended.PAUSED or (word is Ended.ALREADY and",
        "if (word is not Ended.STALE and",
        f"{T}::test_failures_that_pause_a_schedule_are_logged_also_those_of_parallel_turns[allow]",
    ),
    Mistake(
        "the watchdog knows no schedules",
        "services/scheduler.py",
        "settings.worker.blocked_seconds, self.metrics, _turn_of",
        "settings.worker.blocked_seconds, self.metrics",
        f"{T}::test_the_watchdog_names_the_schedule_whose_turn_blocks",
    ),
    Mistake(
        "the breakers are counted only while Redis answers",
        "schedules/report.py",
        "        self._count_breakers()  # first",
        "        await self._registry.count()\n        self._count_breakers()  # first",
        f"{T}::test_while_redis_is_away_the_breaker_is_in_the_log_and_in_the_metrics",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
