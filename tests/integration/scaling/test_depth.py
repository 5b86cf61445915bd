"""How much work queues hold, in one round trip, and what HTTP says of it."""

from __future__ import annotations

import pytest

from holdfast.config import QueueSettings, RedisSettings
from holdfast.redis.client import DISCONNECTS, REFUSALS, Redis, connect
from holdfast.runs.queue import RunQueue
from holdfast.runs.run import Priority, Submission
from holdfast.scaling.depth import needs
from tests.support.redis.fault_proxy import FaultProxy


def queue_of(redis: Redis, name: str, **settings) -> RunQueue:
    return RunQueue(QueueSettings(name=name, **settings), redis)


async def filled(redis: Redis, name: str, waiting: int, held: int = 0) -> RunQueue:
    queue = queue_of(redis, name)
    await queue.ensure()
    for _ in range(waiting + held):
        await queue.submit(Submission(agent="a"))
    if held:
        reading = ("XREADGROUP", "GROUP", queue.settings.group, "w", "COUNT", held)
        await redis.execute_command(*reading, "STREAMS", queue.keys.stream, ">")
    return queue


async def test_many_queues_are_read_in_one_round_trip(redis: Redis):
    queues = [await filled(redis, f"q{n}", waiting=n, held=2) for n in range(5)]
    await needs(redis, queues)  # the script is known from here on
    sent: list[int] = []
    pool = redis.connection_pool
    connection = await pool.get_connection()
    send = connection.send_packed_command

    async def count(command, **options):
        sent.append(1)
        return await send(command, **options)

    connection.send_packed_command = count
    await pool.release(connection)
    found = await needs(redis, queues)
    assert [(need.queue, need.undelivered, need.in_flight) for need in found] == [
        (f"q{n}", n, 2) for n in range(5)
    ]
    assert len(sent) == 1


async def test_a_server_that_forgot_the_script_is_given_it_again(redis: Redis):
    queues = [await filled(redis, name, 1) for name in ("a", "b", "c")]
    await redis.execute_command("SCRIPT", "FLUSH")
    assert [need.undelivered for need in await needs(redis, queues)] == [1, 1, 1]


async def test_a_damaged_queue_is_an_error_not_nothing(redis: Redis):
    queues = [await filled(redis, "fine", 1), queue_of(redis, "broken")]
    await redis.execute_command("SET", "broken", "no stream")
    with pytest.raises(REFUSALS):
        await needs(redis, queues)


async def test_a_redis_that_is_away_is_an_error_never_zero(
    fault_proxy: FaultProxy, patient_settings: RedisSettings
):
    client = connect(patient_settings)
    try:
        queues = [queue_of(client, name) for name in ("a", "b")]
        assert [need.depth for need in await needs(client, queues)] == [0, 0]
        fault_proxy.refuse()
        for asked in (queues, queues[:1]):
            with pytest.raises(DISCONNECTS):
                await needs(client, asked)
    finally:
        await client.aclose()


async def test_what_waits_in_a_paused_queue_wants_nobody(redis: Redis):
    queue = await filled(redis, "q", waiting=9, held=2)
    assert (await needs(redis, [queue]))[0].depth == 11
    await queue.pause("upgrade")
    need = (await needs(redis, [queue]))[0]
    assert (need.depth, need.wanted, need.paused, need.undelivered) == (2, 1, True, 9)
    await queue.resume()
    assert (await needs(redis, [queue]))[0].depth == 11


async def test_what_a_worker_holds_counts_although_somebody_deleted_it(redis: Redis):
    """Fails if only lanes with entries are looked at: a busy worker would be scaled to zero."""
    queue = await filled(redis, "q", waiting=3, held=2)
    await redis.execute_command("XTRIM", queue.keys.stream, "MAXLEN", 0)
    need = (await needs(redis, [queue]))[0]
    assert (need.depth, need.in_flight, need.undelivered, need.wanted) == (2, 2, 0, 1)


async def test_a_lane_without_the_group_and_one_that_is_missing_hold_nobody(redis: Redis):
    queue = queue_of(redis, "q")
    assert (await needs(redis, [queue]))[0].depth == 0
    await redis.execute_command("XADD", queue.keys.stream, "1-1", "f", "v")
    assert (await needs(redis, [queue]))[0].undelivered == 1
    await redis.execute_command("XDEL", queue.keys.stream, "1-1")
    assert (await needs(redis, [queue]))[0].depth == 0
    assert (await queue.depth()).consumers == 0


async def test_what_was_acked_and_left_there_wants_nobody(redis: Redis):
    """As after delete_after_ack was off, or a foreign consumer's XACK: idle workers would be kept for it."""
    queue = await filled(redis, "q", waiting=0, held=5)
    entries = await redis.xrange(queue.keys.stream)
    await redis.xack(queue.keys.stream, queue.settings.group, *(entry for entry, _ in entries))
    need = (await needs(redis, [queue]))[0]
    assert (need.depth, need.undelivered, need.wanted) == (0, 0, 0)
    await queue.submit(Submission(agent="a"))
    assert (await needs(redis, [queue]))[0].undelivered > 0


async def test_what_is_held_in_one_lane_hides_nothing_that_waits_in_another(redis: Redis):
    queue = await filled(redis, "q", waiting=0, held=3)
    await redis.execute_command("XTRIM", queue.keys.stream, "MAXLEN", 0)
    for _ in range(3):
        await queue.submit(Submission(agent="a", priority=Priority.LOW))
    need = (await needs(redis, [queue]))[0]
    assert (need.undelivered, need.in_flight) == (3, 3)
