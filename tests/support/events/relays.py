"""What the relay's tests share: runs written by hand, and relays in this process or in their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from typing import Any, Self

import msgspec

from holdfast.config import EventApiSettings, LeaseSettings, RedisSettings, RelaySettings, Settings
from holdfast.redis.client import DISCONNECTS, connect
from holdfast.redis.keys import QueueKeys
from holdfast.redis.members import Member, Members
from holdfast.services.connections import Connections
from holdfast.services.relay import Relay
from holdfast.telemetry.metrics import Metrics
from tests.support.processes import forked
from tests.support.redis.key_ttls import check_keys
from tests.support.waiting import PATIENCE_SECONDS, until

QUICK = {
    # Ample: an answer that a busy machine gives late would be delivered twice. Who waits it out has a short one.
    "timeout_seconds": 30.0,
    "retry_first_seconds": 0.02,
    "retry_most_seconds": 0.1,
    "poll_seconds": 0.005,
    "breaker_failures": 5,
    "breaker_seconds": 0.1,
    "private_webhooks": True,
}


class Running:
    """A relay that runs as a task of the test."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.metrics = Metrics()
        self._connections = Connections(settings)
        self.relay = Relay(self._connections, self.metrics, name=name)
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self._connections:
            await self.relay.run()

    async def stop(self) -> None:
        self.relay.request_stop()
        await asyncio.wait_for(self.task, PATIENCE_SECONDS)

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"holdfast_{name}", labels) or 0.0


class Outside:
    """One queue whose runs have events for the outside: ``say`` appends them as the scripts of runs/ do."""

    def __init__(self, redis: RedisSettings, url: str = "", *, ttl: float = 30.0, **relay: Any) -> None:
        # The same for the ttl: an entry whose lease has ended is delivered again.
        self.settings = Settings(
            redis=redis,
            lease=LeaseSettings(ttl_seconds=ttl),
            event_api=EventApiSettings(url=url, secret="the secret"),
            relay=RelaySettings(**{**QUICK, **relay}),
        )
        self.keys = QueueKeys.of("agent-queue")
        self.redis: Any = connect(redis)
        self.running: list[Running] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for running in self.running:
            running.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running.task
        with contextlib.suppress(*DISCONNECTS):
            await check_keys(self.redis)
        await self.redis.aclose()

    def relay(self, name: str = "", **relay: Any) -> Running:
        settings = msgspec.structs.replace(
            self.settings, relay=msgspec.structs.replace(self.settings.relay, **relay)
        )
        running = Running(settings, name or f"relay-{len(self.running)}")
        self.running.append(running)
        return running

    async def run(self, run_id: str, **message: Any) -> str:
        """A run that goes on."""
        fields = {
            "status": "running",
            "agent": "echo",
            "thread": "",
            "submitted_at": "1",
            "outbox": self.keys.outbox,
        }
        envelope = msgspec.json.encode({"input": None, **message})
        await self.redis.hset(self.keys.run(run_id), mapping={**fields, "message": envelope})
        return run_id

    async def say(self, run_id: str, *kinds: str, data: Any = None, announced: bool = True) -> list[str]:
        """Append events; return their ids."""
        async with self.redis.pipeline(transaction=True) as pipe:
            for kind in kinds:
                pipe.zadd(self.keys.outbox, {run_id: 0}, nx=True)
                pipe.xadd(self.keys.feed(run_id), {"type": kind, "data": msgspec.json.encode(data)})
            if announced:
                pipe.publish(self.keys.outbox_notify, "events")
            replies = await pipe.execute()
        return [reply.decode() for reply in replies[1 : 2 * len(kinds) : 2]]

    async def emptied(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until nothing is left to deliver."""
        await until(
            self.waiting,
            lambda count: count == 0,
            what="an empty outbox",
            seconds=seconds,
            tolerate=DISCONNECTS,
        )

    async def waiting(self) -> int:
        return await undelivered_runs(self.redis, self.keys)

    async def undelivered(self) -> list[dict[str, str]]:
        entries = await self.redis.xrange(self.keys.undelivered)
        return [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in entries]


async def undelivered_runs(redis: Any, keys: QueueKeys) -> int:
    """Count the runs with events that no receiver of a sink has taken yet."""
    # A run moves from the outbox to the sinks in one step: read the sinks last, or it is missed.
    sets = [keys.outbox, *(keys.outbox_entries(sink) for sink in ("eventapi", "webhook", "push"))]
    return sum([await redis.zcard(each) for each in sets])


async def announce_relay(redis: Any, *sinks: str, queue: str = "agent-queue") -> None:
    """Have a relay that delivers to these sinks live, for whoever asks."""
    members = Members(prefix="", heartbeat_seconds=PATIENCE_SECONDS)
    await members.announce(redis, Member("relay", "relay-1", {"queues": queue, "sinks": ",".join(sinks)}))


class RelayChild:
    """A relay in a process of its own, which can be killed and stopped."""

    def __init__(self, settings: Settings) -> None:
        relay = settings.relay
        code = (
            "import sys, msgspec; from holdfast.config import load, RelaySettings; "
            "from holdfast.services.relay import run_relay; from holdfast.telemetry.logs import configure; "
            "s = load().settings; configure(s.log); "
            "r = msgspec.json.decode(sys.argv[1].encode(), type=RelaySettings); "
            "sys.exit(run_relay(msgspec.structs.replace(s, relay=r)))"
        )
        variables = {
            **{k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")},
            "REDIS_URL": settings.redis.url,
            "EVENT_API_URL": settings.event_api.url,
            "HOLDFAST_LEASE_TTL_SECONDS": str(settings.lease.ttl_seconds),
        }
        self.process = forked.Popen(
            [sys.executable, "-c", code, msgspec.json.encode(relay).decode()],
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.thaw()
            self.kill()
