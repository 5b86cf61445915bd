"""The time that pods are given to leave, from the settings that their processes will have: never shorter than these add up to."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.config import Settings
from tests.support.deploy.charts import ALL, pod_specs, rendered, settings_of

ZOMBIES = "settings.redis.scheduler.zombie-cleanup.executor-shutdown"
SLOW = (
    "",
    f"{ZOMBIES}-await-ms=120000",
    f"{ZOMBIES}-await-ms=1m30s,{ZOMBIES}-force-await-ms=0.5m",
    f"{ZOMBIES}-await-ms=2000000",
    "settings.redis.scheduler.orphan-cleanup.executor-shutdown-await-ms=300s",
    "settings.redis.scheduler.reconcile.executor-shutdown-force-await-ms=1h",
    "relay.enabled=true,settings.relay.timeout_seconds=1m",
    "relay.enabled=true,settings.relay.timeout_seconds=2500ms",
)


def needed(settings: Settings, process: str) -> float:
    """What services/scheduler.py and services/relay.py wait for when they leave, one after the other."""
    if process == "relay":
        return settings.relay.timeout_seconds + 20
    scheduler = settings.redis.scheduler
    turns, sweep, reconcile = scheduler.zombie_cleanup, scheduler.orphan_cleanup, scheduler.reconcile
    ending = max(
        turns.executor_shutdown_await_ms + 2 * turns.executor_shutdown_force_await_ms + 1000,
        sweep.executor_shutdown_await_ms + sweep.executor_shutdown_force_await_ms,
        reconcile.executor_shutdown_await_ms + reconcile.executor_shutdown_force_await_ms,
    )
    return ending / 1000 + 9


@pytest.mark.parametrize("more", SLOW)
def test_a_grace_that_nobody_gave_follows_the_settings(more, tmp_path):
    _check(rendered("trial", more=more), tmp_path)


@pytest.mark.parametrize(("name", "profile"), ALL)
def test_every_grace_is_what_the_settings_need(name, profile, tmp_path):
    _check(rendered(name, profile), tmp_path)


def _check(manifests: list, folder: Path) -> None:
    for name, pod in pod_specs(manifests).items():
        process = name.removeprefix("holdfast-")
        if process in {"scheduler", "relay"}:
            settings = settings_of(manifests, pod["containers"][0], folder).settings
            least = needed(settings, process)
            assert least + 15 <= pod["terminationGracePeriodSeconds"] < least + 17, name
        assert pod["terminationGracePeriodSeconds"] >= 10, name
