"""What the API needs of its process beside the system: metrics, open streams, and whether it is stopping."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.api.unserved import UnservedQueues
    from holdfast.operations import System
    from holdfast.telemetry.exporter import HttpAnswer


@dataclass(slots=True)
class Backend:
    """The system, and what only an API has."""

    system: System
    metrics: Callable[[str], HttpAnswer]
    """Returns the response of /metrics to an Accept header."""
    count: Callable[[str, int, float], None]
    """Counts a request: its route, its status and its seconds."""
    streams: Callable[[int], None]
    """Counts open event streams: one more, one less."""
    unserved: UnservedQueues
    """Queues whose runs wait without a worker."""
    draining: asyncio.Event = field(default_factory=asyncio.Event)
