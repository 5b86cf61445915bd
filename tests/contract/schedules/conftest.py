"""What most of these tests stand on: a board to move schedules by hand, or a stage with whole schedulers."""

from __future__ import annotations

import pytest

from tests.support.redis.key_ttls import check_keys
from tests.support.schedules.manual_scheduler import Board
from tests.support.schedules.schedulers import SHORT_TTL_SECONDS, stage_of


@pytest.fixture
async def board(redis):
    board = Board(redis)
    yield board
    await check_keys(redis)


@pytest.fixture
async def stage(redis, redis_settings):
    async with stage_of(redis, redis_settings) as stage:
        yield stage


@pytest.fixture
async def stage_of_short_leases(redis, redis_settings):
    async with stage_of(redis, redis_settings, ttl=SHORT_TTL_SECONDS) as stage:
        yield stage
