"""Ghost consumers where pods can be looked at: what removes one, what keeps one, and what happens if nobody answers."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from holdfast.config import JanitorSettings
from holdfast.kubernetes.pods import Pods
from holdfast.redis.members import Member, Members, PodName
from holdfast.runs.cleanup import Cleanup, Fate
from holdfast.runs.podproof import PodProofs, Proof
from holdfast.telemetry.metrics import Metrics
from tests.support.kubernetes.api_server import NAMESPACE
from tests.support.outages import outage_lines
from tests.support.runs.manual_worker import TTL_SECONDS, Hand, leases_end, open_queue, submit

MEMBERS = Members(prefix="", heartbeat_seconds=10)


@pytest.fixture
async def queue(redis):
    return await open_queue(redis)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
async def proofs(kube, redis, metrics):
    pods = Pods("a setting")
    yield PodProofs(pods, MEMBERS, redis, metrics)
    await pods.close()


def cleanup_of(queue, metrics, proofs=None, *, idle: float = 3600.0, ttl: float = TTL_SECONDS) -> Cleanup:
    settings = JanitorSettings(idle_threshold_seconds=idle)
    return Cleanup(queue, MEMBERS, settings, metrics, ttl_seconds=ttl, pods=proofs)


async def fates(cleanup: Cleanup) -> dict[str, str]:
    return {ghost.consumer.name: ghost.fate for ghost in (await cleanup.run_once()).ghosts}


async def die(redis, name: str, pod: PodName | None = None) -> None:
    """A worker that announced itself and was killed: its record is gone, its pod is remembered."""
    fields = (pod or PodName(NAMESPACE, name, f"uid-{name}")).fields()
    await MEMBERS.announce(redis, Member("worker", name, fields))
    await redis.delete(f"member:worker:{name}")


# -- the table of all proofs


def expected(heart: bool, proof: Proof, idle: str, renewed: bool) -> Fate | None:
    if heart:
        return None
    if proof is Proof.LIVES:
        return Fate.POD_LIVES
    if idle == "long":
        return Fate.BUSY if renewed else Fate.REMOVED
    # Whoever renews is not idle either.
    settled = idle == "for a ttl" and not renewed
    return Fate.REMOVED if settled and proof is Proof.GONE else Fate.WAITING


@pytest.mark.parametrize("renewed", [False, True])
@pytest.mark.parametrize("idle", ["not for a ttl", "for a ttl", "long"])
@pytest.mark.parametrize("proof", list(Proof))
@pytest.mark.parametrize("heart", [False, True])
async def test_who_is_removed(queue, redis, metrics, heart, proof, idle, renewed):
    """Heartbeat, pod, idle time and leases: a pod that is gone is never enough; a heartbeat or a lease is a veto."""
    hand = await Hand(queue, "w").join()
    await submit(queue, "r1")
    lease = await hand.claim_one()
    if heart:
        await MEMBERS.announce(redis, Member("worker", "w", {}))
    await leases_end(queue)
    if renewed:
        assert await hand.renew(lease) == "kept"

    async def prove(consumer: str) -> Proof:
        assert consumer == "w"
        return proof

    # Idle is what the settings make of it: by now it is idle for TTL_SECONDS, or not at all if it renewed.
    ttl = 600.0 if renewed or idle == "not for a ttl" else TTL_SECONDS
    found = await fates(cleanup_of(queue, metrics, prove, idle=0.0 if idle == "long" else 3600.0, ttl=ttl))
    fate = expected(heart, proof, idle, renewed)
    assert found == ({} if fate is None else {"w": fate})
    consumers = await redis.xinfo_consumers(queue.keys.stream, queue.settings.group)
    assert (consumers == []) == (fate is Fate.REMOVED)
    assert (await queue.depth()).undelivered == (1 if fate is Fate.REMOVED else 0)


# -- with pods


async def test_a_consumer_whose_pod_is_gone_is_removed_long_before_the_threshold(
    queue, kube, redis, metrics, proofs
):
    hand = await Hand(queue, "w-1").join()
    await submit(queue, "r1")
    await hand.claim_one()
    await kube.put("w-1")
    await die(redis, "w-1")
    await leases_end(queue)
    assert await fates(cleanup_of(queue, metrics, proofs)) == {"w-1": Fate.POD_LIVES}
    assert await fates(cleanup_of(queue, metrics, proofs, idle=0.0)) == {"w-1": Fate.POD_LIVES}, (
        "however idle"
    )
    await kube.delete("w-1")
    assert await fates(cleanup_of(queue, metrics)) == {"w-1": Fate.WAITING}, "without a look at pods"
    assert await fates(cleanup_of(queue, metrics, proofs)) == {"w-1": Fate.REMOVED}
    assert (await queue.depth()).undelivered == 1


async def test_a_pod_that_lives_keeps_its_consumer_but_not_its_runs(queue, kube, redis, metrics, proofs):
    """Leases decide about runs. Another worker takes what was not renewed, pod or no pod."""
    hand = await Hand(queue, "w-1").join()
    await submit(queue, "r1")
    await hand.claim_one()
    await kube.put("w-1")
    await die(redis, "w-1")
    await leases_end(queue)
    assert await fates(cleanup_of(queue, metrics, proofs, idle=0.0)) == {"w-1": Fate.POD_LIVES}
    other = await Hand(queue, "w-2").join()
    assert await other.reclaim_all() == ["r1"]


async def test_what_a_list_shows_is_no_proof(queue, kube, redis, metrics, proofs):
    """Fails if the absence from a list, which may be an old one, is taken for death."""
    await Hand(queue, "w-1").join()
    await kube.put("w-1")
    kube.old_list = []
    await die(redis, "w-1")
    assert await fates(cleanup_of(queue, metrics, proofs, idle=0.0)) == {"w-1": Fate.POD_LIVES}
    assert kube.verbs() == {"get"}


async def test_another_pod_under_the_same_name_is_no_sign_of_life(queue, kube, redis, metrics, proofs):
    await Hand(queue, "w-0").join()
    await die(redis, "w-0", PodName(NAMESPACE, "w-0", "the-first"))
    await kube.put("w-0", uid="the-second")
    assert await proofs("w-0") is Proof.GONE


async def test_a_worker_that_never_was_in_a_pod_is_not_dead_because_there_is_none(
    queue, kube, metrics, proofs, redis
):
    """On a machine of its own, or in another namespace. Fails if a name that no pod has is taken for death."""
    for name in ("consumer-1", "elsewhere", "Not.A_Pod"):
        await Hand(queue, name).join()
    await die(redis, "elsewhere", PodName("other", "elsewhere", "u"))
    assert set((await fates(cleanup_of(queue, metrics, proofs, ttl=0.0))).values()) == {Fate.WAITING}
    assert set((await fates(cleanup_of(queue, metrics, proofs, idle=0.0))).values()) == {Fate.REMOVED}


async def test_a_consumer_that_is_named_like_a_pod_that_runs_is_kept(queue, kube, metrics, proofs):
    """As the users' document has it, for workers that don't say which pod they are in."""
    await Hand(queue, "w-1").join()
    await kube.put("w-1")
    assert await fates(cleanup_of(queue, metrics, proofs, idle=0.0)) == {"w-1": Fate.POD_LIVES}
    await kube.delete("w-1")
    assert await fates(cleanup_of(queue, metrics, proofs, idle=0.0)) == {"w-1": Fate.REMOVED}


async def test_earlier_processes_of_a_pod_that_runs_don_t_stay_for_ever(queue, kube, metrics, proofs, redis):
    """Fails if the pod speaks for each of them: a container that crashes would leave a consumer each time."""
    await Hand(queue, "consumer-1").join()
    await Hand(queue, "consumer-2").join()
    pod = PodName(NAMESPACE, "w-1", "uid-w-1")
    await kube.put("w-1")
    await die(redis, "consumer-1", pod)
    await MEMBERS.announce(redis, Member("worker", "consumer-2", pod.fields()))
    assert await fates(cleanup_of(queue, metrics, proofs)) == {"consumer-1": Fate.WAITING}
    assert await fates(cleanup_of(queue, metrics, proofs, idle=0.0)) == {"consumer-1": Fate.REMOVED}


async def test_who_says_goodbye_leaves_no_pod_behind(redis):
    pod = PodName(NAMESPACE, "w-1", "u")
    await MEMBERS.announce(redis, Member("worker", "w-1", pod.fields()))
    assert await MEMBERS.pod(redis, "worker", "w-1") == pod
    await MEMBERS.leave(redis, "worker", "w-1")
    assert await MEMBERS.pod(redis, "worker", "w-1") is None
    assert await redis.keys("*w-1*") == []


# -- nobody answers


@pytest.mark.parametrize("trouble", ["forbidden", "away", "odd"])
async def test_without_an_answer_all_is_as_without_pods(
    queue, kube, metrics, proofs, redis, log_lines, trouble
):
    for n in range(20):
        await Hand(queue, f"w-{n}").join()
        await die(redis, f"w-{n}")
    if trouble == "forbidden":
        kube.forbidden.add("get")
    elif trouble == "odd":
        kube.garbled.add("get")
    else:
        await kube.stop()
    with_pods = await fates(cleanup_of(queue, metrics, proofs))
    assert with_pods == await fates(cleanup_of(queue, metrics)) == {f"w-{n}": Fate.WAITING for n in range(20)}
    assert len(kube.asked) <= 1, "nobody else was asked in this pass"
    proofs._rest_until = 0.0
    removed = await fates(cleanup_of(queue, metrics, proofs, idle=0.0))
    assert removed == {f"w-{n}": Fate.REMOVED for n in range(20)}
    (line,) = outage_lines(log_lines(), "Kubernetes API")
    assert (line["event"], line["held_up"]) == ("Kubernetes API unavailable", "proof from pods")
    kind = {"odd": "refused"}.get(trouble, trouble)
    assert metrics.registry.get_sample_value("holdfast_kubernetes_errors_total", {"kind": kind}) == 2


async def test_once_somebody_answers_pods_count_again(queue, kube, metrics, proofs, redis):
    await Hand(queue, "w-1").join()
    await die(redis, "w-1")
    await kube.stop()
    assert await proofs("w-1") is Proof.UNKNOWN
    await kube.start()
    assert await proofs("w-1") is Proof.UNKNOWN, "not asked again at once"
    proofs._rest_until = 0.0
    assert await proofs("w-1") is Proof.GONE


# -- on the command line


async def test_the_command_looks_at_pods_too(queue, kube, redis, redis_url):
    for name in ("dead", "lives"):
        await Hand(queue, name).join()
        await kube.put(name)
        await die(redis, name)
    await kube.delete("dead")
    command = [sys.executable, "-m", "holdfast", "cleanup", "--dry-run", "--idle", "0", "--json"]
    environ = {**os.environ, "REDIS_URL": redis_url, "HOLDFAST_JANITOR_KUBERNETES": "true"}
    ran = await asyncio.create_subprocess_exec(*command, env=environ, stdout=asyncio.subprocess.PIPE)
    said, _ = await ran.communicate()
    (done,) = json.loads(said)["passes"]
    found = {ghost["consumer"]["name"]: (ghost["fate"], ghost["pod"]) for ghost in done["ghosts"]}
    assert found == {"dead": ("would_remove", "gone"), "lives": ("pod_lives", "lives")}
