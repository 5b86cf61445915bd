"""A janitor that watches pods: dead pods' consumers go soon, busy pods are marked, one janitor at a time watches."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from holdfast import App
from holdfast.config import JanitorSettings, LeaseSettings, PodSettings, Settings, WorkerSettings
from holdfast.errors import ConfigError
from holdfast.redis.client import DISCONNECTS
from holdfast.redis.members import Member, Members, PodName
from holdfast.services import pod_watch
from holdfast.services.connections import Connections
from holdfast.services.janitor import Janitor
from holdfast.services.pod import Holding, pod_name
from holdfast.telemetry.metrics import Metrics
from tests.support.kubernetes.api_server import NAMESPACE, KubeApi
from tests.support.runs.manual_worker import Hand, open_queue, submit
from tests.support.runs.system import System, WorkerChild
from tests.support.waiting import PATIENCE_SECONDS, stays, until

JANITOR = (
    "import sys; from holdfast.config import load; from holdfast.services.janitor import run_janitor; "
    "sys.exit(run_janitor(load().settings))"
)
MEMBERS = Members(prefix="", heartbeat_seconds=30)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(pod_watch, "_FIRST_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(pod_watch, "_LAST_RETRY_SECONDS", 0.05)
    monkeypatch.setattr(pod_watch, "_CAMPAIGN_SECONDS", 0.05)
    monkeypatch.setattr(pod_watch, "_MARGIN_SECONDS", 0.01)


def settings_of(redis, lease_seconds: float = 20.0, **janitor: Any) -> Settings:
    """Leases that a busy machine can't outlast, unless the end of one is waited for. The shorter of both counts.

    A pod that went is proven gone only after a lease, so tests of that have a short one.
    """
    janitor = {
        "consumer_interval_seconds": 3600,
        "idle_threshold_seconds": 3600,
        "lock_ttl_seconds": 20.0,
        "stream_interval_minutes": 60,
        "kubernetes": True,
        "deletion_cost_seconds": 0.02,
        "deletion_cost_raise_seconds": 0.05,
        "deletion_cost_lower_seconds": 0.2,
        "deletion_cost_per_second": 1000,
        **janitor,
    }
    return Settings(
        redis=redis,
        lease=LeaseSettings(ttl_seconds=lease_seconds),
        worker=WorkerSettings(heartbeat_seconds=0.1),
        janitor=JanitorSettings(**janitor),
    )


@contextlib.asynccontextmanager
async def a_janitor(settings: Settings, metrics: Metrics | None = None, name: str = ""):
    async with Connections(settings) as connections:
        janitor = Janitor(connections, metrics or Metrics(), name=name)
        task = asyncio.create_task(janitor.run())
        yield janitor
        janitor.request_stop()
        await asyncio.wait_for(task, PATIENCE_SECONDS)


def watched(metrics: Metrics) -> float:
    return metrics.registry.get_sample_value("holdfast_pods_watched") or 0


async def consumers(queue) -> set[str]:
    found = await queue.redis.xinfo_consumers(queue.keys.stream, queue.settings.group)
    return {each["name"].decode() for each in found}


async def announce(redis, name: str, **fields: str) -> None:
    fields = {**PodName(NAMESPACE, name, f"uid-{name}").fields(), "load": "0", "held_seconds": "0", **fields}
    await MEMBERS.announce(redis, Member("worker", name, fields))


# -- proofs


async def test_the_consumer_of_a_pod_that_goes_is_removed_soon(redis, redis_settings, kube):
    """An hour lies between two passes, and another until it is idle for long enough: the watch wakes the janitor."""
    queue, metrics = await open_queue(redis), Metrics()
    hand = await Hand(queue, "w-1").join()
    await Hand(queue, "w-2").join()
    await submit(queue, "r1")
    await hand.claim_one()
    for name in ("w-1", "w-2"):
        await kube.put(name)
        await announce(redis, name)
    async with a_janitor(settings_of(redis_settings, lease_seconds=1.0), metrics):
        await until(lambda: watched(metrics) == 2)
        await redis.delete("member:worker:w-1")
        await kube.delete("w-1")

        async def is_gone() -> bool:
            return await consumers(queue) == {"w-2"}

        await until(is_gone)
    assert (await queue.depth()).undelivered == 1


async def test_a_pod_that_went_before_the_watch_began_is_not_forgotten(redis, redis_settings, kube):
    """Its heartbeat outlasts the janitor's first pass, and the next one would be an hour later."""
    queue, members = await open_queue(redis), Members(prefix="", heartbeat_seconds=1.0)
    await Hand(queue, "w-1").join()
    settings = msgspec.structs.replace(
        settings_of(redis_settings, lease_seconds=1.0),
        worker=WorkerSettings(heartbeat_seconds=members.heartbeat_seconds),
    )
    await members.announce(redis, Member("worker", "w-1", PodName(NAMESPACE, "w-1", "u").fields()))
    async with a_janitor(settings):

        async def is_gone() -> bool:
            return await consumers(queue) == set()

        await until(is_gone)


