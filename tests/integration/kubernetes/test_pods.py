"""Pods over a real connection: looked up as they are now, listed in pages, watched, told their cost; and every refusal."""

from __future__ import annotations

import asyncio
import contextlib

import httpx2
import pytest

from holdfast.errors import ConfigError, KubernetesUnavailable
from holdfast.kubernetes import pods as pods_module
from holdfast.kubernetes.mirror import Mirror
from holdfast.kubernetes.pod import RULES, Pod
from holdfast.kubernetes.pods import Pods
from tests.support.kubernetes.api_server import COST, NAMESPACE
from tests.support.waiting import until

LABELS = ("app.kubernetes.io/name=holdfast", "app.kubernetes.io/component=worker")


@pytest.fixture
async def pods(kube):
    pods = Pods("a setting", labels=LABELS)
    yield pods
    await pods.close()


@contextlib.asynccontextmanager
async def following(mirror: Mirror):
    """Follow once, in the background; the task tells how it ended."""
    task = asyncio.create_task(mirror.follow())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_pod_is_looked_up_as_it_is_now(kube, pods):
    await kube.put("w-1", **{COST: "100"})
    assert pods.namespace == NAMESPACE
    assert await pods.get("w-1") == Pod("w-1", "uid-w-1", "Running", cost=100)
    await kube.terminate("w-1")
    await kube.phase("w-1", "Failed")
    assert await pods.get("w-1") == Pod("w-1", "uid-w-1", "Failed", deleting=True, cost=100)
    await kube.delete("w-1")
    assert await pods.get("w-1") is None
    assert all("resourceVersion" not in query for _, _, query in kube.asked), "a version could be an old one"


async def test_all_pages_of_a_list_are_read_and_only_of_workers(kube, pods):
    for n in range(5):
        await kube.put(f"w-{n}")
    await kube.put("api-1", labels={"app.kubernetes.io/component": "api"})
    found, version = await pods.list()
    assert [pod.name for pod in found] == [f"w-{n}" for n in range(5)]
    assert version == str(kube.version)
    assert len(kube.asked) == 3


async def test_another_namespace_may_be_named(kube):
    pods = Pods("a setting", namespace="other")
    try:
        with pytest.raises(KubernetesUnavailable, match="refuses to get pods in namespace other"):
            await pods.get("w-1")
    finally:
        await pods.close()


@pytest.mark.parametrize("verb", ["get", "list", "watch", "patch"])
async def test_a_missing_right_is_named(kube, pods, verb):
    kube.forbidden.add(verb)
    with pytest.raises(KubernetesUnavailable) as caught:
        await ask(pods, verb)
    assert caught.value.kind == "forbidden"
    assert f"forbids to {verb} pods in namespace agents" in str(caught.value)
    assert f'User "x" cannot {verb}' in str(caught.value)
    assert 'apiGroups [""], resources [pods], verbs [get, list, watch, patch]' in str(caught.value)


@pytest.mark.parametrize("verb", ["get", "list", "watch", "patch"])
async def test_what_no_api_says_proves_nothing(kube, pods, verb):
    """A proxy's 404 is not the news that a pod is gone. Fails if the status alone is read."""
    kube.garbled.add(verb)
    with pytest.raises(KubernetesUnavailable) as caught:
        await ask(pods, verb)
    assert caught.value.kind in {"odd", "refused"}


@pytest.mark.parametrize("verb", ["get", "list", "watch", "patch"])
async def test_an_api_that_hangs_is_not_waited_for(kube, pods, verb, monkeypatch):
    monkeypatch.setattr(pods_module, "WATCH_SECONDS", 0)
    monkeypatch.setattr(pods_module, "_LATE_SECONDS", 0.1)
    pods._http.timeout = httpx2.Timeout(0.1)
    kube.hanging.add(verb)
    with pytest.raises(KubernetesUnavailable, match="does not respond") as caught:
        await ask(pods, verb)
    assert caught.value.kind == "away"


@pytest.mark.parametrize("verb", ["get", "list", "patch"])
async def test_an_answer_has_a_time_in_all(kube, pods, verb, monkeypatch):
    """Fails if only each read has one: an API that sends a byte a second would hold the janitor for ever."""
    monkeypatch.setattr(pods_module, "_RESPONSE_SECONDS", 0.1)
    monkeypatch.setattr(pods_module, "_LIST_SECONDS", 0.1)
    pods._http.timeout = httpx2.Timeout(60)
    kube.hanging.add(verb)
    with pytest.raises(KubernetesUnavailable, match="does not respond: TimeoutError") as caught:
        await ask(pods, verb)
    assert caught.value.kind == "away"


async def test_a_list_that_does_not_end_is_left(kube, pods, monkeypatch):
    monkeypatch.setattr(pods_module, "_MOST_PAGES", 5)
    await kube.put("w-1")
    kube.page = 0
    with pytest.raises(KubernetesUnavailable, match="does not end"):
        await pods.list()


