"""The batcher: one batch in flight, what comes meanwhile goes next together, everybody gets its own answer."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.redis.batcher import Batcher, fitting


class Server:
    """Answers batches when it is let, and remembers them."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.going = 0
        self.open = asyncio.Event()
        self.open.set()

    async def flush(self, items: list[int]) -> list[int | Exception]:
        self.going += 1
        assert self.going == 1, "two batches in flight"
        self.batches.append(items)
        await self.open.wait()
        self.going -= 1
        return [ValueError(f"odd {item}") if item % 2 else item * 10 for item in items]


async def test_one_alone_is_sent_at_once_without_a_task():
    server = Server()
    before = len(asyncio.all_tasks())
    assert await Batcher(server.flush).add(2) == 20
    assert (server.batches, len(asyncio.all_tasks())) == ([[2]], before)


async def test_what_comes_meanwhile_goes_next_together():
    server = Server()
    server.open.clear()
    batcher: Batcher[int, int] = Batcher(server.flush)
    adds = [asyncio.create_task(batcher.add(n)) for n in (0, 2, 4, 6)]
    await asyncio.sleep(0)
    server.open.set()
    assert await asyncio.gather(*adds) == [0, 20, 40, 60]
    assert server.batches == [[0], [2, 4, 6]]


async def test_everybody_gets_its_own_error():
    server = Server()
    batcher: Batcher[int, int] = Batcher(server.flush)
    with pytest.raises(ValueError, match="odd 1"):
        await batcher.add(1)
    answers = await asyncio.gather(*(batcher.add(n) for n in range(4)), return_exceptions=True)
    assert [str(a) for a in answers] == ["0", "odd 1", "20", "odd 3"]


async def test_a_caller_that_is_cancelled_costs_the_others_nothing():
    server = Server()
    server.open.clear()
    batcher: Batcher[int, int] = Batcher(server.flush)

    async def flush(items):
        try:
            return await server.flush(items)
        finally:
            server.going = 0

    batcher._flush = flush
    first, second = asyncio.create_task(batcher.add(0)), asyncio.create_task(batcher.add(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    server.open.set()
    assert await second == 20


async def test_what_its_caller_has_given_up_is_not_sent_any_more():
    server = Server()
    server.open.clear()
    batcher: Batcher[int, int] = Batcher(server.flush)
    adds = [asyncio.create_task(batcher.add(n)) for n in (0, 2, 4)]
    await asyncio.sleep(0)
    adds[1].cancel()
    server.open.set()
    assert [await adds[0], await adds[2]] == [0, 40]
    assert adds[1].cancelled()
    assert server.batches == [[0], [4]]


async def test_closing_waits_for_what_is_on_its_way():
    server = Server()
    server.open.clear()
    batcher: Batcher[int, int] = Batcher(server.flush)
    adds = [asyncio.create_task(batcher.add(n)) for n in (0, 2)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(batcher.aclose())
    await asyncio.sleep(0)
    assert not closing.done()
    server.open.set()
    await closing
    assert server.batches == [[0], [2]]
    await asyncio.gather(*adds)


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ([], 0),
        ([1], 1),
        ([1] * 10, 5),
        ([3_000_000, 3_000_000], 1),
        ([9_000_000, 1], 1),
        ([2_000_000] * 3, 2),
    ],
)
def test_a_call_is_bounded_in_count_and_bytes(sizes, count):
    assert fitting(sizes, lambda size: size, most=5) == count