async def test_who_goes_while_the_janitor_settles_is_not_forgotten(redis_settings, kube):
    """Its heartbeat may outlast the pass that comes next. Fails if one event serves for all until that pass."""
    async with Connections(settings_of(redis_settings)) as connections:
        pods = pod_watch.open_pods(connections, MEMBERS, Metrics(), "j")
        pods._settle_seconds = 0.05
        nudge = pods.nudge()
        pods._wake_waiters()
        resting = asyncio.create_task(pods.rest(nudge, 3600))
        await asyncio.sleep(0)
        pods._wake_waiters()
        await resting
        assert nudge.is_set()
        await pods.close()


async def test_the_watch_survives_whatever_the_api_does(redis, redis_settings, kube):
    queue, metrics = await open_queue(redis), Metrics()
    await kube.put("w-0")
    async with a_janitor(settings_of(redis_settings), metrics):
        await until(lambda: watched(metrics) == 1)
        troubles = [go_away, end_watches, forget, forbid, garble]
        for n, trouble in enumerate(troubles, 1):
            before = errors(metrics)
            await trouble(kube)
            if trouble not in (end_watches, forget):
                await until(lambda before=before: errors(metrics) > before)
            await mend(kube)
            await kube.put(f"w-{n}")
            await until(lambda n=n: watched(metrics) == n + 1)
        assert await consumers(queue) == set()


async def go_away(kube: KubeApi) -> None:
    await kube.stop()


async def end_watches(kube: KubeApi) -> None:
    kube.end_watches()


async def forget(kube: KubeApi) -> None:
    kube.oldest = kube.version + 1


async def forbid(kube: KubeApi) -> None:
    kube.forbidden |= {"list", "watch"}
    kube.end_watches()


async def garble(kube: KubeApi) -> None:
    kube.garbled |= {"list", "watch"}
    kube.end_watches()


async def mend(kube: KubeApi) -> None:
    kube.forbidden.clear()
    kube.garbled.clear()
    if kube._runner is None:
        await kube.start()
    kube.end_watches()


def errors(metrics: Metrics) -> float:
    kinds = ("away", "forbidden", "unauthorized", "refused", "odd")
    found = (
        metrics.registry.get_sample_value("holdfast_kubernetes_errors_total", {"kind": k}) for k in kinds
    )
    return sum(value or 0 for value in found)


# -- what deletion costs


def written(metrics: Metrics, kind: str) -> float | None:
    return metrics.registry.get_sample_value("holdfast_pod_costs_written_total", {"kind": kind})


async def test_busy_workers_pods_cost_more_and_idle_ones_nothing(redis, redis_settings, kube):
    await open_queue(redis)
    for name in ("idle", "busy", "long", "foreign"):
        await kube.put(name)
    await announce(redis, "idle")
    await announce(redis, "busy", load="2", held_seconds="3")
    await announce(redis, "long", load="1", held_seconds="700")
    metrics = Metrics()
    async with a_janitor(settings_of(redis_settings), metrics):
        await until(lambda: (kube.cost("busy"), kube.cost("long")) == ("100", "10000"))
        await announce(redis, "long")
        await until(lambda: kube.cost("long") == "0")
        # It is counted when the answer has come, which is after the pod has it.
        await until(lambda: (written(metrics, "raised"), written(metrics, "lowered")) == (2, 1))
    assert (kube.cost("idle"), kube.cost("foreign")) == (None, None)
    assert sorted(kube.patches) == [("busy", 100), ("long", 0), ("long", 10_000)]


async def test_a_pod_that_a_webhook_keeps_as_it_is_is_counted_and_keeps_nobody_else_from_being_marked(
    redis, redis_settings, kube
):
    await open_queue(redis)
    for name in ("w-1", "w-2"):
        await kube.put(name)
        await announce(redis, name, load="1")
    kube.unwanted.add("w-1")
    metrics = Metrics()
    async with a_janitor(settings_of(redis_settings), metrics):
        await until(lambda: kube.cost("w-2") == "100")
        await until(lambda: errors(metrics) >= 1)
    assert kube.cost("w-1") is None


async def test_another_janitor_goes_on_with_the_costs_that_it_finds(redis, redis_settings, kube):
    await open_queue(redis)
    for n in range(10):
        await kube.put(f"w-{n}")
        await announce(redis, f"w-{n}", load="1")
    for _ in range(3):
        metrics = Metrics()
        async with a_janitor(settings_of(redis_settings), metrics):
            await until(lambda metrics=metrics: watched(metrics) == 10)
            await until(lambda: len(kube.patches) == 10)
            looked = len(kube.asked)
            kube.end_watches()
            await until(lambda looked=looked: len(kube.asked) > looked)
    assert len(kube.patches) == 10


async def test_one_janitor_at_a_time_watches_and_another_takes_over(redis, redis_settings, kube):
    await open_queue(redis)
    await kube.put("w-1")
    settings, first, second = settings_of(redis_settings), Metrics(), Metrics()
    async with a_janitor(settings, second, "second") as later:
        await until(lambda: watched(second) == 1)
        async with a_janitor(settings, first, "first"):
            await stays(lambda: watched(first) == 0, seconds=0.3)
            assert await redis.hget("pods-leader", "owner") == b"second"
            later.request_stop()
            await until(lambda: watched(first) == 1)
            assert watched(second) == 0


