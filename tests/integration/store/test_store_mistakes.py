"""The known mistakes around the one store of a system, each put back: the test named after it fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake, instead, removed, replaced

R = "tests/integration/store/test_registration.py"
D = "tests/integration/store/test_door.py"
REFUSED = f"{R}::test_a_process_with_another_store_is_refused_and_told_both_and_what_to_set"

MISTAKES = [
    Mistake(
        "a copy of the registered file is used without a warning",
        replaced("copied-store-warned", "is_file_of_another_machine(ours, registered)", "False"),
        f"{R}::test_a_file_that_was_registered_on_another_machine_is_warned_of",
    ),
    Mistake(
        "a client writes schedules to another store than the system's",
        instead("client-store-compared", "pass"),
        "tests/integration/store/test_comparing.py::test_a_client_writes_no_schedule_to_another_store",
    ),
    Mistake(
        "a command writes to another store than the system's",
        instead("command-store-compared", "pass"),
        "tests/integration/cli/test_schedules.py::test_a_store_other_than_the_registered_one_is_refused",
    ),
    Mistake(
        "the second of two first processes registers its store over the first one's",
        replaced("store-registered-once", "redis.call('EXISTS', registered) == 0", "true"),
        f"{REFUSED}[worker]",
    ),
    Mistake(
        "a store is used before it was compared with the registered one",
        instead("store-admitted-before-use", "pass"),
        f"{REFUSED}[scheduler]",
    ),
    Mistake(
        "the process of an attempt uses a store that was never compared",
        instead("attempt-store-compared", "pass"),
        f"{D}::test_the_process_of_an_attempt_does_not_use_a_store_that_was_never_compared",
    ),
    Mistake(
        "the process of an attempt refuses the store of its worker after another one was registered",
        instead("attempt-has-admission", "pass"),
        f"{D}::test_the_process_of_an_attempt_goes_on_with_the_store_of_its_worker",
    ),
    Mistake(
        "a database that was away at the start is never compared",
        instead("store-compared-later", "pass"),
        f"{R}::test_a_database_that_is_away_at_the_start_is_compared_when_it_is_back",
    ),
    Mistake(
        "an agent waits until its deadline for a store that must not be used, in a process that nothing ends",
        replaced("refused-store-told", "not self.refusal_ends_process", "False"),
        "tests/integration/store/test_door.py::test_an_agent_is_told_that_its_store_must_not_be_used",
    ),
    Mistake(
        "a Redis that is busy is taken for one that refuses the key",
        replaced("busy-redis-waited-for", "not _refused(exc)", "isinstance(exc, OSError)"),
        "tests/integration/store/test_comparing.py::test_a_redis_that_is_busy_is_waited_for",
    ),
    Mistake(
        "a process whose store was replaced in a flushed Redis goes on beside the new one",
        removed("replaced-store-ends-process"),
        f"{R}::test_a_process_whose_store_another_one_replaced_in_a_flushed_redis_ends",
    ),
    Mistake(
        "a flushed Redis stays without the registration",
        instead("store-registered-again", "pass"),
        f"{R}::test_a_flushed_redis_learns_the_store_again_from_those_that_run",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
