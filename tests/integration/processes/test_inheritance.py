"""What a child has of its zygote's, and what not."""

from __future__ import annotations

import signal
from collections.abc import Callable

from holdfast.processes.processes import Processes
from tests.support.processes.child_processes import PATIENCE


def test_a_child_begins_with_signals_as_if_it_had_been_started_alone(make: Callable[..., Processes]):
    # A mask is inherited by whatever is started under it, through any number of forks and execs.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})
    try:
        processes = make()
        told = processes.spawn("a", "confesses").result(PATIENCE).info
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert told["blocked"] == []
    assert told["handled"] == {}


def test_a_child_leads_a_session_and_a_group_of_its_own(processes: Processes):
    info = processes.spawn("a", "confesses").result(PATIENCE)
    assert info.info["session"] == info.info["group"] == info.pid


def test_a_child_has_no_descriptors_but_its_own(processes: Processes):
    processes.spawn("first", "willing").result(PATIENCE)
    links = processes.spawn("a", "confesses").result(PATIENCE).info["links"]
    assert sum(link.startswith("socket:") for link in links) == 1, "the host's control"
    own = {"/dev/null": 1, "anon_inode:[eventfd]": 1}
    assert all(links.count(link) == count for link, count in own.items()), links
    # Its output (1 and 2) and the two ends of the pipe that wakes it.
    assert sum(link.startswith("pipe:") for link in links) == 4, links
    assert len(links) <= 8, links


def test_two_children_do_not_share_their_randomness(processes: Processes):
    first, second = (processes.spawn(name, "confesses").result(PATIENCE).info for name in "ab")
    assert first["random"] != second["random"]


def test_a_child_finds_what_was_preloaded_and_nothing_heavy(processes: Processes):
    assert processes.spawn("a", "confesses").result(PATIENCE).info["modules"] == [
        "tests.support.processes.preloaded"
    ]
