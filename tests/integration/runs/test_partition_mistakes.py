"""The known mistakes with partitions and with servers that fail, each put back: its test fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake, instead, removed, replaced

ONE = "tests/integration/runs/test_partitions.py"
CLUSTER = "tests/integration/runs/test_partitions_on_a_cluster.py"
SENTINELS = "tests/integration/redis/test_sentinels.py"
HANGS = "tests/integration/redis/test_a_server_of_a_cluster_hangs.py"

MISTAKES = [
    Mistake(
        "every partition has slots of its own",
        replaced(
            "slots-shared",
            "self._slots[partition.name]",
            "Slots(partition.settings, self._resources.metrics)",
        ),
        f"{ONE}::test_the_slots_are_the_workers_and_taken_in_turn",
    ),
    Mistake(
        "what woke a worker waits until it has a slot",
        replaced("woken-without-slot", "self._slots.take_now", "await self._slots.take"),
        f"{ONE}::test_what_wakes_a_worker_without_a_slot_goes_to_another",
    ),
    Mistake(
        "a thread is anywhere",
        replaced("thread-one-partition", "submission.thread_id", "submission.thread_id == 1"),
        f"{ONE}::test_the_order_of_a_thread_is_kept[0]",
    ),
    Mistake(
        "a request goes by chance, though it may be the second of its kind",
        replaced("run-id-one-partition", 'f"run:{submission.run_id}" if submission.run_id else ', ""),
        f"{ONE}::test_asking_twice_finds_the_same_run",
    ),
    Mistake(
        "a worker serves what it is configured to",
        replaced("worker-finds-partitions", "await queue.look_around(served, say=True)", "()"),
        f"{ONE}::test_growing_with_work_in_flight_loses_nothing",
    ),
    Mistake(
        "producers don't say how many partitions they count on",
        replaced("partition-count-announced", "say=True", ""),
        f"{ONE}::test_growing_with_work_in_flight_loses_nothing",
    ),
    Mistake(
        "every producer says it for itself",
        replaced("partition-count-batched", "_announcements.add(None)", "_announce_once([None])"),
        f"{ONE}::test_many_producers_at_once_say_how_many_partitions_there_are_for_each_other",
    ),
    Mistake(
        "what its caller gave up is sent all the same",
        replaced("batch-skips-abandoned", " if not future.done()", ""),
        "tests/unit/test_batcher.py::test_what_its_caller_has_given_up_is_not_sent_any_more",
    ),
    Mistake(
        "partitions are forgotten with what is in them",
        replaced("shrink-empty-only", " if all(blank) else 0", ""),
        f"{ONE}::test_a_number_is_kept_while_something_is_left_or_somebody_says_it",
    ),
    Mistake(
        "a letter is looked for in the first partition",
        replaced("dead-letter-partition", "letter.partition", "0"),
        f"{ONE}::test_the_dead_letters_of_all_partitions_are_one_list",
    ),
    Mistake(
        "only the first partition is paused",
        replaced(
            "pause-all-partitions",
            "asyncio.gather(*(each.pause(reason) for each in await self.look_around()))",
            "self.partitions[0].pause(reason)",
        ),
        f"{ONE}::test_the_gate_is_that_of_the_whole_queue",
    ),
    Mistake(
        "the process of an agent writes into the first partition",
        replaced("errand-partition", '"partition": settings.partition,', ""),
        f"{ONE}::test_an_agent_in_its_own_process_speaks_in_its_runs_partition",
    ),
    Mistake(
        "where the keys of a read are is asked of a server that hangs",
        replaced("cluster-read-slot", 'command not in {"XREAD", "XREADGROUP"}', "True"),
        f"{CLUSTER}::test_a_server_that_hangs_holds_up_its_own_partitions_only",
    ),
    Mistake(
        "one server after the other is waited for until one knows the layout",
        replaced("hung-server-passed-over", "_NEXT_SECONDS if left or answers else None", "None"),
        f"{HANGS}::TestOneServerHangs::test_one_that_answers_is_found_among_all",
    ),
    Mistake(
        "the first server is asked for the commands that nobody needs",
        instead("commands-when-needed", "self.node = node\nawait super().initialize(node)"),
        f"{HANGS}::TestOneServerHangs::test_a_new_client_learns_the_layout_from_the_others[0]",
    ),
    Mistake(
        "a server that belongs to no cluster is believed",
        replaced("whole-layout", "== REDIS_CLUSTER_HASH_SLOTS", ">= 0"),
        f"{HANGS}::TestPartOfACluster::test_a_server_that_belongs_to_no_cluster_yet_is_not_believed",
    ),
    Mistake(
        "who waits for one server takes the connections of all",
        replaced("connections-by-server", "target_node.name", '""'),
        f"{HANGS}::TestOneServerHangs::test_who_waits_for_it_takes_no_connection_from_who_asks_another",
    ),
    Mistake(
        "a cluster whose servers refuse our rights is taken for one that is away, because one of them hangs",
        instead("lasting-refusal-kept", "failed = exc"),
        f"{HANGS}::TestOneServerHangs::test_a_right_that_is_missing_is_no_outage[1]",
    ),
    Mistake(
        "the leases of one server are kept only if all servers answer",
        replaced("connections-by-server", "target_node.name", '""'),
        f"{CLUSTER}::test_a_server_that_hangs_costs_only_its_own_leases",
    ),
    Mistake(
        "a script that one server lacks is loaded into all",
        replaced("script-loaded-where-missing", "isinstance(redis, RedisCluster) and keys", "False"),
        f"{HANGS}::TestOneServerHangs"
        "::test_a_server_that_has_forgotten_a_script_is_given_it_without_the_others",
    ),
    Mistake(
        "a claim keeps its slot for as long as its server is silent",
        removed("claim-releases-slots"),
        f"{CLUSTER}::test_a_claim_without_an_answer_keeps_no_slot_from_the_other_partitions",
    ),
    Mistake(
        "a server that answers slowly is taken for one that hangs, claim by claim",
        replaced("slow-claim-keeps-slot", "max(silent_seconds, 2 * self._claim_seconds)", "silent_seconds"),
        f"{ONE}::test_a_slow_server_is_not_taken_for_a_hanging_one",
    ),
    Mistake(
        "a claim that took long because we had no CPU lets a hung server keep a slot for as long again",
        removed("slow-claim-capped"),
        f"{CLUSTER}::test_a_claim_without_an_answer_keeps_no_slot_from_the_other_partitions[60.0]",
    ),
    Mistake(
        "a server that has not answered is given the time of a slow one",
        removed("failed-claim-not-slow"),
        f"{ONE}::test_a_server_that_did_not_answer_a_claim_is_no_slow_one",
    ),
    Mistake(
        "a run that has ended keeps its slot for as long as its server is silent",
        replaced("settlement-releases-slots", "silent <= silent_seconds", "True"),
        f"{CLUSTER}::test_a_settlement_without_an_answer_keeps_no_slot_from_the_other_partitions",
    ),
    Mistake(
        "whoever waits for a slot does not ask for those of a silent server",
        removed("silent-servers-slots"),
        f"{CLUSTER}::test_a_settlement_without_an_answer_keeps_no_slot_from_the_other_partitions",
    ),
    Mistake(
        "a slot that others have is given back once more",
        replaced("released-slot-given-once", "attempt in self._without_slot", "False"),
        f"{CLUSTER}::test_a_settlement_without_an_answer_keeps_no_slot_from_the_other_partitions",
    ),
    Mistake(
        "a run whose slot others have is begun without one",
        replaced("late-claim-without-slot", "len(claims.runs) > self._claiming", "False"),
        f"{CLUSTER}::test_a_run_that_is_claimed_too_late_for_its_slot_goes_back_to_the_queue",
    ),
    Mistake(
        "a run whose slot others have stays claimed until its lease ends",
        replaced("late-claim-returned", "self._unanswered and not self._is_quiet", "False"),
        f"{CLUSTER}::test_a_run_that_is_claimed_too_late_for_its_slot_goes_back_to_the_queue",
    ),
    Mistake(
        "a partition whose ends are not settled goes on claiming",
        replaced("unsettled-runs-bounded", "self._executor.has_released_slots", "False"),
        "tests/chaos/test_redis_fails.py::test_runs_that_redis_does_not_settle_are_not_more_than_the_slots",
    ),
    Mistake(
        "sentinels are lost while many ask for the master",
        replaced("sentinel-list-kept", "def discover_master", "def _discover_master"),
        f"{SENTINELS}::test_no_sentinel_is_forgotten_while_many_ask_for_the_master",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