@pytest.mark.parametrize("verb", ["get", "list", "watch", "patch"])
async def test_an_api_that_is_away_is_said_and_found_again(kube, pods, verb):
    await kube.put("w-1")
    await kube.stop()
    with pytest.raises(KubernetesUnavailable, match="does not respond"):
        await ask(pods, verb)
    await kube.start()
    assert (await pods.get("w-1")) is not None


async def ask(pods: Pods, verb: str):
    match verb:
        case "get":
            return await pods.get("w-1")
        case "list":
            return await pods.list()
        case "patch":
            return await pods.set_cost(Pod("w-1", "uid-w-1"), 100)
        case _:
            return [each async for each in pods.watch("1000")]


async def test_the_role_that_is_asked_for_has_exactly_the_verbs_that_are_used(kube, pods):
    await kube.put("w-1")
    for verb in ("get", "list", "patch"):
        await ask(pods, verb)
    async with following(Mirror(pods)):
        await until(lambda: "watch" in kube.verbs())
    (rule,) = RULES
    assert kube.verbs() == set(rule["verbs"])
    assert (rule["apiGroups"], rule["resources"]) == ([""], ["pods"])


async def test_without_a_cluster_it_is_said_which_setting_wants_one(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="a setting: neither a service account nor a kubeconfig"):
        Pods("a setting")


# -- what deletion costs


async def test_a_cost_is_written_to_the_very_pod_that_was_seen(kube, pods):
    await kube.put("w-1", other="kept")
    seen = await pods.get("w-1")
    assert await pods.set_cost(seen, 1000) == Pod("w-1", "uid-w-1", cost=1000)
    assert kube.pods["w-1"]["metadata"]["annotations"] == {"other": "kept", COST: "1000"}


async def test_a_pod_that_is_gone_or_another_one_is_not_written(kube, pods):
    """Fails if the patch does not name the uid: a successor of the same name would be marked."""
    await kube.put("w-1")
    seen = await pods.get("w-1")
    await kube.delete("w-1")
    assert await pods.set_cost(seen, 1000) is None
    await kube.put("w-1", uid="another")
    assert await pods.set_cost(seen, 1000) is None
    assert kube.patches == []


async def test_a_webhook_that_denies_the_patch_does_not_mean_that_the_pod_is_gone(kube, pods):
    await kube.put("w-1")
    seen = await pods.get("w-1")
    kube.unwanted.add("w-1")
    with pytest.raises(KubernetesUnavailable, match="denied the request") as caught:
        await pods.set_cost(seen, 1000)
    assert (caught.value.kind, caught.value.status) == ("refused", 422)


# -- the mirror


async def test_a_mirror_follows_what_happens(kube, pods):
    left: list[int] = []
    mirror = Mirror(pods, lambda: left.append(1))
    await kube.put("w-1")
    await kube.put("w-2")
    async with following(mirror):
        await until(lambda: len(mirror.seen) == 2)
        await kube.put("w-3")
        await until(lambda: "uid-w-3" in mirror.seen)
        assert left == []
        await kube.delete("w-1")
        await until(lambda: "uid-w-1" not in mirror.seen)
        await kube.phase("w-2", "Failed")
        await until(lambda: "uid-w-2" not in mirror.seen)
        assert len(left) == 2
        await kube.delete("w-2")
        await kube.put("w-4")
        await until(lambda: "uid-w-4" in mirror.seen)
        assert len(left) == 2, "it had gone already"


async def test_what_went_while_nobody_watched_is_noticed_by_the_next_list(kube, pods):
    left: list[int] = []
    mirror = Mirror(pods, lambda: left.append(1))
    await kube.put("w-1")
    async with following(mirror) as task:
        await until(lambda: "watch" in kube.verbs())
        kube.end_watches()
        await task
    await kube.delete("w-1")
    await kube.put("w-1", uid="another")
    async with following(mirror):
        await until(lambda: left == [1])
        assert set(mirror.seen) == {"another"}


async def test_a_history_that_the_api_has_forgotten_only_ends_the_watch(kube, pods):
    await kube.put("w-1")
    mirror = Mirror(pods)
    async with following(mirror) as task:
        await until(lambda: "watch" in kube.verbs())
        kube.oldest = kube.version + 1
        await task
    assert "uid-w-1" in mirror.seen
    kube.old_list = []
    with pytest.raises(KubernetesUnavailable):
        kube.forbidden.add("list")
        await mirror.follow()
    assert "uid-w-1" in mirror.seen, "what can't be seen now has not gone"


async def test_a_list_that_is_too_old_to_watch_from_only_ends_the_watch(kube, pods):
    kube.oldest = kube.version + 1
    await Mirror(pods).follow()
    assert kube.verbs() == {"list", "watch"}
