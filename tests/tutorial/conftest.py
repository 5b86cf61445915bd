"""A queue and a client for the tutorial; ``start(app)`` starts a worker."""

from __future__ import annotations

import pytest

from holdfast import Client
from tests.support.runs.system import System


@pytest.fixture
async def system(redis, redis_settings):
    async with System(redis_settings, slots=3, ttl=4.0, drain=0.2) as system:
        yield system


@pytest.fixture
async def client(system):
    async with Client(settings=system.settings) as client:
        yield client


@pytest.fixture
def start(system):
    return system.worker
