"""What tests wait with: it returns what was found, and its failure says what was waited for."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.waiting import stays, until, wait_until


async def test_the_value_that_was_accepted_is_returned():
    counter, other, third = itertools.count(), itertools.count(), itertools.count()

    async def read() -> int:
        return next(other)

    assert await until(lambda: next(counter)) == 1
    assert await until(read, lambda value: value > 2) == 3
    assert wait_until(lambda: next(third), lambda value: value > 2) == 3


@pytest.mark.parametrize("what", ["", "a kettle that boils"])
async def test_a_failure_names_what_was_waited_for_and_the_last_value(what):
    kettle = {"degrees": 21}
    with pytest.raises(AssertionError) as waited:
        await until(lambda: kettle, lambda kettle: kettle["degrees"] >= 100, what=what, seconds=0.01)
    with pytest.raises(AssertionError) as blocked:
        wait_until(lambda: kettle, lambda kettle: kettle["degrees"] >= 100, what=what, seconds=0.01)
    for failure in (str(waited.value), str(blocked.value)):
        assert "waited 0.01 s" in failure
        assert "{'degrees': 21}" in failure
        assert (what or 'kettle["degrees"] >= 100') in failure


async def test_a_read_that_hangs_is_no_reason_to_wait_for_ever():
    with pytest.raises(AssertionError, match="has not been read once"):
        await until(lambda: asyncio.Event().wait(), seconds=0.01)


async def test_only_the_errors_that_are_tolerated_count_as_not_yet():
    replies = iter([KeyError("early"), TimeoutError("slow"), 7])

    def read() -> int:
        if isinstance(reply := next(replies), Exception):
            raise reply
        return reply

    with pytest.raises(TimeoutError, match="slow"):
        await until(read, tolerate=KeyError)
    assert wait_until(read, tolerate=KeyError) == 7


async def test_what_happens_meanwhile_ends_the_proof_that_nothing_happens():
    happened: list[int] = []
    await stays(lambda: not happened, seconds=0.01)
    asyncio.get_running_loop().call_later(0.02, happened.append, 1)
    with pytest.raises(AssertionError, match="no longer: nothing has happened"):
        await stays(lambda: not happened, seconds=60, what="nothing has happened")


@settings(max_examples=1)
@given(st.just(0.3))
def test_an_example_that_waits_for_a_cpu_does_not_fail(seconds: float):
    """Fails with the deadline that Hypothesis has by default, which is 0.2 s."""
    time.sleep(seconds)
