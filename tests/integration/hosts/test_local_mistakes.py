"""The known mistakes with local engines, registrations, directories and cgroups, each put back: its test fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake, instead, removed, replaced

HERE = "tests/integration/hosts"
LOCAL, LOCATIONS, DIRECTORIES = (
    f"{HERE}/test_{name}.py" for name in ("local_engine", "location_registry", "directories")
)
CGROUPS = "tests/integration/processes/test_cgroups.py"

MISTAKES = [
    Mistake(
        "a program that is started again takes the dead one's agents for running",
        replaced("dead-program-agents", "known is not None and is_gone(known.host)", "known is None"),
        f"{LOCAL}::test_a_program_that_was_killed_has_its_agents_at_once_when_it_is_started_again",
    ),
    Mistake(
        "hosts start what has ended with its program",
        replaced("agent-reclaim-wanted", "bound or ", ""),
        f"{LOCAL}::test_what_a_killed_program_left_behind_is_forgotten_by_hosts_and_not_started",
    ),
    Mistake(
        "a local engine takes the agents of dead hosts",
        replaced(
            "agent-reclaim-scope", "only == 'bound' and not bound or only == 'free' and owner ~= ''", "false"
        ),
        f"{LOCAL}::test_a_dead_hosts_agent_is_not_taken_by_a_local_engine",
    ),
    Mistake(
        "an engine that closes leaves its agents in the table",
        removed("engine-close-ends-agents"),
        f"{LOCAL}::test_agents_end_with_their_engine_and_the_next_use_begins_anew",
    ),
    Mistake(
        "the engine needs gRPC though nobody is called",
        instead(
            "engine-imports-no-grpc",
            "import holdfast.hosts.remote\nfrom holdfast.telemetry.logs import get_logger",
        ),
        f"{LOCAL}::test_it_needs_no_grpc",
    ),
    Mistake(
        "a registration is no lease",
        removed("registration-lease"),
        f"{LOCATIONS}::test_hosts_do_not_start_what_is_registered_until_it_is_over[bytes]",
    ),
    Mistake(
        "a registration overwrites what a host says",
        replaced("registration-keeps-hosted", "(have[2] or '') ~= ''", "false"),
        f"{LOCATIONS}::test_it_changes_nothing_about_agents_of_hosts[bytes]",
    ),
    Mistake(
        "endpoints that leave are taken for hosts",
        replaced("terminating-endpoints", " and not conditions.terminating", ""),
        f"{DIRECTORIES}::test_ready_endpoints_are_hosts_and_the_others_are_not",
    ),
    Mistake(
        "one host by two addresses is two",
        replaced("host-found-once", "host.name", "host.address"),
        f"{DIRECTORIES}::test_a_list_has_those_that_answer",
    ),
    Mistake(
        "a child stays in its host's cgroup",
        removed("child-cgroup"),
        f"{CGROUPS}::test_a_child_enters_its_cgroup_and_its_end_is_explained",
    ),
    Mistake(
        "whoever can write takes a cgroup that is not theirs",
        replaced("cgroup-delegated", 'name != "/" and not _is_delegated(own)', "False"),
        f"{CGROUPS}::test_being_able_to_write_is_not_being_allowed",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
