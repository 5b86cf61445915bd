"""The known mistakes around the HTTP API, each put back: the test named after it fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake

A = "tests/integration/api/test_auth.py"
B = "tests/integration/api/test_batch.py"
C = "tests/integration/api/test_connection.py"
E = "tests/integration/api/test_events.py"
N = "tests/integration/api/test_nouns.py"
P = "tests/integration/api/test_process.py"
X = "tests/integration/api/test_execute.py"
CLIENT = "tests/contract/client/test_client_contract.py"
HUB = "tests/integration/events/test_hub.py"

TIME_AND_SIZE = [
    Mistake(
        "a head may take for ever",
        "api/connection.py",
        "elif not self._headed and self._head_bytes:",
        "elif False:",
        f"{C}::test_a_head_that_does_not_end_is_timed_out",
    ),
    Mistake(
        "every byte buys more time",
        "api/connection.py",
        "        elif self._arriving is None:\n            self._expect()\n",
        "        else:\n            self._arrived()\n            self._expect()\n",
        f"{C}::test_a_head_that_trickles_is_timed_out_all_the_same",
    ),
    Mistake(
        "a connection without a word stays",
        "api/connection.py",
        "self.transport.close()  # nothing was said at all",
        "pass  # nothing was said at all",
        f"{C}::test_a_connection_without_a_word_is_closed",
    ),
    Mistake(
        "a body may take for ever",
        "api/connection.py",
        "elif not cycle.response_started:",
        "elif False:",
        f"{C}::test_a_body_that_does_not_end_is_timed_out",
    ),
    Mistake(
        "a request has the time of the one before it",
        "api/connection.py",
        "        if self._whole:\n            self._arrived()\n        elif",
        "        if",
        f"{C}::test_a_long_wait_for_a_result_is_no_slow_request",
    ),
    Mistake(
        "a large head in one piece is let in",
        "api/connection.py",
        "self.app = self._answer_too_large",
        "pass",
        f"{C}::test_a_large_head_is_refused_whether_it_comes_at_once_or_never_ends",
    ),
    Mistake(
        "a head that never ends is kept",
        "api/connection.py",
        "elif not self._headed and self._head_bytes > self._settings.max_head_bytes:",
        "elif False:",
        f"{C}::test_a_large_head_is_refused_whether_it_comes_at_once_or_never_ends",
    ),
    Mistake(
        "a body is taken for a part of the head",
        "api/connection.py",
        "and self._head_size() > self._settings.max_head_bytes",
        "and True",
        f"{C}::test_a_large_head_is_refused_whether_it_comes_at_once_or_never_ends",
    ),
    Mistake(
        "a body is read before its length is",
        "api/door.py",
        "raise TooLarge(self._limit)  # noqa: TRY301  answered as any other error",
        "pass",
        f"{X}::test_a_body_that_says_that_it_is_too_large_is_refused_before_it_comes",
    ),
    Mistake(
        "a body without a length has no limit",
        "api/door.py",
        "if self._read > self._limit:",
        "if False:",
        f"{X}::test_a_body_is_refused_while_it_is_read",
    ),
    Mistake(
        "what was not read of a body is taken for the next request",
        "api/door.py",
        'super().__init__(413, detail, headers={"Connection": "close"})',
        "super().__init__(413, detail)",
        f"{X}::test_a_body_is_refused_while_it_is_read",
    ),
]

STREAMS = [
    Mistake(
        "a client that takes nothing is waited for",
        "api/connection.py",
        "        # To close would wait for it to take what is left.\n        self.transport.abort()",
        "        self.transport.close()",
        f"{C}::test_a_client_that_takes_nothing_is_dropped",
    ),
    Mistake(
        "a client that takes slowly is dropped",
        "api/connection.py",
        "if self._left() < self._untaken:",
        "if False:",
        f"{C}::test_a_client_that_reads_slowly_is_not_dropped",
    ),
    Mistake(
        "a process that leaves is patient",
        "api/connection.py",
        "self._patience = min(self._patience, _LEAVING_SECONDS)",
        "pass",
        f"{C}::test_clients_that_never_read_cost_little_and_hold_up_nobody",
    ),
    Mistake(
        "a page has any number of bytes",
        "events/feed.py",
        "[limit, PAGE_BYTES, *after.values()]",
        "[limit, 1 << 40, *after.values()]",
        f"{HUB}::test_a_page_ends_where_its_bytes_do",
    ),
    Mistake(
        "a page of large events is kept for every client that does not read",
        "events/feed.py",
        "[limit, PAGE_BYTES, *after.values()]",
        "[limit, 1 << 40, *after.values()]",
        f"{C}::test_clients_that_never_read_cost_little_and_hold_up_nobody",
    ),
    Mistake(
        "any number of bytes is kept for a follower",
        "events/hub.py",
        " or self._size + size > _KEPT_BYTES",
        "",
        f"{HUB}::test_little_is_kept_of_large_events_for_a_follower_that_does_not_come",
    ),
    Mistake(
        "the hub reads large events by their number",
        "events/hub.py",
        "reader.xread(feeds, count=1, block=block_ms)",
        "reader.xread(feeds, count=50, block=block_ms)",
        f"{HUB}::test_large_events_of_many_feeds_are_read_a_few_at_a_time",
    ),
    Mistake(
        "the hub waits for feeds of which it has more to read",
        "events/hub.py",
        "without=set(full))",
        "without=set[str]())",
        f"{HUB}::test_large_events_of_many_feeds_are_read_a_few_at_a_time",
    ),
    Mistake(
        "a page of many feeds has any number of bytes",
        "events/feed.py",
        "[limit, PAGE_BYTES, *after.values()]",
        "[limit, PAGE_BYTES * len(after), *after.values()]",
        f"{HUB}::test_large_events_of_many_feeds_are_read_a_few_at_a_time",
    ),
    Mistake(
        "the hub reads small events one by one",
        "events/hub.py",
        "if feed in spoke or size > PAGE_BYTES",
        "if False",
        f"{HUB}::test_many_small_events_are_read_many_at_a_time",
    ),
    Mistake(
        "the hub asks for more of what was brought in one",
        "events/hub.py",
        "if feed in spoke or size > PAGE_BYTES",
        "if True",
        f"{HUB}::test_one_reading_brings_an_event_to_its_followers",
    ),
    Mistake(
        "a feed is waited for by the number of its events",
        "events/feed.py",
        "reader.xread(streams, count=1, block=block_ms)",
        "reader.xread(streams, count=PAGE, block=block_ms)",
        "tests/integration/events/test_feed.py::test_large_events_are_followed_a_few_at_a_time",
    ),
    Mistake(
        "a silent stream is silent",
        "api/events.py",
        "timeout=self._keep_alive_seconds,",
        "timeout=None,",
        f"{E}::test_a_silent_stream_says_that_it_lives",
    ),
    Mistake(
        "a stream goes on for a client that has gone",
        "api/events.py",
        "                if left.done():\n                    return False\n",
        "",
        f"{E}::test_streams_are_counted_while_they_are_open",
    ),
    Mistake(
        "a stream keeps a process that leaves",
        "api/events.py",
        "elif leaving.done():",
        "elif False:",
        f"{P}::test_a_leaving_api_ends_streams_with_a_hint_and_finishes_what_is_open",
    ),
    Mistake(
        "events that are not kept any more are those of nobody",
        "api/events.py",
        "raise expired(await here.past(run_id, queue))",
        "raise here._missing(run_id, queue)",
        f"{N}::test_archived_runs_end_the_list_and_are_read_like_others",
    ),
    Mistake(
        "what has expired is told as not found",
        "api/problems.py",
        '    (EventsExpired, 410, "events-expired", "The events are not kept any more"),\n',
        "",
        f"{N}::test_archived_runs_end_the_list_and_are_read_like_others",
    ),
]

PAST = [
    Mistake(
        "a run that left Redis was never there",
        "api/access.py",
        "raise unchangeable(await self.past(run_id, queue), change)",
        "raise self._missing(run_id, queue)",
        f"{N}::test_archived_runs_end_the_list_and_are_read_like_others",
    ),
    Mistake(
        "a run of another tenant with the same id hides an archived one",
        "api/access.py",
        '(submitted_ms, tenant) == (f"{run.submitted_at * 1000:.0f}", run.tenant)',
        'submitted_ms == f"{run.submitted_at * 1000:.0f}"',
        f"{N}::test_a_run_of_the_same_id_hides_no_archived_one",
    ),
    Mistake(
        "a later run with the same id hides an archived one",
        "api/access.py",
        '(submitted_ms, tenant) == (f"{run.submitted_at * 1000:.0f}", run.tenant)',
        "tenant == run.tenant",
        f"{N}::test_a_run_of_the_same_id_hides_no_archived_one",
    ),
    Mistake(
        "a client over Redis forgets what left it",
        "runs/past.py",
        "    if found is None:\n        raise missing",
        "    if True:\n        raise missing",
        f"{CLIENT}::test_a_run_that_only_the_archive_has_is_known_and_unchangeable[redis]",
    ),
    Mistake(
        "the archive forgets why a run was cancelled",
        "runs/past.py",
        'cancel=error.message if error is not None and told else "",',
        'cancel="",',
        f"{CLIENT}::test_an_archived_run_tells_why_it_was_cancelled[redis]",
    ),
    Mistake(
        "a run that leaves Redis while a client waits for it was never there",
        "client/overredis.py",
        "with contextlib.suppress(NotFound):",
        "with contextlib.nullcontext():",
        f"{CLIENT}::test_a_run_that_leaves_redis_while_it_is_waited_for_is_found_in_the_archive[redis]",
    ),
    Mistake(
        "a run that leaves Redis while a request waits for it was never there",
        "api/runs.py",
        "await here.past(run.id, run.queue)",
        "(_ for _ in ()).throw(here._missing(run.id, run.queue))",
        f"{CLIENT}::test_a_run_that_leaves_redis_while_it_is_waited_for_is_found_in_the_archive[http]",
    ),
    Mistake(
        "a client over Redis fails for a database that it does not need",
        "runs/past.py",
        "except UNASKED as exc:",
        "except ZeroDivisionError as exc:",
        "tests/integration/runs/test_past.py::test_a_client_says_that_the_archive_could_not_be_asked[away]",
    ),
    Mistake(
        "a request is told of any trouble but not of the archive",
        "api/access.py",
        "except UNASKED as exc:",
        "except ZeroDivisionError as exc:",
        "tests/integration/runs/test_past.py::test_the_api_says_that_the_archive_can_not_be_asked",
    ),
]

BATCHES = [
    Mistake(
        "one bad run refuses the batch",
        "api/batch.py",
        "        except HoldfastError as exc:\n            items[at] = _refused(here, exc, request_id)\n"
        "        else:\n            wanted",
        "        except ZeroDivisionError:\n            pass\n        else:\n            wanted",
        f"{B}::test_what_is_wrong_with_one_is_no_others_fault",
    ),
    Mistake(
        "a batch has any number of runs",
        "api/batch.py",
        "Meta(min_length=1, max_length=BATCH_MOST)",
        "Meta(min_length=1)",
        f"{B}::test_a_batch_is_bounded_in_count_and_bytes",
    ),
    Mistake(
        "a batch of two queues forgets what one of them has accepted",
        "api/batch.py",
        "if not any(item.run is not None for item in items.values()):",
        "if True:",
        f"{B}::test_what_one_queue_has_accepted_is_told_though_the_other_can_not_be_reached",
    ),
    Mistake(
        "a batch shows the run of another tenant",
        "api/execute.py",
        "if not here.caller.sees(run.tenant):",
        "if False:",
        f"{B}::test_a_tenants_batch_is_its_own",
    ),
    Mistake(
        "a full queue does not say when to come back",
        "api/batch.py",
        "retry_after=problems.retry_after(exc)",
        "retry_after=0",
        f"{B}::test_a_full_queue_refuses_the_rest_and_says_when_to_come_back",
    ),
]

WHO_CALLS = [
    Mistake(
        "everybody is told where Redis is",
        "api/problems.py",
        "str(exc) if candid else _discreet(status, request_id, exc)",
        "str(exc)",
        f"{B}::test_only_operators_are_told_where_redis_is",
    ),
    Mistake(
        "an operator of one tenant is told where Redis is",
        "api/auth.py",
        "return not self.tenant and OPERATE in self.roles",
        "return OPERATE in self.roles",
        f"{B}::test_only_operators_are_told_where_redis_is",
    ),
    Mistake(
        "whoever only looks is told where Redis is",
        "api/auth.py",
        "return not self.tenant and OPERATE in self.roles",
        "return not self.tenant",
        f"{B}::test_only_operators_are_told_where_redis_is",
    ),
    Mistake(
        "keys are compared until the first difference",
        "api/auth.py",
        "hmac.compare_digest(known, given)",
        "known == given",
        f"{A}::test_every_key_is_compared_in_constant_time",
    ),
    Mistake(
        "keys are compared until one fits",
        "api/auth.py",
        "                found = caller\n",
        "                found = caller\n                break\n",
        f"{A}::test_every_key_is_compared_in_constant_time",
    ),
    Mistake(
        "without keys anybody may call",
        "api/auth.py",
        "            _require_this_machine(scope, headers)\n",
        "            pass\n",
        f"{A}::test_without_keys_others_are_told_how_to_be_let_in",
    ),
    Mistake(
        "without keys any web page calls by its own name for us",
        "api/auth.py",
        "(_local_name(host) and _local_origin(origin))",
        "_local_origin(origin)",
        f"{A}::test_without_keys_no_web_page_speaks_through_a_browser",
    ),
    Mistake(
        "without keys any web page calls",
        "api/auth.py",
        "(_local_name(host) and _local_origin(origin))",
        "_local_name(host)",
        f"{A}::test_without_keys_no_web_page_speaks_through_a_browser",
    ),
    Mistake(
        "a connection that has gone is a unix socket",
        "api/auth.py",
        'return "unix" if server and server[1] is None else "unknown"',
        'return "unix"',
        f"{A}::test_a_connection_that_has_gone_is_not_taken_for_a_unix_socket",
    ),
    Mistake(
        "an API without keys listens to others",
        "api/auth.py",
        "if settings.keys or settings.open or is_loopback_host(settings.host):",
        "if True:",
        f"{A}::test_an_api_without_keys_does_not_listen_to_others",
    ),
    Mistake(
        "everybody sees the operator's tracebacks",
        "api/access.py",
        'fault.traceback if self.caller.operates else ""',
        "fault.traceback",
        f"{A}::test_only_operators_see_a_traceback",
    ),
    Mistake(
        "a tenant reads the runs of another",
        "api/auth.py",
        "return not self.tenant or self.tenant == tenant",
        "return True",
        f"{A}::test_another_tenants_run_does_not_exist",
    ),
    Mistake(
        "a route asks for no role",
        "api/auth.py",
        "if role not in self.roles:",
        "if False:",
        f"{A}::test_every_route_asks_for_a_key_and_a_role",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = [*TIME_AND_SIZE, *STREAMS, *PAST, *BATCHES, *WHO_CALLS]
