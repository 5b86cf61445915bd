"""The known mistakes around the HTTP API, each put back: the test named after it fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake, instead, removed, replaced

A = "tests/integration/api/test_auth.py"
B = "tests/integration/api/test_batch.py"
C = "tests/integration/api/test_connection.py"
E = "tests/integration/api/test_events.py"
N = "tests/integration/api/test_nouns.py"
P = "tests/integration/api/test_process.py"
X = "tests/integration/api/test_execute.py"
CLIENT = "tests/contract/client/test_client_contract.py"
HUB = "tests/integration/events/test_hub.py"

S = "tests/integration/api/test_unserved.py"
U = "tests/unit/test_api_unserved.py"
AGENTS = "tests/integration/api/test_agents.py"

UNSERVED = [
    Mistake(
        "a system that was scaled to zero is reported",
        replaced("unserved-only-with-waiting-runs", "need.undelivered + need.due > 0", "True"),
        f"{U}::test_a_system_that_was_scaled_to_zero_is_never_reported",
    ),
    Mistake(
        "an outage of Redis counts as time without a worker",
        removed("unserved-not-during-outage"),
        f"{U}::test_while_redis_does_not_answer_no_time_passes_and_no_report_ends",
    ),
    Mistake(
        "the report of a queue ends because the queue can't be read",
        replaced("unserved-unread-stays-reported", "name in unread", "False"),
        f"{U}::test_a_queue_that_can_not_be_read_stays_reported_and_its_time_begins_anew",
    ),
    Mistake(
        "one damaged queue turns the report off for all queues",
        replaced("unserved-queue-by-queue", "[queue]", "queues"),
        f"{S}::test_a_damaged_queue_is_named_once_and_the_others_are_still_reported",
    ),
    Mistake(
        "nothing says why a consumer group is missing",
        removed("group-errors-logged"),
        f"{S}::test_why_a_consumer_group_can_not_be_made_is_logged_once_for_its_queue",
    ),
]
RECEIVERS = [
    Mistake(
        "a webhook in our own network is accepted by its name, and all its events are given up",
        replaced("webhook-private-names", "_is_private_name(host)", "host.endswith('localhost')"),
        f"{X}::test_a_webhook_into_our_own_network_is_refused_and_not_dropped_later",
    ),
]
TIME_AND_SIZE = [
    Mistake(
        "a head may take for ever",
        replaced("head-timeout", "not self._headed and self._head_bytes", "False"),
        f"{C}::test_a_head_that_does_not_end_is_timed_out",
    ),
    Mistake(
        "every byte buys more time",
        replaced("request-timer-once", "elif self._arriving is None:", "else:\n    self._arrived()"),
        f"{C}::test_a_head_that_trickles_is_timed_out_all_the_same",
    ),
    Mistake(
        "a connection without a word stays",
        removed("silent-connection-closed"),
        f"{C}::test_a_connection_without_a_word_is_closed",
    ),
    Mistake(
        "a body may take for ever",
        replaced("body-timeout", "not cycle.response_started", "False"),
        f"{C}::test_a_body_that_does_not_end_is_timed_out",
    ),
    Mistake(
        "a request has the time of the one before it",
        replaced("request-timer-reset", "self._whole", "False"),
        f"{C}::test_a_long_wait_for_a_result_is_no_slow_request",
    ),
    Mistake(
        "a large head in one piece is let in",
        removed("large-head-refused"),
        f"{C}::test_a_large_head_is_refused_whether_it_comes_at_once_or_never_ends",
    ),
    Mistake(
        "a head that never ends is kept",
        replaced(
            "endless-head-limit",
            "not self._headed and self._head_bytes > self._settings.max_head_bytes",
            "False",
        ),
        f"{C}::test_a_large_head_is_refused_whether_it_comes_at_once_or_never_ends",
    ),
    Mistake(
        "a body is taken for a part of the head",
        replaced("head-size-without-body", "self._head_size() > self._settings.max_head_bytes", "True"),
        f"{C}::test_a_large_head_is_refused_whether_it_comes_at_once_or_never_ends",
    ),
    Mistake(
        "a body is read before its length is",
        removed("content-length-limit"),
        f"{X}::test_a_body_that_says_that_it_is_too_large_is_refused_before_it_comes",
    ),
    Mistake(
        "a body without a length has no limit",
        replaced("body-read-limit", "self._read > self._limit", "False"),
        f"{X}::test_a_body_is_refused_while_it_is_read",
    ),
    Mistake(
        "what was not read of a body is taken for the next request",
        replaced("too-large-closes-connection", ', headers={"Connection": "close"}', ""),
        f"{X}::test_a_body_is_refused_while_it_is_read",
    ),
]

STREAMS = [
    Mistake(
        "a client that takes nothing is waited for",
        replaced("stalled-client-aborted", "abort", "close"),
        f"{C}::test_a_client_that_takes_nothing_is_dropped",
    ),
    Mistake(
        "a client that takes slowly is dropped",
        replaced("slow-client-kept", "self._left() < self._untaken", "False"),
        f"{C}::test_a_client_that_reads_slowly_is_not_dropped",
    ),
    Mistake(
        "a process that leaves is patient",
        removed("drain-write-timeout"),
        f"{C}::test_clients_that_never_read_cost_little_and_hold_up_nobody",
    ),
    Mistake(
        "a page has any number of bytes",
        replaced("feed-page-bytes", "PAGE_BYTES", "1 << 40"),
        f"{HUB}::test_a_page_ends_where_its_bytes_do",
    ),
    Mistake(
        "a page of large events is kept for every client that does not read",
        replaced("feed-page-bytes", "PAGE_BYTES", "1 << 40"),
        f"{C}::test_clients_that_never_read_cost_little_and_hold_up_nobody",
    ),
    Mistake(
        "any number of bytes is kept for a follower",
        replaced("hub-buffer-bytes", " or self._size + size > _BUFFERED_BYTES", ""),
        f"{HUB}::test_little_is_kept_of_large_events_for_a_follower_that_does_not_come",
    ),
    Mistake(
        "the hub reads large events by their number",
        replaced("hub-read-count", "count=1", "count=50"),
        f"{HUB}::test_large_events_of_many_feeds_are_read_a_few_at_a_time",
    ),
    Mistake(
        "the hub waits for feeds of which it has more to read",
        replaced("hub-wait-without-full", "set(full)", "set[str]()"),
        f"{HUB}::test_large_events_of_many_feeds_are_read_a_few_at_a_time",
    ),
    Mistake(
        "a page of many feeds has any number of bytes",
        replaced("feed-page-bytes", "PAGE_BYTES", "PAGE_BYTES * len(after)"),
        f"{HUB}::test_large_events_of_many_feeds_are_read_a_few_at_a_time",
    ),
    Mistake(
        "the hub reads small events one by one",
        replaced("hub-full-feeds", "feed in earlier or size > PAGE_BYTES", "False"),
        f"{HUB}::test_many_small_events_are_read_many_at_a_time",
    ),
    Mistake(
        "the hub asks for more of what was brought in one",
        replaced("hub-full-feeds", "feed in earlier or size > PAGE_BYTES", "True"),
        f"{HUB}::test_one_reading_brings_an_event_to_its_followers",
    ),
    Mistake(
        "a feed is waited for by the number of its events",
        replaced("feed-follow-count", "count=1", "count=PAGE"),
        "tests/integration/events/test_feed.py::test_large_events_are_followed_a_few_at_a_time",
    ),
    Mistake(
        "a silent stream is silent",
        replaced("stream-keep-alive", "self._keep_alive_seconds", "None"),
        f"{E}::test_a_silent_stream_says_that_it_lives",
    ),
    Mistake(
        "a stream goes on for a client that has gone",
        removed("stream-client-gone"),
        f"{E}::test_streams_are_counted_while_they_are_open",
    ),
    Mistake(
        "a stream keeps a process that leaves",
        replaced("stream-ends-on-drain", "leaving.done()", "False"),
        f"{P}::test_a_leaving_api_ends_streams_with_a_hint_and_finishes_what_is_open",
    ),
    Mistake(
        "events that are not kept any more are those of nobody",
        replaced("expired-events", "expired(await self.archived(run_id, queue))", "_missing(run_id, queue)"),
        f"{N}::test_archived_runs_end_the_list_and_are_read_like_others",
    ),
    Mistake(
        "what has expired is told as not found",
        replaced(
            "events-expired-status",
            'Kind(EventsExpired, 410, "events-expired", "The events are not kept any more"),',
            "",
        ),
        f"{N}::test_archived_runs_end_the_list_and_are_read_like_others",
    ),
]

PAST = [
    Mistake(
        "a run that left Redis was never there",
        replaced(
            "archived-run-unchangeable",
            "unchangeable(await self.archived(run_id, queue), change)",
            "_missing(run_id, queue)",
        ),
        f"{N}::test_archived_runs_end_the_list_and_are_read_like_others",
    ),
    Mistake(
        "a run of another tenant with the same id hides an archived one",
        replaced(
            "archived-run-same-id",
            '(submitted_ms, tenant) == (f"{run.submitted_at * 1000:.0f}", run.tenant)',
            'submitted_ms == f"{run.submitted_at * 1000:.0f}"',
        ),
        f"{N}::test_a_run_of_the_same_id_hides_no_archived_one",
    ),
    Mistake(
        "a later run with the same id hides an archived one",
        replaced(
            "archived-run-same-id",
            '(submitted_ms, tenant) == (f"{run.submitted_at * 1000:.0f}", run.tenant)',
            "tenant == run.tenant",
        ),
        f"{N}::test_a_run_of_the_same_id_hides_no_archived_one",
    ),
    Mistake(
        "a client over Redis forgets what left it",
        replaced("archived-run-found", "found is None", "True"),
        f"{CLIENT}::test_a_run_that_only_the_archive_has_is_known_and_unchangeable[redis]",
    ),
    Mistake(
        "the archive forgets why a run was cancelled",
        replaced("archived-cancel-reason", "error.message if error is not None and has_reason else ", ""),
        f"{CLIENT}::test_an_archived_run_tells_why_it_was_cancelled[redis]",
    ),
    Mistake(
        "a run that leaves Redis while a client waits for it was never there",
        replaced("awaited-run-archived-client", "await self._past(run_id, missing)", "await self.get('')"),
        f"{CLIENT}::test_a_run_that_leaves_redis_while_it_is_waited_for_is_found_in_the_archive[redis]",
    ),
    Mistake(
        "a run that leaves Redis while a request waits for it was never there",
        instead(
            "awaited-run-archived-api",
            "if found is None:\n    raise _missing(run.id, run.queue)\nrun = found[1]",
        ),
        f"{CLIENT}::test_a_run_that_leaves_redis_while_it_is_waited_for_is_found_in_the_archive[http]",
    ),
    Mistake(
        "a client over Redis fails for a database that it does not need",
        replaced("archive-unavailable-client", "UNASKED", "ZeroDivisionError"),
        "tests/integration/runs/test_past.py::test_a_client_says_that_the_archive_could_not_be_asked[away]",
    ),
    Mistake(
        "a request is told of any trouble but not of the archive",
        replaced("archive-unavailable-api", "UNASKED", "ZeroDivisionError"),
        "tests/integration/runs/test_past.py::test_the_api_says_that_the_archive_can_not_be_asked",
    ),
]

BATCHES = [
    Mistake(
        "one bad run refuses the batch",
        replaced("batch-item-refused", "HoldfastError", "ZeroDivisionError"),
        f"{B}::test_what_is_wrong_with_one_is_no_others_fault",
    ),
    Mistake(
        "a batch has any number of runs",
        replaced("batch-max-runs", ", max_length=BATCH_MOST", ""),
        f"{B}::test_a_batch_is_bounded_in_count_and_bytes",
    ),
    Mistake(
        "a batch of two queues forgets what one of them has accepted",
        replaced("batch-accepted-kept", "not any(item.run is not None for item in items.values())", "True"),
        f"{B}::test_what_one_queue_has_accepted_is_told_though_the_other_can_not_be_reached",
    ),
    Mistake(
        "a batch shows the run of another tenant",
        replaced("batch-run-of-tenant", "not self._caller.sees(run.tenant)", "False"),
        f"{B}::test_a_tenants_batch_is_its_own",
    ),
    Mistake(
        "a full queue does not say when to come back",
        replaced("batch-retry-after", "problems.retry_after(exc)", "0"),
        f"{B}::test_a_full_queue_refuses_the_rest_and_says_when_to_come_back",
    ),
]

WHO_CALLS = [
    Mistake(
        "everybody is told where Redis is",
        replaced("server-address-hidden", " if candid else _discreet(status, request_id, exc)", ""),
        f"{B}::test_only_operators_are_told_where_redis_is",
    ),
    Mistake(
        "an operator of one tenant is told where Redis is",
        replaced("server-address-for-operators", "not self.tenant and ", ""),
        f"{B}::test_only_operators_are_told_where_redis_is",
    ),
    Mistake(
        "whoever only looks is told where Redis is",
        replaced("server-address-for-operators", " and OPERATE in self.roles", ""),
        f"{B}::test_only_operators_are_told_where_redis_is",
    ),
    Mistake(
        "keys are compared until the first difference",
        replaced("api-key-constant-time", "hmac.compare_digest(known, given)", "known == given"),
        f"{A}::test_every_key_is_compared_in_constant_time",
    ),
    Mistake(
        "keys are compared until one fits",
        instead("api-key-no-early-exit", "found = caller\nbreak"),
        f"{A}::test_every_key_is_compared_in_constant_time",
    ),
    Mistake(
        "without keys anybody may call",
        removed("keyless-local-only"),
        f"{A}::test_without_keys_others_are_told_how_to_be_let_in",
    ),
    Mistake(
        "without keys any web page calls by its own name for us",
        replaced(
            "keyless-browser-origin", "(_local_name(host) and _local_origin(origin))", "_local_origin(origin)"
        ),
        f"{A}::test_without_keys_no_web_page_speaks_through_a_browser",
    ),
    Mistake(
        "without keys any web page calls",
        replaced(
            "keyless-browser-origin", "(_local_name(host) and _local_origin(origin))", "_local_name(host)"
        ),
        f"{A}::test_without_keys_no_web_page_speaks_through_a_browser",
    ),
    Mistake(
        "a connection that has gone is a unix socket",
        replaced("unix-peer", ' if server and server[1] is None else "unknown"', ""),
        f"{A}::test_a_connection_that_has_gone_is_not_taken_for_a_unix_socket",
    ),
    Mistake(
        "an API without keys listens to others",
        replaced(
            "keyless-listen-loopback",
            "settings.keys or settings.open or is_loopback_host(settings.host)",
            "True",
        ),
        f"{A}::test_an_api_without_keys_does_not_listen_to_others",
    ),
    Mistake(
        "everybody sees the operator's tracebacks",
        replaced("traceback-for-operators", ' if caller.operates else ""', ""),
        f"{A}::test_only_operators_see_a_traceback",
    ),
    Mistake(
        "a tenant reads the runs of another",
        replaced("tenant-sees-own", "not self.tenant or self.tenant == tenant", "True"),
        f"{A}::test_another_tenants_run_does_not_exist",
    ),
    Mistake(
        "a tenant sees and delivers the undelivered events of another",
        replaced("undelivered-of-tenant", "not tenant or event.tenant == tenant", "True"),
        f"{A}::test_undelivered_events_belong_to_their_tenant",
    ),
    Mistake(
        "a tenant is shown the names of the workers",
        replaced("served-by-hidden", "served_by=[]", "served_by=each.served_by"),
        f"{AGENTS}::test_a_tenant_sees_the_agents_but_not_the_names_of_workers",
    ),
    Mistake(
        "a route asks for no role",
        replaced("route-role", "role not in self.roles", "False"),
        f"{A}::test_every_route_asks_for_a_key_and_a_role",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = [*TIME_AND_SIZE, *RECEIVERS, *STREAMS, *PAST, *BATCHES, *WHO_CALLS, *UNSERVED]
