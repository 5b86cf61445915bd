"""The known mistakes around definitions in SQL, the reconcile and what is told, each put back: the test named after it fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake, instead, removed, replaced

D = "tests/integration/schedules/test_definitions.py"
R = "tests/integration/schedules/test_reconcile.py"
H = "tests/integration/api/test_schedules.py"
TENANTS = "tests/integration/api/test_schedules_of_tenants.py"
T = "tests/integration/schedules/test_told.py"

MISTAKES = [
    Mistake(
        "an older definition is written over a newer one",
        replaced("register-newer-revision", "outdated(revision, have[5])", "false"),
        f"{D}::test_an_old_definition_never_overwrites_a_newer_one",
    ),
    Mistake(
        "an older removal removes what is newer",
        replaced("older-revision", "(tonumber(stored) or 0) > (tonumber(revision) or 0)", "false"),
        f"{D}::test_an_old_definition_never_overwrites_a_newer_one",
    ),
    Mistake(
        "SQL takes any revision",
        replaced("sql-newer-revision", "excluded.revision > holdfast_schedules.revision", "1 = 1"),
        "tests/contract/store/test_schedules.py::test_an_older_revision_never_replaces_a_newer_one_and_hears_what_stands[sqlite]",
    ),
    Mistake(
        "what SQL has comes back without its pause",
        removed("register-with-pause"),
        f"{D}::test_a_pause_and_its_reason_survive_a_flush_and_nothing_runs_meanwhile",
    ),
    Mistake(
        "what the code declares comes back without its pause",
        replaced("reconcile-with-pauses", "await self._with_pauses(planned)", "planned"),
        f"{D}::test_a_pause_of_what_the_code_declares_survives_a_flush",
    ),
    Mistake(
        "a removal leaves no tombstone",
        replaced("removal-tombstone", "removed=True", "spec=base.spec"),
        f"{D}::test_a_removed_one_does_not_come_back_with_a_flush",
    ),
    Mistake(
        "a schedule that is done begins anew",
        replaced("finished-schedule-stays", "None if row.done else ", ""),
        f"{D}::test_what_was_done_does_not_happen_again_after_a_flush",
    ),
    Mistake(
        "SQL wins over the code",
        replaced("sql-source-api-only", 'decoded(spec).source == "api"', "bool(decoded(spec))"),
        f"{D}::test_the_code_wins_over_what_was_made_under_the_same_name",
    ),
    Mistake(
        "a Redis that was emptied is taken for what it was",
        replaced("emptied-redis-era", "(era or string.format('%.0f', now_us()))", "'1'"),
        f"{D}::test_nothing_is_compared_while_nothing_has_changed",
    ),
    Mistake(
        "everything is sent again in every pass",
        replaced(
            "reconcile-differing-only",
            "await self._registry.differing(self._digests[start:end])",
            "range(len(self._digests[start:end]))",
        ),
        f"{R}::test_what_has_not_changed_is_sent_once_and_then_not_even_compared",
    ),
    Mistake(
        "an empty Redis counts as unchanged",
        replaced("reconcile-empty-redis", "self._found.changes and ", ""),
        f"{R}::test_all_removed_right_after_the_first_pass_come_back_too",
    ),
    Mistake(
        "what was overwritten is not noticed",
        removed("register-notes-change"),
        f"{R}::test_what_was_removed_or_overwritten_or_flushed_comes_back",
    ),
    Mistake(
        "a pause is not given the reason that SQL has",
        replaced("pause-reason-replaced", "anew", "false"),
        f"{D}::test_another_reason_for_a_pause_is_written_without_resuming",
    ),
    Mistake(
        "a pause is ended to be given another reason",
        instead(
            "pause-reason-without-resume",
            "since = row.paused_since\nawait self._registry.resume([row.name], revisions=under)",
        ),
        f"{D}::test_another_reason_for_a_pause_is_written_without_resuming",
    ),
    Mistake(
        "the revision of a removal is forgotten with it",
        replaced("removal-revision-kept", "'EXPIRE', record, 600", "'DEL', record"),
        f"{D}::test_an_old_definition_does_not_bring_back_what_was_removed_since",
    ),
    Mistake(
        "a backfill into a full queue fails as a group",
        replaced("backfill-first-error", " failed.exceptions[0] from None", ""),
        f"{H}::test_a_backfill_into_a_full_queue_says_so_and_when_to_come_back",
    ),
    Mistake(
        "a tenant must begin like a name",
        replaced(
            "tenant-prefix", 'f"_{name[len(tenant) :]}" if tenant and name.startswith(f"{tenant}/") else ', ""
        ),
        f"{TENANTS}::test_every_tenant_that_a_key_may_have_may_have_schedules",
    ),
    Mistake(
        "a tenant reads the schedules of another",
        replaced("schedule-list-own-tenant", " and self._caller.sees(found.tenant)", ""),
        f"{TENANTS}::test_a_name_in_front_does_not_make_it_the_tenants",
    ),
    Mistake(
        "a tenant steers what only looks like its own",
        replaced("schedule-change-own-tenant", " if self._caller.sees(each.tenant)", ""),
        f"{TENANTS}::test_a_name_in_front_does_not_make_it_the_tenants",
    ),
    Mistake(
        "a page forgets where it was in a large batch",
        replaced("schedule-page-position", "name > after and ", ""),
        f"{H}::test_pages_bring_every_schedule_once[25]",
    ),
    Mistake(
        "what the code declares is removed, and comes back",
        replaced("declared-schedule-kept", " if force else await self._held_by_code(asked)", ""),
        f"{H}::test_one_that_the_code_declares_is_not_removed_but_by_force",
    ),
    Mistake(
        "a failed turn leaves no traceback",
        removed("failed-turn-traceback"),
        f"{T}::test_a_failed_turn_is_logged_with_its_traceback_its_schedule_its_turn_and_its_attempt",
    ),
    Mistake(
        "a good run forgets the last error",
        replaced("last-error-kept", "ARGV[at + 5] ~= ''", "true"),
        f"{T}::test_the_last_error_stays_after_a_good_run_with_its_time",
    ),
    Mistake(
        "every attempt is the first",
        replaced("acquired-attempt", " + _whole(died)", ""),
        f"{T}::test_a_turn_of_a_dead_scheduler_is_the_next_attempt",
    ),
    Mistake(
        "only a turn's own count tells that it has paused its schedule",
        replaced(
            "pause-reported",
            "reply is Ended.PAUSED or (reply is Ended.ALREADY and 0 < completion.pause_after <= completion.streak)",
            "(reply is not Ended.STALE and 0 < completion.pause_after <= completion.streak)",
        ),
        f"{T}::test_failures_that_pause_a_schedule_are_logged_also_those_of_parallel_turns[allow]",
    ),
    Mistake(
        "the watchdog knows no schedules",
        replaced("watchdog-names-schedule", ", _turn_of", ""),
        f"{T}::test_the_watchdog_names_the_schedule_whose_turn_blocks",
    ),
    Mistake(
        "the breakers are counted only while Redis answers",
        instead("breakers-counted-first", "await self._registry.count()\nself._count_breakers()"),
        f"{T}::test_while_redis_is_away_the_breaker_is_in_the_log_and_in_the_metrics",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