async def test_a_killed_janitors_watch_is_taken_over_when_its_lease_ends_not_its_turn(
    redis, redis_settings, kube
):
    """A turn lasts five minutes: for so long nobody would mark the pods of busy workers."""
    await open_queue(redis)
    await kube.put("w-1")
    settings = settings_of(redis_settings, lease_seconds=1.0, lock_ttl_seconds=300.0)
    metrics = Metrics()
    killed = WorkerChild(settings, "", "first", code=JANITOR, HOLDFAST_JANITOR_KUBERNETES="true")
    try:

        async def watches() -> bool:
            return bool(await redis.hget("pods-leader", "owner")) and "watch" in kube.verbs()

        await until(watches)
    finally:
        killed.close()
    async with a_janitor(settings, metrics):
        await until(lambda: watched(metrics) == 1)


@pytest.mark.parametrize("off", ["deletion_cost", "dry_run"])
async def test_nothing_is_written_if_nobody_asked_for_it(redis, redis_settings, kube, off):
    await open_queue(redis)
    await kube.put("w-1")
    await announce(redis, "w-1", load="1")
    metrics = Metrics()
    async with a_janitor(settings_of(redis_settings, **{off: off == "dry_run"}), metrics):
        await until(lambda: watched(metrics) == 1)
        await stays(lambda: "patch" not in kube.verbs(), seconds=0.3)
    assert "patch" not in kube.verbs()


async def test_one_round_by_hand_closes_its_connections_also_while_redis_is_away(
    redis_settings, kube, fault_proxy
):
    fault_proxy.refuse()
    away = msgspec.structs.replace(redis_settings, url=fault_proxy.url)
    async with Connections(settings_of(away)) as connections:
        janitor = Janitor(connections, Metrics())
        with pytest.raises(DISCONNECTS):
            await janitor.run_once()
        with pytest.raises(RuntimeError, match="closed"):
            await janitor._pods._mirror.pods.get("w-1")


async def test_without_the_setting_nobody_asks_for_pods(redis, redis_settings, kube):
    await open_queue(redis)
    async with a_janitor(settings_of(redis_settings, kubernetes=False)) as janitor:
        await until(lambda: janitor._pods is None)
    assert kube.asked == []


async def test_outside_of_a_cluster_the_setting_is_refused(redis, redis_settings, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    async with Connections(settings_of(redis_settings)) as connections:
        with pytest.raises(ConfigError, match=r"janitor\.kubernetes = true: neither a service account nor"):
            Janitor(connections, Metrics())


# -- what a worker writes down


async def test_a_worker_says_which_pod_it_is_in_and_what_it_holds(redis, redis_settings):
    app, go = App("test"), asyncio.Event()

    @app.agent
    async def waiter(payload):
        await go.wait()

    async with System(redis_settings, heartbeat=0.05) as system:
        pod = PodSettings(name="w-1-pod", uid="u-1", namespace=NAMESPACE)
        system.settings = msgspec.structs.replace(system.settings, pod=pod)
        await system.worker(app, "w-1")
        run_id = await system.submit("waiter")
        members = Members(prefix="", heartbeat_seconds=0.05)

        found = await until(  # its record ends soon after a heartbeat that is late
            lambda: members.find(redis, "worker", "w-1"),
            lambda found: found is not None and int(found.fields["held_seconds"]) >= 1,
        )
        assert (found.fields["pod"], found.fields["pod_uid"], found.fields["namespace"]) == (
            "w-1-pod",
            "u-1",
            NAMESPACE,
        )
        assert await members.pod(redis, "worker", "w-1") == PodName(NAMESPACE, "w-1-pod", "u-1")
        assert 0 < await redis.ttl("pod:worker:w-1") <= 86400
        go.set()
        await system.ended(run_id)


@pytest.mark.parametrize(
    ("name", "pod", "expected"),
    [
        ("", PodSettings(), {}),
        ("w-1", PodSettings(), {}),
        ("w-1", PodSettings(namespace="n"), {}),
        ("w-1", PodSettings(uid="u", namespace="n"), {"namespace": "n", "pod": "w-1", "pod_uid": "u"}),
        ("w-1", PodSettings(name="p", namespace="n"), {"namespace": "n", "pod": "p", "pod_uid": ""}),
    ],
)
def test_the_pod_of_a_worker_by_its_settings(name, pod, expected):
    assert pod_name(Settings(worker=WorkerSettings(name=name), pod=pod)).fields() == expected


def test_runs_are_held_from_the_heartbeat_that_saw_them_first():
    now = 0.0
    holding = Holding(lambda: now)
    assert holding.seconds([]) == 0
    assert holding.seconds([("a", 1)]) == 0
    now = 10.0
    assert holding.seconds([("a", 1), ("b", 1)]) == 10
    now = 20.0
    assert holding.seconds([("a", 1), ("b", 1)]) == 30
    assert holding.seconds([("a", 2), ("b", 1)]) == 10, "another fence is another attempt"
