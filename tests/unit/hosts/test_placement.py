"""Which host gets an agent, as tables."""

from __future__ import annotations

import os

import pytest

from holdfast.errors import ConfigError, InputError
from holdfast.hosts.agent import Needs, plain, qualified
from holdfast.hosts.placement import HostLoad, fits, order, strategy_named, why_not


def host(name: str, **fields) -> HostLoad:
    return HostLoad(name=name, address=f"{name}:50051", **fields)


NOTHING = Needs()


def names(strategy, hosts, needs=NOTHING, turn=0):
    return [each.name for each in order(strategy, hosts, needs, turn)]


@pytest.mark.parametrize(("turn", "expected"), [(0, "abc"), (1, "bca"), (2, "cab"), (3, "abc")])
def test_round_robin_goes_around_whatever_order_the_hosts_are_told_in(turn, expected):
    assert names("round-robin", [host("c"), host("a"), host("b")], turn=turn) == list(expected)


def test_least_loaded_goes_by_how_full_a_host_is_not_by_how_many_it_holds():
    hosts = [host("a", agents=10, capacity=100), host("b", agents=5, capacity=10), host("c", agents=1)]
    assert names("least-loaded", hosts) == ["c", "a", "b"]


def test_equals_are_taken_by_turns():
    hosts = [host("a"), host("b")]
    assert [names("least-loaded", hosts, turn=turn)[0] for turn in range(4)] == ["a", "b", "a", "b"]


def test_resource_aware_prefers_room_and_takes_a_crowded_host_as_a_last_resort():
    hosts = [
        host("crowded", cpu=0.1, memory_mb=100),
        host("roomy", cpu=4, memory_mb=8192),
        host("lean", cpu=4, memory_mb=600),
    ]
    assert names("resource-aware", hosts, Needs(cpu=0.5, memory_mb=512)) == ["roomy", "lean", "crowded"]


@pytest.mark.parametrize(
    ("fields", "needs", "expected"),
    [
        ({}, Needs(), True),
        ({"draining": True}, Needs(), False),
        ({"agents": 2, "capacity": 2}, Needs(), False),
        ({"labels": ("gpu",)}, Needs(near=("gpu",)), True),
        ({}, Needs(near=("gpu",)), False),
        ({"holds": ("db",)}, Needs(apart=("db",)), False),
        ({"holds": ("web",)}, Needs(apart=("db",)), True),
        ({"capacity": 0}, Needs(), False),
    ],
)
def test_a_host_that_must_not_take_it_is_not_asked(fields, needs, expected):
    assert fits(host("a", **fields), needs) is expected
    assert bool(names("round-robin", [host("a", **fields)], needs)) is expected


def test_it_says_why_nobody_takes_an_agent():
    assert why_not([], Needs()) == "there is no live host"
    hosts = [host("b", agents=1, capacity=1), host("a", draining=True), host("c", labels=("x",))]
    assert why_not(hosts, Needs(near=("gpu",))) == (
        "a: it is draining; b: it is full (1 of 1); c: it is not labelled gpu"
    )


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("x",), "x"),
        (("x", "g", "o"), "o/g/x"),
        (("a/b", "g g", "ö"), "%C3%B6/g%20g/a%2Fb"),
        (("x", "g"), "/g/x"),
    ],
)
def test_an_id_is_unique_among_guilds(parts, expected):
    assert qualified(*parts) == expected
    assert plain(expected) == parts[0]


@pytest.mark.parametrize("bad", ["", "a b", "a\nb", "x" * 513, "\0"])
def test_what_can_be_no_id_is_refused(bad):
    with pytest.raises(InputError, match="is not an agent's id"):
        qualified(bad)


def fullest_first(hosts, needs, turn):
    """A strategy of somebody else."""
    return sorted((each for each in hosts if each.name != "never"), key=lambda each: -each.agents)


def test_a_function_of_yours_chooses_among_those_that_fit():
    hosts = [host("a", agents=1), host("b", agents=5), host("never"), host("full", agents=9, capacity=9)]
    assert names(fullest_first, hosts) == ["b", "a"]
    assert strategy_named("os.path:join") is os.path.join


@pytest.mark.parametrize("name", ["os.path:nothing", "no.such.module:f", "nonsense"])
def test_a_strategy_that_is_not_there_is_said(name):
    with pytest.raises(ConfigError, match=f"hosts.placement = '{name}' is none of round-robin, least-loaded"):
        strategy_named(name)
