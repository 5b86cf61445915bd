"""Webhooks to this machine, beside the embedded server: whatever process accepts one, the relay delivers to it."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast.client import Client
from holdfast.config import RedisSettings, Settings
from holdfast.redis.embedded import EmbeddedServer
from tests.support.cli.dev_command import Command, StartDev
from tests.support.events.event_receiver import Receiver
from tests.support.waiting import until


def beside(folder: Path) -> Settings:
    """The settings of a program in that folder, which has no REDIS_URL."""
    return Settings(redis=RedisSettings(embedded_dir=str(folder / ".holdfast/redis")))


async def delivered(client: Client, receiver: Receiver) -> None:
    """Submit a run with a webhook to this machine, and wait for the first event of the run there."""
    run = await client.submit("greet", "Ada", webhook=receiver.url)
    first = f"{run.run_id}/1"
    await until(lambda: any(got.headers.get("webhook-id") == first for got in receiver.taken), seconds=60)


async def test_dev_delivers_to_receivers_on_this_machine(start_dev: StartDev, short_dir: Path):
    dev = start_dev().ready()
    over_http = Client(api_url=dev.api, settings=Settings())
    async with Receiver() as receiver, Client(settings=beside(short_dir)) as over_redis, over_http:
        for client in (over_redis, over_http):
            await delivered(client, receiver)


async def test_so_do_an_api_and_a_relay_that_were_started_by_hand(short_dir: Path):
    """Fails if they refuse, or take and drop, what a client beside them may submit."""
    async with EmbeddedServer(short_dir / ".holdfast/redis"), Receiver() as receiver:
        api = Command(short_dir, "api", "--json", HOLDFAST_API_PORT="0", HOLDFAST_API_RELAY="false")
        relay = Command(short_dir, "relay", "--json")
        try:
            api.says('"api ready"')
            relay.says('"relay ready"')
            ready = json.loads(next(line for line in api.lines if '"api ready"' in line))
            over_http = Client(api_url=f"http://127.0.0.1:{ready['port']}", settings=Settings())
            async with Client(settings=beside(short_dir)) as over_redis, over_http:
                for client in (over_redis, over_http):
                    await delivered(client, receiver)
        finally:
            for command in (api, relay):
                command.process.terminate()
                command.exited()
                command.process.stdout.close()
