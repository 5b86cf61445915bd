"""The known mistakes with partitions and with servers that fail, each put back: its test fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake

ONE = "tests/integration/runs/test_partitions.py"
CLUSTER = "tests/integration/runs/test_partitions_on_a_cluster.py"
SENTINELS = "tests/integration/redis/test_sentinels.py"

MISTAKES = [
    Mistake(
        "every partition has slots of its own",
        "services/desk.py",
        "return Desk(self._place, partition, self._slots[partition.name])",
        "return Desk(self._place, partition, Slots(partition.settings, self._place.metrics))",
        f"{ONE}::test_the_slots_are_the_workers_and_taken_in_turn",
    ),
    Mistake(
        "what woke a worker waits until it has a slot",
        "runs/worker.py",
        "            return self._slots.take_now(_CLAIM_BATCH)",
        "            return await self._slots.take(_CLAIM_BATCH)",
        f"{ONE}::test_what_wakes_a_worker_without_a_slot_goes_to_another",
    ),
    Mistake(
        "a thread is anywhere",
        "runs/routing.py",
        "    if submission.thread_id:\n",
        "    if submission.thread_id == 1:\n",
        f"{ONE}::test_the_order_of_a_thread_is_kept[0]",
    ),
    Mistake(
        "a request goes by chance, though it may be the second of its kind",
        "runs/routing.py",
        """return f"run:{submission.run_id}" if submission.run_id else """,
        "return ",
        f"{ONE}::test_asking_twice_finds_the_same_run",
    ),
    Mistake(
        "a worker serves what it is configured to",
        "services/desk.py",
        "for partition in await queue.look_around(seated, say=True):",
        "for partition in ():",
        f"{ONE}::test_growing_with_work_in_flight_loses_nothing",
    ),
    Mistake(
        "producers don't say how many partitions they count on",
        "runs/queue.py",
        "lambda: self.look_around(say=True)",
        "lambda: self.look_around()",
        f"{ONE}::test_growing_with_work_in_flight_loses_nothing",
    ),
    Mistake(
        "every producer says it for itself",
        "runs/queue.py",
        "            await self._sayings.add(None)\n",
        "            await self._say_for([None])\n",
        f"{ONE}::test_many_producers_at_once_say_how_many_partitions_there_are_for_each_other",
    ),
    Mistake(
        "what its caller gave up is sent all the same",
        "redis/batcher.py",
        " if not future.done()]",
        "]",
        "tests/unit/test_batcher.py::test_what_its_caller_has_given_up_is_not_sent_any_more",
    ),
    Mistake(
        "partitions are forgotten with what is in them",
        "runs/queue.py",
        "self._count if all(blank) else 0",
        "self._count",
        f"{ONE}::test_a_number_is_kept_while_something_is_left_or_somebody_says_it",
    ),
    Mistake(
        "a letter is looked for in the first partition",
        "runs/deadletter.py",
        "await (await self._boxes())[letter.partition].replay(letter)",
        "await (await self._boxes())[0].replay(letter)",
        f"{ONE}::test_the_dead_letters_of_all_partitions_are_one_list",
    ),
    Mistake(
        "only the first partition is paused",
        "runs/queue.py",
        "await asyncio.gather(*(each.pause(reason) for each in await self.look_around()))",
        "await self.partitions[0].pause(reason)",
        f"{ONE}::test_the_gate_is_that_of_the_whole_queue",
    ),
    Mistake(
        "the process of an agent writes into the first partition",
        "runs/perform.py",
        """            "partition": place.settings.partition,\n""",
        "",
        f"{ONE}::test_an_agent_in_its_own_process_speaks_in_its_runs_partition",
    ),
    Mistake(
        "where the keys of a read are is asked of a server that hangs",
        "redis/connections.py",
        """if command not in {"XREAD", "XREADGROUP"}:""",
        "if True:",
        f"{CLUSTER}::test_a_server_that_hangs_holds_up_its_own_partitions_only",
        also=(
            (
                "redis/connections.py",
                "        if node is not None and self.commands:\n",
                "        if False:\n",
            ),
        ),
    ),
    Mistake(
        "sentinels are lost while many ask for the master",
        "redis/connections.py",
        "    async def discover_master(self",
        "    async def _discover_master(self",
        f"{SENTINELS}::test_no_sentinel_is_forgotten_while_many_ask_for_the_master",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
