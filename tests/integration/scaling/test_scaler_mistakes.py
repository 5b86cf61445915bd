"""Known mistakes of the scaler, each put back: the test that guards against it must fail."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake, instead, removed, replaced

CALLS = "tests/integration/scaling/test_scaler.py"
STREAMS = "tests/integration/scaling/test_scaler_streams.py"
PROCESS = "tests/integration/scaling/test_scaler_process.py"
AUTOSCALER = "tests/integration/scaling/test_autoscaler.py"


POLICY = "tests/unit/scaling/test_policy.py"


class TestScaler(KnownMistakes):
    mistakes = [
        Mistake(
            "a stop of the autoscaler is lost when work arrives at the same moment",
            instead("stop-beside-arrival", "await asyncio.wait_for(self._look.wait(), self._poll_seconds)"),
            f"{AUTOSCALER}::test_a_stop_that_comes_with_an_arrival_is_not_lost",
        ),
        Mistake(
            "old runs ask for workers that none of them can use",
            replaced("demand-within-runs", "min(wanting, math.ceil(runs / slots) * slots)", "wanting"),
            f"{POLICY}::test_old_runs_bring_no_worker_that_none_of_them_can_use",
        ),
        Mistake(
            "only polls tell of work",
            replaced("wake-by-read", "lanes", "False"),
            f"{STREAMS}::test_a_submit_wakes_a_stream_without_any_poll",
        ),
        Mistake(
            "a reader begins where the lanes end when it begins",
            replaced("wake-read-position", "lanes", 'dict.fromkeys(lanes, "$")'),
            f"{STREAMS}::test_what_comes_between_the_look_and_the_block_is_not_missed",
        ),
        Mistake(
            "a reader that blocks does not learn of new streams",
            removed("new-stream-wakes-reader"),
            f"{STREAMS}::test_a_stream_that_joins_is_watched_at_once",
        ),
        Mistake(
            "lanes with work are waited for",
            replaced("wake-idle-queues-only", " if not listener.active", ""),
            f"{STREAMS}::test_a_hundred_streams_are_one_blocked_connection",
        ),
        Mistake(
            "work that is no news is looked at without a rest",
            replaced(
                "wake-pause-grows", "min(max(2 * pause, _FIRST_PAUSE_SECONDS), self._poll_seconds)", "0.0"
            ),
            f"{STREAMS}::test_work_below_the_activation_does_not_keep_us_busy",
        ),
        Mistake(
            "entries that stay are read again and again",
            replaced("wake-read-position", "lanes", 'dict.fromkeys(lanes, "0")'),
            f"{STREAMS}::test_entries_that_stay_do_not_keep_us_busy",
        ),
        Mistake(
            "streams that have left are kept",
            removed("closed-stream-discarded"),
            f"{STREAMS}::test_streams_that_leave_are_forgotten",
        ),
        Mistake(
            "what has changed there and back is told again",
            replaced("wake-on-change", "self.active is not self._sent", "True"),
            f"{STREAMS}::test_what_has_changed_there_and_back_is_not_told_again",
        ),
        Mistake(
            "a connection that is lost is not made again",
            replaced("wake-reconnects", "waiting.expired()", "not waiting.expired():\n    raise\nif True"),
            f"{STREAMS}::test_a_reader_that_is_cut_off_is_not_the_end",
        ),
        Mistake(
            "only the first partition wakes",
            replaced("wake-all-partitions", "queue.partitions", "queue.partitions[:1]"),
            f"{STREAMS}::test_every_partition_wakes_a_stream",
        ),
        Mistake(
            "lanes whose ends could not be read are looked at with the next poll",
            replaced("unwatched-lanes-soon", "bool(idle) and not lanes", "False"),
            f"{STREAMS}::test_lanes_whose_ends_could_not_be_told_are_watched_soon",
        ),
        Mistake(
            "a cluster is read as one server",
            replaced("wake-cluster-readers", "not isinstance(self._redis, Cluster)", "True"),
            f"{PROCESS}::test_queues_and_partitions_on_different_nodes_wake_their_streams",
        ),
        Mistake(
            "streams of a scaler that leaves are cut off",
            removed("scaler-stop-ends-streams"),
            f"{STREAMS}::test_a_scaler_that_leaves_ends_its_streams_politely_and_exits_0",
        ),
        Mistake(
            "probes do not hear that it leaves",
            removed("scaler-not-ready-on-stop"),
            f"{PROCESS}::test_probes_over_http_and_over_grpc_hear_that_it_leaves",
        ),
        Mistake(
            "a redis that is away is no work",
            instead(
                "scaler-outage-error",
                "try:\n    return trigger.demand(await self._asker.ask(trigger.queues))\nexcept Refused:\n    return 0.0",
            ),
            f"{CALLS}::test_a_redis_that_is_away_is_an_error_never_zero[refuse]",
        ),
        Mistake(
            "an outage ends all streams with an error",
            replaced("outage-keeps-streams", "isinstance(answer, (Refused, ConfigError))", "False"),
            f"{STREAMS}::test_a_stream_outlives_an_outage_and_tells_what_came_meanwhile",
        ),
        Mistake(
            "every call is a round trip of its own",
            replaced(
                "depth-batched",
                'await self._batchers[""].add(queues)',
                "_depths_of(queues, await self._depths(queues))",
            ),
            f"{CALLS}::test_what_is_asked_in_one_moment_travels_together",
        ),
        Mistake(
            "in a cluster all queues are asked for together",
            replaced("cluster-depth-per-node", "not isinstance(self._redis, Cluster)", "self._redis"),
            "tests/integration/scaling/test_scaler_on_a_cluster.py::"
            "test_a_server_that_hangs_keeps_only_its_own_queues_from_an_answer",
        ),
        Mistake(
            "in a cluster one look at all queues waits for the slowest server",
            replaced("cluster-watch-per-trigger", "trigger.queues if self._is_cluster else ()", "()"),
            "tests/integration/scaling/test_scaler_on_a_cluster.py::"
            "test_a_server_that_hangs_delays_only_the_streams_of_its_own_queues",
        ),
        Mistake(
            "a damaged queue leaves others without an answer",
            replaced("depth-of-damaged-queue", "len(queues) == 1", "True"),
            f"{CALLS}::test_a_damaged_queue_is_an_error_of_its_own",
        ),
        Mistake(
            "as much as the activation is enough",
            replaced("activation-exceeded", "wanting > self", "wanting >= self"),
            f"{CALLS}::test_activation_is_strictly_more",
        ),
        Mistake(
            "the whole number is less than there is",
            replaced("scaler-value-rounded-up", "math.ceil", "int"),
            f"{CALLS}::test_old_work_weighs_more_as_the_trigger_says",
        ),
        Mistake(
            "any metric will do",
            removed("scaler-metric-name"),
            f"{CALLS}::test_a_metric_that_this_trigger_has_not_is_not_found",
        ),
        Mistake(
            "queues that are made up are labels",
            replaced("scaler-known-queues", "trigger =", 'names = (ref.scalerMetadata["queue"],)\ntrigger ='),
            f"{CALLS}::test_what_is_asked_is_counted_by_queues_that_there_are",
        ),
        Mistake(
            "a callers' certificate is not asked for",
            replaced("scaler-client-certificate", "bool(settings.tls_ca)", "False"),
            f"{PROCESS}::test_keda_calls_over_tls_and_shows_a_certificate_if_it_is_asked",
        ),
    ]
