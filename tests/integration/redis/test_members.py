"""Members: who lives, found in as few round trips however many they are."""

from __future__ import annotations

import pytest

from holdfast.config import RedisSettings
from holdfast.redis.client import Redis, connect
from holdfast.redis.members import Member, Members


@pytest.fixture
def members() -> Members:
    return Members(prefix="", heartbeat_seconds=10)


async def test_all_who_live_are_found_by_kind_and_name(redis: Redis, members: Members):
    for kind, name in (("worker", "b"), ("host", "a:1"), ("worker", "a")):
        await members.announce(redis, Member(kind, name, {"state": "working"}))
    found = [(each.kind, each.name, each.fields["state"]) for each in await members.all(redis)]
    assert found == [("host", "a:1", "working"), ("worker", "a", "working"), ("worker", "b", "working")]
    assert [each.name for each in await members.all(redis, "host")] == ["a:1"]
    assert await members.all(redis, "hos") == []


async def test_one_without_a_record_does_not_live_and_leaves_the_index_in_the_end(
    redis: Redis, members: Members
):
    await members.announce(redis, Member("worker", "dead", {}))
    await redis.execute_command("DEL", "member:worker:dead")
    assert await members.all(redis) == []
    assert await redis.execute_command("ZCARD", "members") == 1
    await redis.execute_command("ZADD", "members", 1, "worker:dead")
    await members.all(redis)
    assert await redis.execute_command("EXISTS", "members") == 0


async def test_a_heartbeat_writes_the_whole_record_with_one_command(redis: Redis, members: Members):
    async def writes() -> int:
        stats = await redis.info("commandstats")
        return stats.get("cmdstat_hset", {"calls": 0})["calls"]

    before, fields = await writes(), {f"field{n}": "x" for n in range(30)}
    await members.announce(redis, Member("worker", "a", fields))
    assert await writes() == before + 1
    (found,) = await members.all(redis)
    assert found.fields.items() >= fields.items()


async def test_a_catalogue_is_sent_once_and_then_kept(redis: Redis, members: Members):
    """Fails if every heartbeat sends it, or if one that Redis has lost stays lost."""
    await members.keep_catalogue(redis, "digest", b"[1]")
    await redis.execute_command("SET", "catalogue:digest", "there", "PX", 5_000)
    await members.keep_catalogue(redis, "digest", b"[2]")
    assert await members.catalogues(redis, ["digest", "other"]) == {"digest": b"there"}
    assert 5_000 < await redis.execute_command("PTTL", "catalogue:digest") <= 30_000
    await redis.execute_command("DEL", "catalogue:digest")
    await members.keep_catalogue(redis, "digest", b"[3]")
    assert await members.catalogues(redis, ["digest"]) == {"digest": b"[3]"}
    assert 5_000 < await redis.execute_command("PTTL", "catalogue:digest") <= 30_000


async def test_what_somebody_else_wrote_into_the_index_is_nobody(redis: Redis, members: Members):
    await redis.execute_command("ZADD", "members", 9e9, "nonsense", 9e9, b"\xff:\xff", 9e9, "")
    await members.announce(redis, Member("worker", "a", {}))
    assert [each.name for each in await members.all(redis)] == ["a"]


async def test_a_crowd_is_read_in_few_round_trips_and_others_not_at_all(
    redis: Redis, redis_settings: RedisSettings, members: Members
):
    """The mistake: one round trip for each process of any kind, whenever somebody looked for a host."""
    for number in range(450):
        await members.announce(redis, Member("worker", f"w{number}", {}))
    await members.announce(redis, Member("host", "a", {}))
    await members.all(redis)  # the server knows the script from here on
    client = connect(redis_settings)
    sent = []
    pool = client.connection_pool
    lend = pool.get_connection

    async def counted(*args: object, **options: object) -> object:
        sent.append(1)
        return await lend(*args, **options)

    pool.get_connection = counted
    assert len(await members.all(client)) == 451
    assert len(sent) == 4
    sent.clear()
    assert [each.name for each in await members.all(client, "host")] == ["a"]
    assert len(sent) == 2
    await client.aclose()
