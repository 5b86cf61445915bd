"""The known mistakes with forks, signals and descriptors, each put back: its test fails."""

from __future__ import annotations

from tests.support.mistakes import KnownMistakes, Mistake, instead, removed, replaced

HERE = "tests/integration/processes"
STARTING, STOPPING, CRASHING, ZYGOTE, INHERITANCE, TALKING, MANAGER, LEASES = (
    f"{HERE}/test_{name}.py"
    for name in ("starting", "stopping", "crashing", "zygote", "inheritance", "talking", "manager", "leases")
)

MISTAKES = [
    Mistake(
        "a SIGTERM that comes while a service is loading is its death",
        instead("sigterm-while-loading", "before = signal.getsignal(signal.SIGTERM)"),
        "tests/integration/cli/test_processes.py::test_a_sigterm_while_the_app_is_imported_ends_with_0[worker]",
    ),
    Mistake(
        "an agent is running though its process has ended",
        replaced("ended-process-not-running", "not pid", "False"),
        "tests/unit/processes/test_agent.py::test_an_agent_whose_process_has_just_ended_is_not_running",
    ),
    Mistake(
        "the end of a lease is a crash",
        removed("lease-end-no-crash"),
        f"{LEASES}::test_an_agent_ends_with_its_lease_and_is_started_again_when_it_is_held_again",
    ),
    Mistake(
        "an agent is started again without a lease",
        removed("launch-under-lease"),
        f"{LEASES}::test_an_agent_that_crashes_without_a_lease_waits_for_it",
    ),
    Mistake(
        "an interrupt comes between two instructions of the event loop",
        removed("interrupt-waits-its-turn"),
        "tests/unit/test_signals.py::test_an_interrupt_waits_for_the_callback_that_runs",
    ),
    Mistake(
        "an interrupt ends a background job of a script",
        replaced("interrupt-in-background", "signal.getsignal(signal.SIGINT) is not signal.SIG_IGN", "True"),
        "tests/unit/test_signals.py::test_an_interrupt_is_ignored_where_the_process_was_started_to_ignore_it",
    ),
    Mistake(
        "a second interrupt waits for what the first one waits for",
        removed("second-interrupt-at-once"),
        "tests/unit/test_signals.py::test_a_second_interrupt_does_not_wait",
    ),
    Mistake(
        "an interrupt before the first step leaves a coroutine that nobody awaits",
        instead("interrupted-work-closed", "pass"),
        "tests/unit/test_signals.py::test_an_interrupt_before_the_first_step_leaves_no_warning",
    ),
    Mistake(
        "a child does not die with its zygote",
        removed("child-dies-with-zygote"),
        f"{ZYGOTE}::test_agents_die_with_a_killed_zygote_even_if_nobody_else_is_there_to_end_them",
    ),
    Mistake(
        "a zygote notices only by its connection that the host has died",
        removed("zygote-dies-with-host"),
        f"{ZYGOTE}::test_a_host_that_is_killed_takes_everything_along[forked]",
    ),
    Mistake(
        "a zygote takes the end of a thread for the host's",
        replaced("zygote-host-gone", "self._leaving or os.getppid() != self._host_pid", "True"),
        f"{ZYGOTE}::test_a_zygote_does_not_end_with_the_thread_that_started_it",
    ),
    Mistake(
        "a zygote that leaves ends nobody itself",
        # Most die with their zygote anyway.
        (removed("zygote-exit-ends-all"), removed("child-dies-with-zygote")),
        f"{ZYGOTE}::test_a_host_that_is_killed_takes_everything_along[plain]",
    ),
    Mistake(
        "only the leader of a group is ended",
        (
            removed("child-group-killed"),
            replaced("child-orphans-killed", "set(procfs.children()) - self._agents", "()"),
        ),
        f"{STOPPING}::test_what_an_agent_has_started_ends_with_it[crash-forked]",
    ),
    Mistake(
        "a daemon that has left its group lives on",
        replaced("child-orphans-killed", "set(procfs.children()) - self._agents", "()"),
        f"{STOPPING}::test_what_an_agent_has_started_ends_with_it[stop-family]",
    ),
    Mistake(
        "an agent's orphans go to the init process",
        removed("zygote-adopts-orphans"),
        f"{STOPPING}::test_what_an_agent_has_started_ends_with_it[stop-family]",
    ),
    Mistake(
        "a live agent's orphans are taken for a dead one's",
        removed("child-adopts-orphans"),
        f"{STOPPING}::test_the_daemon_of_a_live_agent_lives_on_when_another_agent_ends",
    ),
    Mistake(
        "the group of a lost agent is left alone",
        removed("lost-agent-group"),
        f"{ZYGOTE}::test_a_zygote_that_ends_takes_its_children_along_and_all_come_back[9]",
    ),
    Mistake(
        "a child keeps the zygote's handlers",
        removed("child-signal-handlers"),
        f"{INHERITANCE}::test_a_child_begins_with_signals_as_if_it_had_been_started_alone",
    ),
    Mistake(
        "a child keeps the mask that it was forked under",
        removed("child-signal-mask"),
        f"{INHERITANCE}::test_a_child_begins_with_signals_as_if_it_had_been_started_alone",
    ),
    Mistake(
        "a child keeps the zygote's descriptors",
        removed("child-descriptors"),
        f"{INHERITANCE}::test_a_child_has_no_descriptors_but_its_own",
    ),
    Mistake(
        "a child stays in the zygote's session",
        removed("child-session"),
        f"{INHERITANCE}::test_a_child_leads_a_session_and_a_group_of_its_own",
    ),
    Mistake(
        "any signal with a handler is a wish to stop",
        replaced("stop-signal", "0 in signals or signal.SIGTERM in signals", "bool(signals)"),
        f"{STOPPING}::test_a_signal_that_the_agent_handles_is_no_wish_to_stop",
    ),
    Mistake(
        "an agent with a handler of its own does not hear of its stop",
        removed("agent-stop-message"),
        f"{STOPPING}::test_a_willing_agent_ends_by_itself[own_loop]",
    ),
    Mistake(
        "an entry is any path that a caller sends",
        replaced("entry-by-name", "[name]", ".get(name, name)"),
        f"{STARTING}::test_only_entries_of_the_hosts_table_are_run[tests.support.processes.entries:willing]",
    ),
    Mistake(
        "a prefix ends within a word",
        replaced("entry-prefix-whole-word", 'f"{prefix}."', "prefix"),
        f"{MANAGER}::test_a_class_that_can_not_be_run_is_not_created[tests.support.processes.entriesother.Agent-outside of the prefixes]",
    ),
    Mistake(
        "a zygote with threads begins",
        removed("zygote-preload-single-thread"),
        f"{ZYGOTE}::test_a_zygote_has_one_thread_and_one_that_preloads_a_thread_is_refused",
    ),
    Mistake(
        "a zygote with threads forks",
        removed("zygote-fork-single-thread"),
        f"{ZYGOTE}::test_a_zygote_that_gets_a_thread_later_forks_no_more",
    ),
    Mistake(
        "an agent runs before it has a number",
        replaced("ready-after-pid", "self.pid", "True"),
        f"{STARTING}::test_an_agent_that_is_ready_before_the_zygote_tells_its_number_has_one",
    ),
    Mistake(
        "the kill of an agent that has no number yet is lost",
        replaced("late-process-killed", "handle.given_up", "False"),
        f"{STARTING}::test_an_agent_is_killed_whose_zygote_took_longer_than_it_had_to_get_ready",
    ),
    Mistake(
        "an agent that is lost twice is started twice",
        replaced(
            "lost-agent-once", "if agent.handle is not handle", "handle = agent.handle\nif handle is None"
        ),
        f"{ZYGOTE}::test_an_agent_lost_twice_is_looked_for_once",
    ),
    Mistake(
        "an exit with code 0 is no crash",
        instead(
            "exit-zero-crash",
            "if agent.exit_code:\n    self._crashed(agent)\nelse:\n    self._settle(agent, ProcessStatus.STOPPED)",
        ),
        f"{CRASHING}::test_an_agent_that_ends_again_and_again_is_crashed[payload0]",
    ),
    Mistake(
        "the limits are not applied",
        replaced("child-limits", "limits.apply", ""),
        f"{CRASHING}::test_a_memory_limit_below_what_a_child_begins_with_says_so",
    ),
    Mistake(
        "whoever floods is read without end",
        replaced("output-rate-limit", ", int(self._left)", ""),
        "tests/unit/processes/test_output.py::test_more_lines_than_the_rate_allows_are_counted",
    ),
    Mistake(
        "a zygote that does not answer is waited for",
        removed("hung-zygote-killed"),
        f"{ZYGOTE}::test_a_zygote_that_does_not_answer_is_replaced",
    ),
]


class TestMistakes(KnownMistakes):
    mistakes = MISTAKES
