"""Outages that this process has logged: a test must not depend on one that an earlier test left behind."""

from __future__ import annotations

from typing import Any

from holdfast.kubernetes import outages as kubernetes
from holdfast.redis import outages as redis
from holdfast.redis.scripts import Script
from holdfast.store import engine


def forget_outages() -> None:
    """Let the next failure of each dependency be the first of an outage."""
    for outage in (redis._REDIS, engine._DATABASE, kubernetes._KUBERNETES):
        outage._end()
    Script.warned_of_missing_at = float("-inf")


def outage_lines(lines: list[dict[str, Any]], dependency: str = "Redis") -> list[dict[str, Any]]:
    """The lines of outages of one dependency."""
    told = {f"{dependency} unavailable", f"{dependency} available again"}
    return [line for line in lines if line["event"] in told]


def held_up_by_redis() -> list[str]:
    """What has failed in this process since Redis became unavailable."""
    return list(redis._REDIS._held_up)


def reporters_that_fail() -> int:
    """How many loops of this process were not answered since their last call to Redis failed."""
    return len(redis._REDIS._failing)
