"""How a program asks for runs and waits for them: ``Client`` for asyncio, ``SyncClient`` for scripts."""

from __future__ import annotations

from holdfast.client.client import Client
from holdfast.client.handle import RunHandle
from holdfast.client.sync import SyncClient, SyncRunHandle

__all__ = ["Client", "RunHandle", "SyncClient", "SyncRunHandle"]
