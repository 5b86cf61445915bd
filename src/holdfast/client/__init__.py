"""How a program asks for runs and waits for them: ``Client`` for asyncio, ``SyncClient`` for scripts.

``Producer`` is for a program that is being moved from another way to a queue.
"""

from __future__ import annotations

from holdfast.client.client import Client
from holdfast.client.handle import RunHandle
from holdfast.client.producer import Producer, Sent
from holdfast.client.rollout import Rollout
from holdfast.client.sync import SyncClient, SyncRunHandle

__all__ = ["Client", "Producer", "Rollout", "RunHandle", "Sent", "SyncClient", "SyncRunHandle"]
