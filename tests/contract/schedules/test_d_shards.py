"""D: which scheduler a schedule belongs to, and which of its own it runs."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.config import ScheduledAgentSettings
from holdfast.errors import ConfigError
from holdfast.schedules.selection import Patterns, Shards

NAMES = [f"account-{n}/region-{n % 7}/refresh" for n in range(4000)]
pods = st.lists(st.text("abcdefgh-0123456789", min_size=1, max_size=20), min_size=2, max_size=12, unique=True)


def rendezvous(names: list[str], pods: list[str]) -> dict[str, str]:
    shards = Shards(pods[0], pods)
    return {name: shards.owner(name) for name in names}


def modulo(names: list[str], pods: list[str]) -> dict[str, str]:
    """The mistake (R13): the rest of a division changes for nearly everybody when the divisor does."""
    ordered = sorted(pods)
    return {name: ordered[zlib.crc32(name.encode()) % len(ordered)] for name in names}


def check_that_little_moves(assign, pods: list[str], gone: str) -> None:
    before, after = assign(NAMES, pods), assign(NAMES, [pod for pod in pods if pod != gone])
    moved = {name for name in NAMES if before[name] != after[name]}
    assert moved == {name for name in NAMES if before[name] == gone}
    assert len(moved) < 2.5 * len(NAMES) / len(pods)


@settings(deadline=None, max_examples=15)
@given(pods=pods, data=st.data())
def test_r13_a_scheduler_that_comes_or_goes_moves_its_share_only(pods, data):
    check_that_little_moves(rendezvous, pods, data.draw(st.sampled_from(pods)))


@pytest.mark.parametrize("count", [3, 5, 8])
def test_r13_the_same_check_finds_the_mistake(count):
    pods = [f"pod-{n}" for n in range(count)]
    with pytest.raises(AssertionError):
        check_that_little_moves(modulo, pods, pods[0])


@settings(deadline=None, max_examples=15)
@given(pods=pods)
def test_d1_each_schedule_has_one_owner_on_whom_all_agree(pods):
    views = [Shards(me, pods) for me in pods]
    for name in NAMES[:200]:
        assert sum(view.owns(name) for view in views) == 1
        assert len({view.owner(name) for view in views}) == 1


@settings(deadline=None, max_examples=15)
@given(pods=pods)
def test_d2_the_shares_are_about_equal(pods):
    owners = list(rendezvous(NAMES, pods).values())
    fair = len(NAMES) / len(pods)
    assert all(0.6 * fair < owners.count(pod) < 1.5 * fair for pod in pods)


def test_d3_without_others_everything_is_its_own():
    assert all(Shards("me").owns(name) for name in NAMES[:50])
    assert Shards("me", ["me", "me"]).pods == ("me",)


def test_d4_the_owner_is_the_same_in_every_version():
    owners = [Shards("a", ["b", "c"]).owner(name) for name in ("one", "two", "three", "four", "five")]
    assert owners == ["a", "b", "b", "b", "a"]


@pytest.mark.parametrize(
    ("enabled", "disabled", "name", "refused_by"),
    [
        (".*", "", "aws/refresh", ""),
        ("", "", "aws/refresh", ""),
        ("aws/.*", "", "aws/refresh", ""),
        ("aws/.*", "", "gcp/refresh", "redis.agent.enabled-pattern"),
        ("aws", "", "aws/refresh", "redis.agent.enabled-pattern"),
        (".*", "aws", "aws/refresh", ""),
        (".*", "aws/.*", "aws/refresh", "redis.agent.disabled-pattern"),
        ("aws/.*", "aws/refresh", "aws/refresh", "redis.agent.disabled-pattern"),
        ("aws/.*", "aws/refresh|x", "aws/refresh2", ""),
        ("a|aws/refresh", "", "aws/refresh", ""),
    ],
)
def test_d5_patterns_match_whole_names_and_disabled_wins(enabled, disabled, name, refused_by):
    settings = ScheduledAgentSettings(enabled_pattern=enabled, disabled_pattern=disabled)
    patterns = Patterns.of(settings)
    assert patterns.refusal(name) == refused_by
    assert patterns.accepts(name) is not bool(refused_by)


def test_d6_a_pattern_that_is_none_is_named():
    with pytest.raises(ConfigError, match=r"redis\.agent\.disabled-pattern = \( is not a regular expression"):
        Patterns.of(ScheduledAgentSettings(disabled_pattern="("))
