"""What a command prints with --json is what the HTTP API returns: both are written from the same views."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys

import msgspec
import pytest

from holdfast import App
from holdfast.agents.catalogue import catalogue_of
from holdfast.config import ApiSettings, Settings
from holdfast.hosts.directory import describe
from holdfast.hosts.factory import registry_of
from holdfast.hosts.placement import HostLoad
from holdfast.hosts.residents import resident_agent
from holdfast.redis.client import Redis
from holdfast.redis.members import Member, Members
from holdfast.schedules.history import past_turn
from holdfast.schedules.schedule import Schedule
from holdfast.services.api import ApiProcess
from holdfast.views.residents import Needs
from holdfast.views.triggers import Once
from tests.support.api.server import RunningApi
from tests.support.processes import forked
from tests.support.runs.manual_worker import Hand, bury, open_queue
from tests.support.schedules.manual_scheduler import Board


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/runs", "runs list"),
        ("/runs/failed-run", "runs show failed-run"),
        ("/runs/failed-run/explain", "runs explain failed-run"),
        ("/queues", "queues list"),
        ("/queues/agent-queue", "queues show"),
        ("/deadletters", "dead list"),
        ("/deadletters/failed-run", "dead show failed-run"),
        ("/relay/undelivered", "relay undelivered list"),
        ("/agents", "agents list"),
        ("/agents/sort", "agents show sort"),
        ("/hosts", "hosts list"),
        ("/residents", "residents list"),
        ("/residents/clerk", "residents show clerk"),
        ("/schedules/nightly", "schedules show nightly"),
        ("/schedules/nightly/next", "schedules next nightly"),
        ("/schedules/nightly/turns", "schedules turns nightly"),
        ("/schedules/nightly/explain", "schedules explain nightly"),
    ],
)
async def test_a_command_prints_the_bytes_that_the_api_returns(
    redis, redis_settings, tmp_path, monkeypatch, path, command
):
    monkeypatch.chdir(tmp_path)
    await bury(await Hand(await open_queue(redis), "a").join(), "failed-run")
    await _keep_paused(Board(redis), "nightly")
    serving = ApiSettings(port=0, linger_seconds=0.0, janitor=False, relay=False)
    settings = Settings(redis=redis_settings, api=serving)
    await _register_agents(redis, Members.of(settings))
    await _register_host(redis, Members.of(settings))
    await _place_resident(redis, settings)
    api = await RunningApi(ApiProcess(settings)).ready()
    try:
        answer = await api.client().get(path)
        printed = await asyncio.to_thread(_print, command, redis_settings.url)
    finally:
        await api.close()
    assert answer.status_code == 200
    assert _at_one_moment(printed) == _at_one_moment(msgspec.json.format(answer.content, indent=2) + b"\n")


async def _register_agents(redis: Redis, members: Members) -> None:
    """Announce a worker that has the agents of an app."""
    app = App("tests")
    app.agent(sort)
    catalogue = catalogue_of(app.agents)
    await members.keep_catalogue(redis, catalogue.digest, catalogue.data)
    fields = {"agents": "sort", "queues": "agent-queue", "since": "1.5", "catalogue": catalogue.digest}
    await members.announce(redis, Member("worker", "w", fields))


async def _register_host(redis: Redis, members: Members) -> None:
    """Announce a host with one agent."""
    host = HostLoad(name="here", address="127.0.0.1:1", agents=1, capacity=3, cpu=1.5, labels=("gpu",))
    await members.announce(redis, Member("host", host.name, {**describe(host), "pid": "7", "since": "1.5"}))


async def _place_resident(redis: Redis, settings: Settings) -> None:
    """Have a resident wait for a host."""
    needs = Needs(cpu=0.5, near=("gpu",))
    clerk = resident_agent("clerk", "Clerk", {"greeting": "good day"}, needs=needs, tenant="acme")
    await registry_of(settings, redis).want(clerk)


class Ticket(msgspec.Struct):
    id: int
    created_at: float


async def sort(ticket: Ticket) -> Ticket:
    """Sort a ticket."""
    return ticket


async def _keep_paused(board: Board, name: str) -> None:
    """Make a schedule that has run once and now waits for nothing that a clock brings."""
    schedule = Schedule(name=name, agent="work", trigger=Once(at=2_000_000_000))
    await board.registry.register([schedule])
    await board.registry.trigger([name])
    pod = board.pod()
    run = await pod.one()
    await pod.complete(run, history=past_turn(run, schedule, "succeeded", 12.5))
    await board.registry.pause([name], "the database moves")


def _at_one_moment(shown: bytes) -> bytes:
    """Without the one number that grows from the request to the command."""
    return re.sub(rb'(?<="consumer_idle_seconds": )[0-9.]+', b"SECONDS", shown)


def _print(command: str, redis_url: str) -> bytes:
    done = forked.run(
        [sys.executable, "-m", "holdfast", *command.split(), "--json"],
        stdout=subprocess.PIPE,
        env={**os.environ, "REDIS_URL": redis_url},
        check=True,
        timeout=60,
    )
    return done.stdout
