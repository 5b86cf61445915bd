"""Which partition a run goes to: the same for the same key, evenly, and few move when the number changes."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import HostSettings, QueueSettings, RedisSettings, Settings, load
from holdfast.config.checks import companion_prefix, key_slot
from holdfast.config.queues import partition_name
from holdfast.errors import ConfigError
from holdfast.hosts.factory import open_cluster
from holdfast.redis.client import connect
from holdfast.redis.keys import QueueKeys
from holdfast.runs.queue import RunQueue
from holdfast.runs.routing import hint_of, key_of, partition_of, stamped
from holdfast.runs.run import Submission
from holdfast.runs.submit import uuid7

KEYS = [f"thread:t{n}" for n in range(4000)]


@given(st.text(), st.integers(1, 64))
def test_every_key_has_a_partition_and_one_more_moves_it_only_to_the_new_one(key, count):
    before, after = partition_of(key, count), partition_of(key, count + 1)
    assert 0 <= before < count
    assert after in (before, count)


@pytest.mark.parametrize("count", [2, 3, 4, 16, 64])
def test_keys_are_spread_evenly(count):
    spread = Counter(partition_of(key, count) for key in KEYS)
    assert len(spread) == count
    assert max(spread.values()) < 2.2 * len(KEYS) / count


def test_the_partition_of_a_key_is_the_same_in_every_version():
    """Written down: another function would put the threads of all running systems elsewhere."""
    assert [partition_of(f"thread:{name}", 4) for name in ("a", "b", "c", "d", "e", "f")] == [
        3,
        2,
        0,
        0,
        1,
        0,
    ]


def test_the_thread_decides_before_the_keys_and_these_before_the_id():
    asked = Submission(
        agent="a", thread_id="t", concurrency_key="c", idempotency_key="i", run_id="r", tenant="x/y"
    )
    assert key_of(asked) == "thread:x%2Fy/t"
    for left_out, key in (
        ("thread_id", "key:x%2Fy/c"),
        ("concurrency_key", "idempotency:x%2Fy/i"),
        ("idempotency_key", "run:r"),
        ("run_id", ""),
    ):
        asked = msgspec.structs.replace(asked, **{left_out: ""})
        assert key_of(asked) == key


def test_a_new_id_says_where_its_run_is():
    for partition in (0, 7, 63):
        assert hint_of(stamped(uuid7(), partition)) == partition
    assert [hint_of(name) for name in ("", "x", "run-5", "-1", "zz", "nightly")] == [None] * 6


@pytest.mark.parametrize("name", ["agent-queue", "browser:jobs", "{shop}:jobs", "jobs{shop}"])
def test_each_partition_has_a_slot_of_its_own_and_the_first_keeps_its_keys(name):
    whole = QueueSettings(name=name, partitions=64, deadletter="the-dead")
    parts = [whole.of_partition(number) for number in range(64)]
    assert (parts[0].stream, parts[0].deadletter) == (name, "the-dead")
    assert {part.name for part in parts} == {name}
    assert {part.group for part in parts} == {f"{name}-group"}
    assert len({key_slot(part.stream) for part in parts}) == 64
    assert len({companion_prefix(part.stream) for part in parts}) == 64
    for part in parts[1:]:
        keys = QueueKeys.of(part.stream, deadletter=part.deadletter)
        assert {key_slot(key) for key in (*keys.lanes, keys.deadletter, keys.run("x"))} == {
            key_slot(part.stream)
        }


def test_a_mailbox_is_not_partitioned_with_the_others():
    settings = Settings(queue=QueueSettings(partitions=8))
    redis = connect(RedisSettings(url="redis://nobody"))
    assert len(RunQueue(settings.queue_named("other"), redis).partitions) == 8
    assert len(RunQueue(settings.queue_named("mailbox:x"), redis).partitions) == 1


def test_hosts_on_a_cluster_need_a_tag():
    redis = RedisSettings(url="redis+cluster://nobody")
    with pytest.raises(ConfigError, match=r"hosts\.hash_tag is empty"):
        open_cluster(Settings(redis=redis), connect(redis))
    assert open_cluster(Settings(redis=redis, hosts=HostSettings(hash_tag="hosts")), connect(redis))


def test_a_partition_that_is_another_queue_is_refused(tmp_path):
    file = tmp_path / "holdfast.yaml"
    taken = partition_name("agent-queue", 2)
    file.write_text(f"queue:\n  partitions: 4\nqueues:\n  {taken}:\n    partitions: 1\n")
    with pytest.raises(ConfigError, match=rf"partitions.*needs the name {taken}"):
        load(file, environ={})
    assert load(file, environ={"HOLDFAST_QUEUE_PARTITIONS": "2"}).settings.queue.partitions == 2


def test_a_prefix_with_a_tag_would_put_all_partitions_into_one_slot():
    environ = {
        "REDIS_URL": "redis+cluster://a",
        "HOLDFAST_QUEUE_PARTITIONS": "2",
        "HOLDFAST_KEY_PREFIX": "{x}:",
    }
    with pytest.raises(ConfigError, match="one cluster slot"):
        load(environ=environ)
    assert load(environ={**environ, "REDIS_URL": "redis://a"}).settings.queue.partitions == 2


@pytest.mark.parametrize("number", ["0", "65", "x"])
def test_the_number_of_partitions_has_its_bounds(number):
    with pytest.raises(ConfigError, match=r"queue\.partitions"):
        load(environ={"HOLDFAST_QUEUE_PARTITIONS": number})
