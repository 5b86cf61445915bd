"""The journal that all frameworks share: what it calls, and when it calls nothing."""

from __future__ import annotations

import gc
import warnings

import pytest

from holdfast.agents.frameworks.replay import Replay
from holdfast.errors import LeaseLost
from holdfast.leases.trust import Trust


async def test_no_coroutine_is_made_of_a_call_after_the_end_of_the_lease(attempts):
    """The mistake: it was made, never awaited, and Python warned of it."""
    made = []

    async def work() -> bytes:
        return b"1"

    def call():
        made.append(1)
        return work()

    replay = Replay(attempts.context(trust=Trust(lambda: 0.0)), "some")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(LeaseLost):
            await replay.leased(call)
        gc.collect()
    assert made == []
    assert isinstance(replay.unwinding, LeaseLost), "whatever the framework makes of the exception"
