"""The known mistakes with partitions and with servers that fail, each put back: its test fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake, replaced

ONE = "tests/integration/runs/test_partitions.py"
CLUSTER = "tests/integration/runs/test_partitions_on_a_cluster.py"
SENTINELS = "tests/integration/redis/test_sentinels.py"

MISTAKES = [
    Mistake(
        "every partition has slots of its own",
        replaced(
            "slots-shared", "self._slots[partition.name]", "Slots(partition.settings, self._place.metrics)"
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
        replaced("worker-finds-partitions", "await queue.look_around(seated, say=True)", "()"),
        f"{ONE}::test_growing_with_work_in_flight_loses_nothing",
    ),
    Mistake(
        "producers don't say how many partitions they count on",
        replaced("partition-count-announced", "say=True", ""),
        f"{ONE}::test_growing_with_work_in_flight_loses_nothing",
    ),
    Mistake(
        "every producer says it for itself",
        replaced("partition-count-batched", "_sayings.add(None)", "_say_for([None])"),
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
        replaced("errand-partition", '"partition": place.settings.partition,', ""),
        f"{ONE}::test_an_agent_in_its_own_process_speaks_in_its_runs_partition",
    ),
    Mistake(
        "where the keys of a read are is asked of a server that hangs",
        replaced("cluster-read-slot", 'command not in {"XREAD", "XREADGROUP"}', "True"),
        f"{CLUSTER}::test_a_server_that_hangs_holds_up_its_own_partitions_only",
    ),
    Mistake(
        "sentinels are lost while many ask for the master",
        replaced("sentinel-list-kept", "def discover_master", "def _discover_master"),
        f"{SENTINELS}::test_no_sentinel_is_forgotten_while_many_ask_for_the_master",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
