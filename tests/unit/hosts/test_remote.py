"""Calls to hosts over gRPC: the channels that are kept, and how often a call is tried."""

from __future__ import annotations

import pytest
from valkeyprocess import free_port

from holdfast.config import HostSettings
from holdfast.hosts.calls import CallFailed
from holdfast.hosts.remote import RemoteCalls


class Clock:
    """Stands still until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


async def ask_nobody(calls: RemoteCalls, address: str) -> None:
    with pytest.raises(CallFailed):
        await calls.health(address, timeout_seconds=5)


async def test_a_channel_that_nobody_uses_is_not_kept():
    clock = Clock()
    calls = RemoteCalls(HostSettings(), clock)
    gone, lives, new = (f"127.0.0.1:{free_port()}" for _ in range(3))
    try:
        await ask_nobody(calls, gone)
        await ask_nobody(calls, lives)
        clock.now = 400.0
        await ask_nobody(calls, lives)
        assert calls.addresses == {gone, lives}
        clock.now = 800.0
        await ask_nobody(calls, new)
        assert calls.addresses == {lives, new}
    finally:
        await calls.close()
