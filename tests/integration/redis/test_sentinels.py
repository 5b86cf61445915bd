"""Asking sentinels: whoever is asked, none of them is forgotten."""

from __future__ import annotations

import asyncio

from holdfast.config import RedisSettings
from holdfast.redis.client import connect


async def test_no_sentinel_is_forgotten_while_many_ask_for_the_master(start_valkey):
    """Of many that ask at once, redis-py swaps sentinels away, until one that dies is the last one known."""
    primary, sentinel = start_valkey(append_only=False), start_valkey(sentinel=True)
    assert sentinel.ask(f"SENTINEL MONITOR main 127.0.0.1 {primary.port} 1").startswith("+OK")
    url = f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel.port}/main"
    client = connect(RedisSettings(url=url, max_connections=10))
    await asyncio.gather(*(client.execute_command("INCR", "n") for _ in range(20)))
    known = client.connection_pool.sentinel_manager.sentinels
    assert len({id(each) for each in known}) == 2
    await client.aclose()
