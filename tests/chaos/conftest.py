"""What the chaos tests share: a queue with short times, worker processes, and a ledger."""

from __future__ import annotations

import pytest
from fleet import Fleet, Ledger
from system import System


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
async def system(redis, redis_settings):
    async with System(redis_settings, slots=4, ttl=2.0, drain=5.0) as system:
        yield system


@pytest.fixture
def fleet(system, ledger):
    fleet = Fleet(system, ledger)
    yield fleet
    fleet.close()
