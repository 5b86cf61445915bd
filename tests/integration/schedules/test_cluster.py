"""A cluster: with a hash tag every script finds all its keys in one slot, without one Redis refuses."""

from __future__ import annotations

import pytest
from redis.exceptions import RedisClusterException, ResponseError

from holdfast.config import RedisSettings
from holdfast.leases.lease import RenewalReply
from holdfast.redis.client import connect
from holdfast.redis.keys import ScheduleKeys
from holdfast.schedules.acquisition import Acquirer, schedule_leases
from holdfast.schedules.completion import Completer, Completion
from holdfast.schedules.entries import Entries
from holdfast.schedules.orphans import Orphans, cleanup_leadership
from holdfast.schedules.registry import ScheduleRegistry
from holdfast.schedules.replies import ChangeReply, Ended, Registered
from tests.support.redis.valkey_process import free_port
from tests.support.schedules.manual_scheduler import registration

TAGGED = ScheduleKeys.of(prefix="myapp:", hash_tag="ps")


def test_names_are_prefix_base_and_tag():
    assert (TAGGED.waiting, TAGGED.working) == ("myapp:waiting{ps}", "myapp:working{ps}")
    assert TAGGED.leader == "myapp:cleanup-leader{ps}"
    assert TAGGED.record("nightly") == "myapp:schedule{ps}:nightly"
    plain = ScheduleKeys.of(waiting="due", working="busy", leader="boss")
    assert (plain.waiting, plain.working, plain.leader, plain.record("x")) == (
        "due",
        "busy",
        "boss",
        "schedule:x",
    )


@pytest.fixture
async def cluster(start_valkey):
    bus = str(free_port())
    node = start_valkey("--cluster-enabled", "yes", "--cluster-port", bus, append_only=False)
    node.ask("CLUSTER ADDSLOTSRANGE 0 16383")
    node.wait_for("CLUSTER INFO", "cluster_state:ok")
    client = connect(RedisSettings(url=f"redis+cluster://127.0.0.1:{node.port}"))
    yield client
    await client.aclose()


async def test_a_whole_life_in_a_cluster(cluster):
    registry, entries = ScheduleRegistry(cluster, TAGGED), Entries(cluster, TAGGED)
    acquirer = Acquirer(cluster, TAGGED, owner="pod", ttl_ms=30_000)
    completer, orphans = Completer(cluster, TAGGED, owner="pod"), Orphans(cluster, TAGGED)
    names = [f"name-{n}" for n in range(40)]
    assert await registry.put(
        [registration(name, first=1.0, priority=n % 9) for n, name in enumerate(names)]
    ) == ([Registered.CREATED] * 40)
    runs = (await acquirer.acquire(10)).schedules + (await acquirer.acquire(40, lambda *_: True)).schedules
    assert sorted(run.name for run in runs) == sorted(names)
    leases = [run.lease("pod") for run in runs]
    assert set(await schedule_leases(TAGGED, owner="pod", ttl_ms=9000).renew(cluster, leases)) == {
        RenewalReply.KEPT
    }
    assert await completer.give_back(leases[:5], [0.0] * 5) == [Ended.RETURNED] * 5
    assert (
        await completer.complete([Completion(run.name, run.fence, 9e9) for run in runs[5:]])
        == [Ended.COMPLETED] * 35
    )
    assert await registry.pause(names[:1], "why") == [ChangeReply.PAUSED]
    assert await registry.resume(names[:1]) == [ChangeReply.RESUMED]
    assert await registry.trigger(names[:1]) == [ChangeReply.TRIGGERED]
    assert await registry.stop(names[:1], "why") == [ChangeReply.IDLE]
    assert (await registry.count()).registered == len((await entries.list(limit=100)).entries) == 40
    assert await orphans.reclaim() == []
    assert (await orphans.sweep()).looked_at == 40
    assert await registry.repopulate(lambda lost: pytest.fail(lost.name)) == []
    office = cleanup_leadership(TAGGED, owner="pod", ttl_ms=9000)
    term = await office.campaign(cluster)
    assert await office.renew(cluster, [term]) == [RenewalReply.KEPT]
    assert await registry.remove(names) == [ChangeReply.REMOVED] * 40


async def test_without_a_tag_a_cluster_refuses(cluster):
    registry = ScheduleRegistry(cluster, ScheduleKeys.of())
    with pytest.raises((RedisClusterException, ResponseError)):
        await registry.put([registration("a", first=1.0)])
