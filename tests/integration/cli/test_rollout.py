"""``holdfast rollout`` as an operator uses it."""

from __future__ import annotations

import pytest

FLAG = "redis_streams_media_cluster_enabled"


def test_a_rollout_is_set_shown_and_listed(cli):
    said = cli("rollout", "set", FLAG, "10", "--allow", "acme", "--deny", "globex", "--reason", "canary")
    assert said.code == 0
    shown = cli("rollout", "show", FLAG, "--tenant", "acme", "--tenant", "globex", "--json").json
    assert shown.pop("changed_at") > 0
    assert shown.pop("changed_at_iso") > "2026"
    assert shown == {
        "name": FLAG,
        "percent": 10,
        "allowed": ["acme"],
        "denied": ["globex"],
        "reason": "canary",
        "tenants": {"acme": True, "globex": False},
    }
    assert cli("rollout", "list").out.splitlines()[1].split()[:4] == [FLAG, "10", "1", "1"]
    assert [each["percent"] for each in cli("rollout", "list", "--json").json["rollouts"]] == [10]


def test_a_person_is_told_which_way_a_tenant_goes(cli):
    cli("rollout", "set", FLAG, "100", "--deny", "globex")
    lines = cli("rollout", "show", FLAG, "--tenant", "globex", "--tenant", "acme").out.splitlines()
    assert ["globex", "fallback"] in [line.split() for line in lines]
    assert ["acme", "queue"] in [line.split() for line in lines]


def test_setting_the_percentage_keeps_the_tenants_until_they_are_cleared(cli):
    cli("rollout", "set", FLAG, "10", "--allow", "acme")
    assert cli("rollout", "set", FLAG, "0", "--json").json["allowed"] == ["acme"]
    assert cli("rollout", "set", FLAG, "0.5", "--clear", "acme", "--json").json["allowed"] == []
    assert cli("rollout", "show", FLAG, "--json").json["percent"] == 0.5


def test_what_is_said_of_a_tenant_leaves_the_percentage_and_its_reason_to_whoever_set_them(cli):
    cli("rollout", "set", FLAG, "50", "--reason", "ramp")
    cli("rollout", "set", FLAG, "0", "--reason", "lag grows")  # a colleague, meanwhile
    after = cli("rollout", "set", FLAG, "--allow", "acme", "--json").json
    assert (after["percent"], after["reason"], after["allowed"]) == (0, "lag grows", ["acme"])
    after = cli("rollout", "set", FLAG, "--clear", "acme", "--reason", "tried", "--json").json
    assert (after["percent"], after["reason"], after["allowed"]) == (0, "tried", [])
    assert cli("rollout", "set", FLAG, "10", "--json").json["reason"] == ""


def test_a_slip_in_the_name_is_no_new_rollout(cli):
    assert cli("rollout", "set", FLAG, "50").err == f"holdfast: new roll-out {FLAG}\n"
    assert cli("rollout", "set", FLAG, "60").err == ""
    slip = cli("rollout", "set", FLAG.replace("cluster", "clutser"), "0")
    assert (slip.code, f"did you mean {FLAG!r}?" in slip.err) == (1, True)
    assert [each["percent"] for each in cli("rollout", "list", "--json").json["rollouts"]] == [60]
    other = cli("rollout", "set", "shop_to_queue", "10")
    assert (other.code, other.err) == (0, f"holdfast: new roll-out shop_to_queue; others are: {FLAG}\n")
    assert cli("rollout", "set", "shop_to_queues", "10", "--create").code == 0


def test_a_tenant_may_be_denied_before_anybody_goes(cli):
    before = cli("rollout", "set", FLAG, "--deny", "globex", "--json").json
    assert (before["percent"], before["denied"]) == (0, ["globex"])


def test_a_rollout_that_is_removed_is_gone(cli):
    cli("rollout", "set", FLAG, "10")
    assert cli("rollout", "remove", FLAG).out == f"{FLAG} removed\n"
    assert cli("rollout", "list").out == "no roll-out was set\n"
    assert (cli("rollout", "remove", FLAG).code, cli("rollout", "show", FLAG).code) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("set", FLAG, "101"), "from 0 to 100"),
        (("set", FLAG, "nan"), "from 0 to 100"),
        (("set", "a b", "10"), "roll-out must have a name"),
        (("set", FLAG, "10", "--allow", "a b"), "tenant must be"),
        (("set", FLAG, "some"), "valid number"),
        (("set", FLAG), "say what to change"),
        (("set", FLAG, "--reason", "none"), "--allow"),
    ],
)
def test_what_cant_be_is_refused_and_changes_nothing(cli, arguments, told):
    said = cli("rollout", *arguments)
    assert said.code == 2
    assert told in said.err
    assert cli("rollout", "list", "--json").json == {"rollouts": []}


def test_a_name_nobody_has_set_is_told_with_those_that_are(cli):
    cli("rollout", "set", "other", "10")
    said = cli("rollout", "show", FLAG)
    assert (said.code, "known are other" in said.err) == (1, True)
