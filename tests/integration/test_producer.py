"""A producer that is being moved to a queue: who goes which way, what falls back, what is never lost or doubled."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from holdfast import App, Client, InputError, Producer, QueueFull, QueuePaused, RedisUnavailable
from holdfast.client.rollout import Rollout
from holdfast.client.transports.redis.rollouts import Rollouts
from holdfast.config import BreakerSettings, ClientSettings
from holdfast.errors import AccessDenied, ApiUnavailable, ConfigError, NotFound
from holdfast.reliability.breaker import BreakerState
from holdfast.runs.run import Submission
from holdfast.services.api import ApiProcess
from holdfast.telemetry.metrics import Metrics
from tests.support.api.server import RunningApi
from tests.support.events.event_receiver import Receiver
from tests.support.runs.system import System
from tests.support.waiting import until

FLAG = "redis_streams_media_cluster_enabled"
TENANTS = [f"tenant-{number}" for number in range(300)]


class OldWay:
    """A fallback that remembers what it was given, and fails if it is told to."""

    def __init__(self) -> None:
        self.taken: list[Submission] = []
        self.error: Exception | None = None

    async def __call__(self, message: Submission) -> None:
        if self.error is not None:
            raise self.error
        self.taken.append(message)


@pytest.fixture
def old_way() -> OldWay:
    return OldWay()


@pytest.fixture
async def system(redis, redis_settings):
    async with System(redis_settings, slots=8) as system:
        yield system


@pytest.fixture
def rollouts(system) -> Rollouts:
    return Rollouts(system.queue.redis)


@pytest.fixture
def app() -> App:
    app = App("test")

    @app.agent
    async def cluster(payload):
        return payload

    return app


def producer(system: System, fallback: Any, **options: Any) -> Producer:
    """One that asks for the flag at every message, and waits for Redis however busy the machine is."""
    options = {"refresh": 0, "patience": 30.0, "settings": system.settings, **options}
    return Producer("auth-service", agent="cluster", rollout=FLAG, fallback=fallback, **options)


def with_redis(system: System, **changes: Any) -> Any:
    redis = msgspec.structs.replace(system.settings.redis, **changes)
    return msgspec.structs.replace(system.settings, redis=redis)


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(name, {"producer": "auth-service", **labels})


# -- which way


async def test_a_flag_that_nobody_has_set_sends_everything_the_old_way(system, old_way):
    async with producer(system, old_way) as sending:
        sent = await sending.send({"n": 1}, tenant="acme", run_id="job-1")
    assert (sent.run_id, sent.path, sent.reason) == ("job-1", "fallback", "rollout")
    assert [(m.run_id, m.tenant, m.input) for m in old_way.taken] == [("job-1", "acme", {"n": 1})]


async def test_every_tenant_keeps_its_way_as_the_canary_grows_and_all_go_back_at_0(system, rollouts, old_way):
    async with producer(system, old_way) as sending:
        before = set[str]()
        for percent in (10, 50, 100):
            flag = await rollouts.set(FLAG, percent)
            paths = {t: (await sending.send(1, tenant=t)).path for t in TENANTS}
            queued = {tenant for tenant, path in paths.items() if path == "queue"}
            assert queued == {tenant for tenant in TENANTS if flag.includes(tenant)}
            assert before < queued
            before = queued
        assert before == set(TENANTS)
        await rollouts.set(FLAG, 0)
        assert {(await sending.send(1, tenant=t)).path for t in TENANTS} == {"fallback"}


async def test_without_a_tenant_the_id_decides_and_stays(system, rollouts, old_way):
    await rollouts.set(FLAG, 50)
    async with producer(system, old_way) as sending:
        first = [(await sending.send(1, run_id=f"job-{n}")).path for n in range(50)]
        again = [(await sending.send(1, run_id=f"job-{n}")).path for n in range(50)]
    assert first == again
    assert set(first) == {"queue", "fallback"}


async def test_a_flip_is_seen_within_the_refresh_and_not_asked_for_more_often(system, rollouts, old_way):
    await rollouts.set(FLAG, 100)
    async with producer(system, old_way, refresh="1h") as sending:
        assert (await sending.send(1)).path == "queue"
        await rollouts.set(FLAG, 0)
        assert (await sending.send(1)).path == "queue"
    async with producer(system, old_way, refresh="50ms") as sending:
        await rollouts.set(FLAG, 100)
        await until(lambda: sending.send(1), lambda found: found.path == "queue")
        await rollouts.set(FLAG, 0)
        await until(lambda: sending.send(1), lambda found: found.path == "fallback")


async def test_concurrent_messages_ask_for_the_flag_together(system, rollouts, old_way, fault_proxy):
    await rollouts.set(FLAG, 100)
    settings = with_redis(system, url=fault_proxy.url)
    async with producer(system, old_way, settings=settings, refresh="1h") as sending:
        sent = await asyncio.gather(*(sending.send(n) for n in range(50)))
    assert {each.path for each in sent} == {"queue"}
    assert fault_proxy.commands[b"HGETALL"] == 1


async def test_without_a_fallback_everything_goes_to_the_queue(system, old_way):
    async with producer(system, None) as sending:
        assert (await sending.send(1, tenant="acme")).path == "queue"
        await system.queue.pause("maintenance")
        with pytest.raises(QueuePaused, match="paused"):
            await sending.send(1, tenant="acme")


# -- what falls back


async def test_a_full_queue_and_a_paused_one_fall_back(redis, redis_settings, old_way):
    async with System(redis_settings, max_depth=1) as system:
        await Rollouts(redis).set(FLAG, 100)
        metrics = Metrics()
        async with producer(system, old_way, metrics=metrics) as sending:
            assert (await sending.send(1)).path == "queue"
            assert (await sending.send(2)).reason == "full"
            await system.queue.pause("maintenance")
            assert (await sending.send(3)).reason == "paused"
        assert [message.input for message in old_way.taken] == [2, 3]
        assert value(metrics, "holdfast_producer_sent_total", path="queue") == 1
        assert value(metrics, "holdfast_producer_sent_total", path="fallback") == 2
        assert value(metrics, "holdfast_producer_fallbacks_total", reason="full") == 1
        assert value(metrics, "holdfast_producer_fallbacks_total", reason="paused") == 1
        assert value(metrics, "holdfast_producer_fallbacks_total", reason="unavailable") == 0
        assert value(metrics, "holdfast_rollout_percent", rollout=FLAG) == 100


async def test_those_that_are_not_rolled_out_are_no_fallbacks(system, old_way):
    metrics = Metrics()
    async with producer(system, old_way, metrics=metrics) as sending:
        await sending.send(1)
    assert value(metrics, "holdfast_producer_sent_total", path="fallback") == 1
    assert not [
        sample
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "holdfast_producer_fallbacks_total" and sample.value
    ]


async def test_what_is_too_large_for_the_queue_still_goes_the_old_way(redis, redis_settings, old_way):
    async with System(redis_settings, max_payload_bytes=1000) as system:
        await Rollouts(redis).set(FLAG, 100)
        async with producer(system, old_way) as sending:
            assert (await sending.send("x" * 2000)).reason == "too_large"
    assert len(old_way.taken) == 1


async def test_a_message_that_is_wrong_goes_nowhere(system, rollouts, old_way):
    await rollouts.set(FLAG, 100)
    async with producer(system, old_way) as sending:
        for wrong in ({"run_id": "a b"}, {"tenant": "a b"}, {"priority": "urgent"}):
            with pytest.raises(InputError):
                await sending.send(1, **wrong)
        with pytest.raises(InputError, match="JSON"):
            await sending.send(object())
    assert old_way.taken == []


async def test_a_redis_that_answers_but_takes_no_writes_of_ours_falls_back(system, rollouts, old_way, redis):
    await rollouts.set(FLAG, 100)
    await redis.set(system.queue.keys.gate, "somebody else's")  # the script can't read it: WRONGTYPE
    async with producer(system, old_way) as sending:
        assert (await sending.send(1)).reason == "error"
    await redis.delete(system.queue.keys.gate)


async def test_a_fallback_that_fails_too_tells_both_reasons(system, rollouts, old_way):
    await rollouts.set(FLAG, 100)
    await system.queue.pause("maintenance")
    old_way.error = ValueError("the old way is gone")
    metrics = Metrics()
    async with producer(system, old_way, metrics=metrics) as sending:
        with pytest.raises(ValueError, match="the old way is gone") as caught:
            await sending.send(1)
    assert "paused" in caught.value.__notes__[0]
    assert value(metrics, "holdfast_producer_failures_total", path="fallback") == 1


async def test_without_a_fallback_a_full_queue_is_told(redis, redis_settings):
    async with System(redis_settings, max_depth=1) as system:
        metrics = Metrics()
        async with producer(system, None, metrics=metrics) as sending:
            await sending.send(1)
            with pytest.raises(QueueFull):
                await sending.send(2)
        assert value(metrics, "holdfast_producer_failures_total", path="queue") == 1


# -- Redis away


async def test_a_redis_that_is_killed_costs_nothing_and_is_used_again_when_it_is_back(
    restartable_valkey, redis_settings, old_way, app, log_lines
):
    there = msgspec.structs.replace(redis_settings, url=restartable_valkey.url)
    async with System(there, slots=8) as system:
        await Rollouts(system.queue.redis).set(FLAG, 100)
        # No failure closes it by time alone: the breaker is what this test looks at.
        breaker = BreakerSettings(failure_threshold=2, cooldown_seconds=1.0)
        settings = with_redis(system, breaker=breaker)
        async with producer(system, old_way, settings=settings, patience="10s") as sending:
            early = [await sending.send(n, run_id=f"early-{n}") for n in range(5)]
            restartable_valkey.kill()
            meanwhile = [await sending.send(n, run_id=f"meanwhile-{n}") for n in range(20)]
            assert sending.breaker.trips
            restartable_valkey.start()
            late = await until(lambda: sending.send(0, run_id="late"), lambda late: late.path == "queue")
            assert sending.breaker.state is BreakerState.CLOSED
        assert {each.path for each in early} == {"queue"}
        assert {(each.path, each.reason) for each in meanwhile} == {("fallback", "unavailable")}
        await system.worker(app)
        for sent in (*early, late):
            assert (await system.ended(sent.run_id)).status == "succeeded"
        assert {message.run_id for message in old_way.taken} >= {each.run_id for each in meanwhile}
        told = [line["event"] for line in log_lines() if line["event"].startswith("messages go")]
        assert told == ["messages go to the fallback", "messages go to the queue again"], "one line each"


async def test_a_silent_redis_is_not_waited_for_longer_than_the_patience(
    system, rollouts, old_way, fault_proxy
):
    await rollouts.set(FLAG, 100)
    breaker = BreakerSettings(failure_threshold=2, cooldown_seconds=3600)
    settings = with_redis(system, url=fault_proxy.url, breaker=breaker, socket_timeout_seconds=3600)
    # Long enough for the first message on a busy machine, and short enough to be waited out by the others.
    async with producer(system, old_way, settings=settings, patience="4s") as sending:
        assert (await sending.send(1)).path == "queue"
        fault_proxy.stall()
        async with asyncio.timeout(30):  # an hour without the patience
            sent = await asyncio.gather(*(sending.send(n) for n in range(20)))
        assert {each.path for each in sent} == {"fallback"}
        assert sending.breaker.state is BreakerState.OPEN
        asked = fault_proxy.accepted, fault_proxy.commands.total()
        assert (await sending.send(2)).path == "fallback"
        assert (fault_proxy.accepted, fault_proxy.commands.total()) == asked, "an open breaker asks nothing"


async def test_a_producer_starts_while_redis_is_away(system, old_way, fault_proxy):
    fault_proxy.refuse()
    async with producer(system, old_way, settings=with_redis(system, url=fault_proxy.url)) as sending:
        sent = await sending.send(1)
    assert (sent.path, sent.reason) == ("fallback", "unavailable")


async def test_the_last_known_flag_stays_while_redis_is_away(system, rollouts, old_way, fault_proxy):
    await rollouts.set(FLAG, 0)
    async with producer(system, old_way, settings=with_redis(system, url=fault_proxy.url)) as sending:
        await sending.send(1)
        fault_proxy.refuse()
        sent = await sending.send(2)
    assert (sent.path, sent.reason) == ("fallback", "rollout"), "it was not meant for the queue"


async def test_without_a_fallback_a_redis_that_is_away_is_told(system, fault_proxy):
    fault_proxy.refuse()
    settings = msgspec.structs.replace(
        with_redis(system, url=fault_proxy.url),
        sender=msgspec.structs.replace(system.settings.sender, max_retries=0),
    )
    async with producer(system, None, settings=settings) as sending:
        with pytest.raises(RedisUnavailable):
            await sending.send(1)


# -- both ways


async def test_a_message_that_went_both_ways_is_one_run(system, rollouts, fault_proxy, app):
    """The reply is lost, so it goes to the fallback too: an API that can reach Redis. It is done once."""
    runs = list[str]()
    app = App("test")

    @app.agent
    async def cluster(ctx, payload):
        runs.append(ctx.run_id)

    await rollouts.set(FLAG, 100)
    serving = msgspec.structs.replace(system.settings.api, port=0, linger_seconds=0.0)
    api = await RunningApi(ApiProcess(msgspec.structs.replace(system.settings, api=serving))).ready()
    given = list[bool]()

    async def over_http(message: Submission) -> None:
        async with Client(settings=over(system, api.url)) as client:
            handle = await client.submit(message.agent, message.input, run_id=message.run_id)
            given.append(handle.fresh)

    try:
        async with producer(
            system, over_http, settings=with_redis(system, url=fault_proxy.url), patience="20s"
        ) as sending:
            await sending.send(0, run_id="warm")
            fault_proxy.drop_replies("EVALSHA", times=2)  # the second try too
            sent = await sending.send(1, run_id="job-1")
        assert (sent.path, sent.reason, given) == ("fallback", "unavailable", [False])
        await system.worker(app)
        await system.ended("job-1")
        await system.nothing_left()
        assert sorted(runs) == ["job-1", "warm"]
    finally:
        await api.close()


def over(system: System, url: str) -> Any:
    return msgspec.structs.replace(system.settings, client=ClientSettings(url=url))


async def test_the_same_id_again_is_the_same_run(system, rollouts, old_way):
    await rollouts.set(FLAG, 100)
    async with producer(system, old_way) as sending:
        first = await sending.send(1, run_id="job-1")
        again = await sending.send(1, run_id="job-1")
    assert (first.fresh, again.fresh) == (True, False)
    assert (await system.queue.depth()).depth == 1


# -- the fallback over HTTP


@pytest.fixture
async def receiver():
    async with Receiver() as receiver:
        yield receiver


async def test_a_fallback_url_is_given_the_message_and_its_key(system, receiver):
    async with producer(system, receiver.url) as sending:
        await sending.send({"pet_id": "p"}, tenant="acme", run_id="job-1")
    (got,) = receiver.got
    assert got.event == {"pet_id": "p"}
    headers = {name.lower(): text for name, text in got.headers.items()}
    assert headers["idempotency-key"] == "job-1"
    assert headers["x-tenant"] == "acme"
    assert headers["content-type"] == "application/json"


async def test_a_fallback_url_that_stumbles_is_asked_again_under_the_same_key(system, receiver):
    answers = iter([503, "reset", 202])
    receiver.behave = lambda path, body: next(answers)
    async with producer(system, receiver.url) as sending:
        assert (await sending.send(1, run_id="job-1")).path == "fallback"
    keys = [{k.lower(): v for k, v in got.headers.items()}["idempotency-key"] for got in receiver.got]
    assert set(keys) == {"job-1"}
    assert len(keys) == 3


@pytest.mark.parametrize(
    ("status", "error"),
    [(422, InputError), (401, AccessDenied), (503, ApiUnavailable), (301, ConfigError)],
)
async def test_a_fallback_url_that_says_no_is_told_to_the_caller(system, receiver, status, error):
    receiver.status = status
    settings = msgspec.structs.replace(system.settings, client=ClientSettings(max_retries=1))
    async with producer(system, receiver.url, settings=settings) as sending:
        with pytest.raises(error, match=str(status)):
            await sending.send(1)
    assert len(receiver.got) == (2 if status == 503 else 1)


async def test_a_fallback_that_is_no_url_is_refused_at_the_start(system):
    with pytest.raises(ConfigError, match="http://"):
        async with producer(system, "localhost:8080/jobs"):
            pass


# -- the flag itself


async def test_two_who_change_a_rollout_at_once_lose_nothing_of_each_other(rollouts):
    await asyncio.gather(
        rollouts.set(FLAG, 10), *(rollouts.set(FLAG, allow=[f"tenant-{n}"]) for n in range(20))
    )
    found = await rollouts.known(FLAG)
    assert (found.percent, len(found.allowed)) == (10, 20)


async def test_a_rollout_is_cleared_listed_and_removed(rollouts):
    await rollouts.set("other", 5, reason="trial")
    await rollouts.set(FLAG, 10, allow=["a", "b"], deny=["c"])
    changed = await rollouts.set(FLAG, clear=["a"], deny=["b"])
    assert (changed.percent, changed.allowed, changed.denied) == (10, frozenset(), frozenset({"b", "c"}))
    assert [each.name for each in await rollouts.all()] == ["other", FLAG]
    await rollouts.remove("other")
    assert [each.name for each in await rollouts.all()] == [FLAG]
    with pytest.raises(NotFound, match=FLAG):
        await rollouts.known("other")


@pytest.mark.parametrize("written", ["many", "-1", "101", "nan", "inf", ""])
async def test_a_percentage_that_was_written_badly_by_hand_is_off(rollouts, redis, written):
    await redis.hset(f"rollout:{FLAG}", mapping={"percent": written, "changed_at": "soon"})
    assert await rollouts.get(FLAG) == Rollout(name=FLAG)


@pytest.mark.parametrize("written", ["nan", "inf", "1e300", "-5", "1_000"])
async def test_a_time_that_was_written_badly_by_hand_is_none(rollouts, redis, written):
    await redis.hset(f"rollout:{FLAG}", mapping={"percent": "5", "changed_at": written})
    assert (await rollouts.get(FLAG)).changed_at == 0


async def test_a_damaged_rollout_does_not_hide_the_others(rollouts, redis):
    await rollouts.set("fine", 10)
    await redis.set("rollout:damaged", "no hash")
    await redis.sadd("rollouts", "damaged", "no such name!")
    assert [each.name for each in await rollouts.all()] == ["fine"]
    await redis.delete("rollout:damaged")


async def test_a_percentage_that_was_written_by_hand_counts(system, redis, old_way):
    await redis.hset(f"rollout:{FLAG}", "percent", "100")
    async with producer(system, old_way) as sending:
        assert (await sending.send(1, tenant="acme")).path == "queue"


async def test_a_producer_that_is_not_open_says_so(system, old_way):
    with pytest.raises(Exception, match="not open"):
        await producer(system, old_way).send(1)
