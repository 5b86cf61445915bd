"""Which tenants a roll-out includes: always the same ones, more of them as it grows, and about as many as it says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.rollout import PLACES, Rollout, checked_percent, checked_rollout, place_of
from holdfast.errors import InputError

FLAG = "redis_streams_media_cluster_enabled"
TENANTS = [f"tenant-{number}" for number in range(10_000)]

percents = st.floats(min_value=0, max_value=100).map(checked_percent)


def share(percent: float, name: str = FLAG) -> float:
    rollout = Rollout(name=name, percent=percent)
    return sum(map(rollout.includes, TENANTS)) / len(TENANTS) * 100


@given(st.text(), percents, percents)
def test_raising_the_percentage_only_adds_tenants(tenant, one, other):
    lower, higher = sorted((one, other))
    if Rollout(name=FLAG, percent=lower).includes(tenant):
        assert Rollout(name=FLAG, percent=higher).includes(tenant)


@given(st.text(), percents, st.sets(st.text()), st.sets(st.text()), st.booleans())
def test_that_holds_with_any_lists_too(tenant, percent, allowed, denied, named):
    lists = {
        "allowed": frozenset(allowed | ({tenant} if named else set())),
        "denied": frozenset(denied - {tenant}),
    }
    included = [
        Rollout(name=FLAG, percent=each, **lists).includes(tenant)
        for each in sorted({0.0, percent / 2, percent, 100.0})
    ]
    assert included == sorted(included)


def test_nobody_is_included_at_0_and_everybody_at_100():
    assert (share(0), share(100)) == (0, 100)


@pytest.mark.parametrize("percent", [1, 10, 50, 90])
def test_the_share_is_what_the_percentage_says(percent):
    # 10,000 tenants: five standard deviations of a binomial share.
    deviation = (percent * (100 - percent) / len(TENANTS)) ** 0.5
    assert abs(share(percent) - percent) < 5 * deviation


def test_each_rollout_begins_with_other_tenants():
    first = {tenant for tenant in TENANTS if place_of("one", tenant) < PLACES / 10}
    second = {tenant for tenant in TENANTS if place_of("two", tenant) < PLACES / 10}
    # Independent: a tenth of a tenth is in both.
    assert 50 < len(first & second) < 150


def test_a_tenants_place_never_changes():
    """These numbers are a promise: another hash would move tenants in the middle of a roll-out."""
    assert [place_of(FLAG, tenant) for tenant in ("acme", "globex", "", "ß")] == [1004, 7620, 263, 1715]


def test_denied_tenants_stay_and_allowed_ones_go_unless_it_is_off():
    lists = {"allowed": frozenset({"acme"}), "denied": frozenset({"globex"})}
    assert Rollout(name=FLAG, percent=0.01, **lists).includes("acme")
    assert not Rollout(name=FLAG, percent=100, **lists).includes("globex")
    assert not Rollout(name=FLAG, percent=0, **lists).includes("acme"), "0 is off, also for those"
    both = Rollout(name=FLAG, percent=100, allowed=frozenset({"acme"}), denied=frozenset({"acme"}))
    assert not both.includes("acme")


@pytest.mark.parametrize("percent", [-0.1, 100.1, float("nan"), float("inf")])
def test_what_is_no_percentage_is_refused(percent):
    with pytest.raises(InputError, match="from 0 to 100"):
        checked_percent(percent)


@pytest.mark.parametrize("name", ["", "a b", "a\n", "ü", "x" * 201])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(InputError, match="roll-out"):
        checked_rollout(name)
