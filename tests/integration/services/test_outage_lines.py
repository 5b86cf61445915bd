"""What an outage of Redis is in the log of each process: two lines, however many of its loops meet it."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from tests.support.store.service_processes import Service
from tests.support.waiting import stays, until

SERVICES = ("worker", "scheduler", "relay", "janitor", "api")
BEGAN, ENDED = "Redis unavailable", "Redis available again"
USUAL = {"relay ready", "janitor ready", "store swept"}
"""What a janitor, and an api, which is a relay and a janitor too, logs soon after its start."""
MOST_LINES = 3
"""That it began, that it ended, and that the server has forgotten its scripts."""


class Log:
    """What a process has logged since this was made, without what a busy machine adds."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._before = len(service.logged())

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of the first outage."""
        text = self._service.logged()[self._before :].rpartition("\n")[0]
        found = [json.loads(line) for line in text.splitlines()]
        found = [line for line in found if line.get("logger") != "holdfast.agents.watchdog"]
        found = [line for line in found if line["event"] not in USUAL]
        events = [line["event"] for line in found]
        return found[: events.index(ENDED) + 1] if ENDED in events else found

    def has(self, event: str) -> bool:
        return any(line["event"] == event for line in self.lines())


@pytest.fixture
def services(restartable_valkey, tmp_path):
    store = {"HOLDFAST_DATABASE_PATH": str(tmp_path / "holdfast.sqlite")}
    with contextlib.ExitStack() as stack:
        started: dict[str, Service] = {}
        for name in SERVICES:  # one after the other: five at once starve each other on a busy machine
            started[name] = Service(name, tmp_path / name, restartable_valkey.tcp_url, **store)
            stack.callback(started[name].close)
            started[name].started()
        yield started


async def test_each_process_logs_an_outage_once_when_it_begins_and_once_when_it_ends(
    restartable_valkey, services
):
    """Fails if a loop logs each of its tries: a worker had 98 lines for 20 seconds without Redis."""
    logs = {name: Log(service) for name, service in services.items()}
    restartable_valkey.kill()
    await until(lambda: all(log.has(BEGAN) for log in logs.values()), what="all to notice the outage")
    # Several tries of each loop.
    await stays(lambda: all(len(log.lines()) <= MOST_LINES for log in logs.values()), seconds=4.0)
    restartable_valkey.start()
    await until(lambda: all(log.has(ENDED) for log in logs.values()), what="all to notice the end")
    for name, log in logs.items():
        lines = log.lines()
        assert len(lines) <= MOST_LINES, (name, [line["event"] for line in lines])
        began, ended = (next(line for line in lines if line["event"] == event) for event in (BEGAN, ENDED))
        assert began["held_up"] in ended["delayed"], name
        assert ended["seconds"] >= 3, name
        assert ended["failures"] >= 2, name
