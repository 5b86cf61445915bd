"""All settings: one frozen tree, whose attribute paths are the paths in ``holdfast.yaml``.

Each leaf is declared once, in the module of its area, with its default, its limits, its description and its
environment names.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.config.database import DatabaseSettings
from holdfast.config.hosting import HostSettings
from holdfast.config.outside import ApiSettings, ClientSettings, EventApiSettings, RelaySettings
from holdfast.config.processes import (
    JanitorSettings,
    LogSettings,
    MetricsSettings,
    PodSettings,
    WorkerSettings,
)
from holdfast.config.queues import LeaseSettings, QueueSettings
from holdfast.config.redis import MessagingSettings, RedisSettings, SenderSettings
from holdfast.config.scaler import ScalerSettings
from holdfast.config.section import Section


class Settings(Section, frozen=True, kw_only=True):
    """The whole tree."""

    redis: RedisSettings = RedisSettings()
    messaging: MessagingSettings = MessagingSettings()
    lease: LeaseSettings = LeaseSettings()
    queue: QueueSettings = QueueSettings()
    queues: Mapping[str, QueueSettings] = {}
    sender: SenderSettings = SenderSettings()
    worker: WorkerSettings = WorkerSettings()
    janitor: JanitorSettings = JanitorSettings()
    pod: PodSettings = PodSettings()
    log: LogSettings = LogSettings()
    metrics: MetricsSettings = MetricsSettings()
    event_api: EventApiSettings = EventApiSettings()
    relay: RelaySettings = RelaySettings()
    database: DatabaseSettings = DatabaseSettings()
    api: ApiSettings = ApiSettings()
    client: ClientSettings = ClientSettings()
    hosts: HostSettings = HostSettings()
    scaler: ScalerSettings = ScalerSettings()

    def queue_names(self) -> tuple[str, ...]:
        """Return every queue's name, the default queue first."""
        return tuple(dict.fromkeys((self.messaging.queue, *self.queues, *self.worker.queues)))

    def queue_named(self, name: str) -> QueueSettings:
        """Return a queue's settings; a queue that is not configured has the defaults."""
        described = self.queues.get(name)
        if described is not None:
            return described
        return self.queue if name == self.queue.name else self.queue.renamed(name)

    def worker_queues(self) -> tuple[QueueSettings, ...]:
        """Return the queues that a worker serves."""
        return tuple(self.queue_named(name) for name in self.worker.queues or (self.messaging.queue,))
