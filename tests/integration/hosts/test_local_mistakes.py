"""The known mistakes with local engines, registrations, directories and cgroups, each put back: its test fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake

HERE = "tests/integration/hosts"
LOCAL, LOCATIONS, DIRECTORIES = (
    f"{HERE}/test_{name}.py" for name in ("local_engine", "location_registry", "directories")
)
CGROUPS = "tests/integration/processes/test_cgroups.py"

MISTAKES = [
    Mistake(
        "a program that is started again takes the dead one's agents for running",
        "hosts/local.py",
        "if known is not None and is_gone(known.host):",
        "if known is None:",
        f"{LOCAL}::test_a_program_that_was_killed_has_its_agents_at_once_when_it_is_started_again",
    ),
    Mistake(
        "hosts start what has ended with its program",
        "hosts/lua/reclaim.lua",
        "  elseif bound or have[3] ~= '1' then",
        "  elseif have[3] ~= '1' then",
        f"{LOCAL}::test_what_a_killed_program_left_behind_is_forgotten_by_hosts_and_not_started",
    ),
    Mistake(
        "a local engine takes the agents of dead hosts",
        "hosts/lua/reclaim.lua",
        "  elseif only == 'bound' and not bound or only == 'free' and owner ~= '' then",
        "  elseif false then",
        f"{LOCAL}::test_a_dead_hosts_agent_is_not_taken_by_a_local_engine",
    ),
    Mistake(
        "an engine that closes leaves its agents in the table",
        "hosts/local.py",
        "            await asyncio.gather(*(self._end(host, agent_id) for agent_id in tuple(host.copies)))\n",
        "            pass\n",
        f"{LOCAL}::test_agents_end_with_their_engine_and_the_next_use_begins_anew",
    ),
    Mistake(
        "the engine needs gRPC though nobody is called",
        "hosts/engine.py",
        "from holdfast.telemetry.logs import get_logger\n",
        "import holdfast.hosts.remote\nfrom holdfast.telemetry.logs import get_logger\n",
        f"{LOCAL}::test_it_needs_no_grpc",
    ),
    Mistake(
        "a registration is no lease",
        "hosts/lua/register.lua",
        "redis.call('ZADD', leases, now + ttl, id)\n",
        "",
        f"{LOCATIONS}::test_hosts_do_not_start_what_is_registered_until_it_is_over[bytes]",
    ),
    Mistake(
        "a registration overwrites what a host says",
        "hosts/lua/register.lua",
        "if (have[2] or '') ~= '' and",
        "if false and",
        f"{LOCATIONS}::test_it_changes_nothing_about_agents_of_hosts[bytes]",
    ),
    Mistake(
        "endpoints that leave are taken for hosts",
        "hosts/kubernetes.py",
        "(conditions.ready is not False and not conditions.terminating)",
        "(conditions.ready is not False)",
        f"{DIRECTORIES}::test_ready_endpoints_are_hosts_and_the_others_are_not",
    ),
    Mistake(
        "one host by two addresses is two",
        "hosts/directory.py",
        "{host.name: host for host in reversed(answers) if host is not None}",
        "{host.address: host for host in reversed(answers) if host is not None}",
        f"{DIRECTORIES}::test_a_list_has_those_that_answer",
    ),
    Mistake(
        "a child stays in its host's cgroup",
        "processes/limits.py",
        '        Path(limits.cgroup, "cgroup.procs").write_text("0", encoding="ascii")\n',
        "        pass\n",
        f"{CGROUPS}::test_a_child_enters_its_cgroup_and_its_end_is_explained",
    ),
    Mistake(
        "whoever can write takes a cgroup that is not theirs",
        "processes/cgroups.py",
        'if name != "/" and not _is_delegated(own):',
        "if False:",
        f"{CGROUPS}::test_being_able_to_write_is_not_being_allowed",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
