"""What the chaos tests share: a queue with short times, worker processes, and a ledger."""

from __future__ import annotations

import pytest

from tests.support.runs.system import System
from tests.support.runs.worker_processes import Fleet, Ledger


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger(tmp_path / "ledger")


@pytest.fixture
def short_leases() -> None:
    """For tests that wait until a lease is over; in the others a busy machine must lose none."""


@pytest.fixture
async def system(redis, redis_settings, request):
    # The short one is long enough for a process that gets no CPU for two seconds.
    ttl = 4.0 if "short_leases" in request.fixturenames else 15.0
    async with System(redis_settings, slots=4, ttl=ttl, drain=10.0) as system:
        yield system


@pytest.fixture
def fleet(system, ledger):
    fleet = Fleet(system, ledger)
    yield fleet
    fleet.close()
