"""The external scaler over real gRPC: every call of KEDA, every error, and what it costs Redis."""

from __future__ import annotations

import asyncio
import re
import struct

import grpc
import msgspec
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from holdfast.config import QueueSettings, RedisSettings
from holdfast.redis.client import Redis
from holdfast.scaling.proto import externalscaler_pb2 as wire
from tests.support.redis.fault_proxy import FaultProxy
from tests.support.scaling.scalers import (
    OTHER,
    QUEUE,
    Caller,
    calling,
    queue_of,
    ref,
    serving,
    settings_of,
    submit,
)
from tests.support.waiting import until

SERVICE = "externalscaler.ExternalScaler"


async def refused(call) -> tuple[str, str]:
    """The code and the sentence of a call that must fail."""
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, caught.value.details() or ""


@pytest.fixture
async def caller(redis: Redis, redis_settings: RedisSettings):
    async with calling(settings_of(redis_settings)) as caller:
        yield caller


async def test_an_empty_queue_wants_nobody_and_a_run_wants_somebody(redis: Redis, caller: Caller):
    assert await caller.active() is False
    value = await caller.value()
    assert (value.metricName, value.metricValue, value.metricValueFloat) == ("holdfast-agent-queue", 0, 0)
    await submit(redis, 4)
    assert await caller.active() is True
    value = await caller.value()
    assert (value.metricValue, value.metricValueFloat) == (4, 4.0)
    assert await caller.active(OTHER) is False, "a queue's work is its own"


async def test_the_target_is_what_one_worker_does_at_once(caller: Caller):
    spec = await caller.spec()
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == ("holdfast-agent-queue", 3, 3.0)
    assert (await caller.spec(OTHER)).targetSize == 5
    assert (await caller.spec(slots="7")).targetSizeFloat == 7.0


async def test_work_in_flight_keeps_its_worker(redis: Redis, caller: Caller):
    queue = await submit(redis, 2)
    reading = ("XREADGROUP", "GROUP", queue.settings.group, "w", "COUNT", 2)
    await redis.execute_command(*reading, "STREAMS", queue.keys.stream, ">")
    assert await caller.active() is True
    assert (await caller.value()).metricValueFloat == 2


async def test_old_work_weighs_more_as_the_trigger_says(redis: Redis, caller: Caller):
    queue = queue_of(redis)
    await redis.execute_command("XADD", queue.keys.stream, "1-1", "message_data", "{}")  # fifty years old
    value = await caller.value()
    assert (value.metricValue, value.metricValueFloat) == (2, 2.0), "the queue's own weight"
    value = await caller.value(ageWeight="1.5")
    assert (value.metricValue, value.metricValueFloat) == (2, 1.5), "the whole number is never less"
    assert (await caller.value(ageWeight="1")).metricValueFloat == 1
    assert (await caller.value(targetWaitSeconds="86400", ageWeight="3")).metricValueFloat == 3
    assert (await caller.value(ageWeight="9")).metricValueFloat == 3, "a second worker would have no run"


async def test_several_queues_are_summed(redis: Redis, caller: Caller):
    await submit(redis, 2)
    await submit(redis, 3, OTHER)
    both = f"{QUEUE}, {OTHER},{QUEUE}"
    assert (await caller.value(both, slots="3")).metricValueFloat == 5
    assert (await caller.spec(both, slots="3")).metricName == "holdfast-agent-queue-browser-jobs"
    code, said = await refused(caller.spec(both))
    assert code == "INVALID_ARGUMENT"
    assert "agent-queue has 3, browser-jobs has 5" in said


async def test_activation_is_strictly_more(redis: Redis, caller: Caller):
    await submit(redis, 3)
    assert await caller.active(activation="3") is False
    assert await caller.active(activation="2.5") is True


@pytest.mark.parametrize("call", ["IsActive", "StreamIsActive", "GetMetricSpec", "GetMetrics"])
async def test_a_wrong_queue_is_not_found_and_the_right_ones_are_named(caller: Caller, call: str):
    asked = ref("browser-job")
    request = wire.GetMetricsRequest(scaledObjectRef=asked, metricName="x") if call == "GetMetrics" else asked
    answer = getattr(caller.stub, call)(request)
    code, said = await refused(answer.read() if call == "StreamIsActive" else answer)
    assert code == "NOT_FOUND"
    assert "did you mean 'browser-jobs'? There are agent-queue, browser-jobs" in said


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"queue": ""}, "has no queue: name one of agent-queue, browser-jobs"),
        ({"queue": "agent-queue,,browser-jobs"}, "has an empty name in it"),
        ({"slots": "0"}, "slots = '0' is not allowed: a number from 1 to 1000000"),
        ({"slots": "2.5"}, "slots = '2.5' is not a whole number"),
        ({"slots": "three"}, "slots = 'three' is not allowed"),
        (
            {"targetWaitSeconds": "nan"},
            "targetWaitSeconds = 'nan' is not allowed: a number from 0.1 to 86400",
        ),
        ({"ageWeight": "0.5"}, "ageWeight = '0.5' is not allowed: a number from 1 to 100"),
        ({"activation": "-1"}, "activation = '-1' is not allowed"),
        ({"targetwaitseconds": "5"}, "has 'targetwaitseconds': write targetWaitSeconds"),
        ({"age_weight": "5"}, "has 'age_weight': write ageWeight"),
        ({"targetWaitSecond": "5"}, "has 'targetWaitSecond': write targetWaitSeconds"),
    ],
)
async def test_wrong_metadata_is_said_in_a_sentence(caller: Caller, metadata: dict[str, str], words: str):
    given = {"queue": QUEUE, **metadata}
    for call in (caller.active, caller.value, caller.spec):
        code, said = await refused(call(**given))
        assert code == "INVALID_ARGUMENT"
        assert words in said


async def test_a_value_from_the_environment_is_one_too(redis: Redis, caller: Caller):
    await submit(redis)
    assert await caller.active("", queueFromEnv=QUEUE) is True


async def test_a_metric_that_this_trigger_has_not_is_not_found(caller: Caller):
    code, said = await refused(caller.value(metric="holdfast-browser-jobs"))
    assert code == "NOT_FOUND"
    assert "this trigger has holdfast-agent-queue" in said
    assert (await caller.value(metric="s0-holdfast-agent-queue")).metricValue == 0, "as the HPA has it"


async def test_a_damaged_queue_is_an_error_of_its_own(redis: Redis, caller: Caller):
    await submit(redis, 2)
    await redis.execute_command("SET", OTHER, "no stream")
    answers = await asyncio.gather(
        *(caller.value() for _ in range(10)),
        *(caller.active(OTHER) for _ in range(10)),
        return_exceptions=True,
    )
    assert [answer.metricValue for answer in answers[:10]] == [2] * 10
    assert {answer.code().name for answer in answers[10:]} == {"FAILED_PRECONDITION"}


# -- by hand: what goes over the wire, by the numbers of the fields


def text(number: int, value: str) -> bytes:
    return bytes([number << 3 | 2, len(value)]) + value.encode()


def raw_ref(metadata: dict[str, str]) -> bytes:
    pairs = [text(1, key) + text(2, value) for key, value in metadata.items()]
    return text(1, "n") + text(2, "ns") + b"".join(bytes([3 << 3 | 2, len(pair)]) + pair for pair in pairs)


async def test_the_bytes_are_those_of_kedas_own_file(redis: Redis, caller: Caller):
    await submit(redis, 5)
    asked = raw_ref({"queue": QUEUE})
    name = text(1, "holdfast-agent-queue")

    async def call(method: str, request: bytes) -> bytes:
        return await caller.channel.unary_unary(f"/{SERVICE}/{method}")(request, timeout=30)

    assert await call("IsActive", asked) == b"\x08\x01"
    spec = name + b"\x10\x03" + b"\x19" + struct.pack("<d", 3.0)
    assert await call("GetMetricSpec", asked) == b"\x0a" + bytes([len(spec)]) + spec
    value = name + b"\x10\x05" + b"\x19" + struct.pack("<d", 5.0)
    request = b"\x0a" + bytes([len(asked)]) + asked + text(2, "holdfast-agent-queue")
    assert await call("GetMetrics", request) == b"\x0a" + bytes([len(value)]) + value
    stream = caller.channel.unary_stream(f"/{SERVICE}/StreamIsActive")(asked)
    assert await stream.read() == b"\x08\x01"
    stream.cancel()
    with pytest.raises(aio.AioRpcError) as caught:
        await call("StreamMetricSpec", asked)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED, "which a newer KEDA takes as: not pushed"


@pytest.mark.parametrize("junk", [b"\xff", b"\x0a\x7f", b"\x1a\x02\x0a\xff", bytes(range(256))])
async def test_what_is_no_request_harms_nobody(caller: Caller, junk: bytes):
    for method in ("IsActive", "GetMetrics", "GetMetricSpec"):
        with pytest.raises(aio.AioRpcError):
            await caller.channel.unary_unary(f"/{SERVICE}/{method}")(junk, timeout=30)
    with pytest.raises(aio.AioRpcError):
        await caller.channel.unary_stream(f"/{SERVICE}/StreamIsActive")(junk).read()
    assert await caller.active() is False


# -- probes and people


async def test_probes_and_people_are_answered(caller: Caller):
    stub = health_pb2_grpc.HealthStub(caller.channel)
    for service in ("", SERVICE):
        said = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=30)
        assert said.status == health_pb2.HealthCheckResponse.SERVING
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    async for said in reflection_pb2_grpc.ServerReflectionStub(caller.channel).ServerReflectionInfo(
        iter([asked])
    ):
        assert SERVICE in {service.name for service in said.list_services_response.service}


async def test_what_is_asked_is_counted_by_queues_that_there_are(redis: Redis, redis_settings: RedisSettings):
    async with serving(settings_of(redis_settings)) as service:
        caller = Caller(service.port)
        await caller.active()
        await caller.value(OTHER)
        for wrong in ("nothing", "nothing-else"):
            await refused(caller.active(wrong))
        await refused(caller.value(slots="0"))
        await caller.channel.close()

        def counted() -> dict[tuple[str, str], float]:
            return {
                (sample.labels["queue"], sample.labels["result"]): sample.value
                for metric in service.metrics.registry.collect()
                for sample in metric.samples
                if sample.name == "holdfast_scaling_questions_total" and sample.value
            }

        await until(lambda: sum(counted().values()) >= 6)  # the last one is counted after it was answered
        assert counted() == {
            (QUEUE, "ok"): 1,
            (OTHER, "ok"): 2,
            ("unknown", "not_found"): 2,
            ("unknown", "invalid_argument"): 1,
        }


# -- what it costs


async def test_what_is_asked_in_one_moment_travels_together(
    redis: Redis, fault_proxy: FaultProxy, patient_settings: RedisSettings
):
    await submit(redis, 2)
    async with serving(settings_of(patient_settings)) as service:
        caller = Caller(service.port)
        await caller.value()
        before = fault_proxy.commands[b"EVALSHA"]
        fault_proxy.stall("replies")  # until all of them have asked, however long they take to arrive
        asking = asyncio.gather(*(caller.value(metric="holdfast-agent-queue") for _ in range(100)))
        batcher = service._asker._batchers[""]
        await until(lambda: len(batcher._waiting) == 99 or fault_proxy.commands[b"EVALSHA"] - before > 20)
        fault_proxy.heal()
        assert [value.metricValue for value in await asking] == [2] * 100
        await caller.channel.close()
        assert fault_proxy.commands[b"EVALSHA"] - before <= 5, "not a hundred"


async def test_a_partitioned_queue_is_one(redis: Redis, redis_settings: RedisSettings):
    settings = settings_of(redis_settings)
    spread = QueueSettings(name=QUEUE, partitions=4)
    queue = queue_of(redis, partitions=4)
    await queue.ensure()
    for partition in queue.partitions:
        await redis.execute_command("XADD", partition.keys.stream, "*", "message_data", "{}")
    async with calling(msgspec.structs.replace(settings, queue=spread)) as caller:
        assert (await caller.value()).metricValue == 4


# -- Redis is away


@pytest.mark.parametrize("fault", ["refuse", "stall"])
async def test_a_redis_that_is_away_is_an_error_never_zero(
    redis: Redis, fault_proxy: FaultProxy, proxied_settings: RedisSettings, fault: str
):
    await submit(redis, 2)
    async with calling(settings_of(proxied_settings, answer_seconds=0.3)) as caller:

        async def answer() -> float | None:
            try:
                return (await caller.value()).metricValue
            except aio.AioRpcError as exc:
                assert exc.code() is grpc.StatusCode.UNAVAILABLE
                return None

        # Not at once: a busy machine may take longer than those 0.3 s.
        assert await until(answer, lambda value: value is not None) == 2
        getattr(fault_proxy, fault)()
        for call in (caller.active(), caller.value(metric="holdfast-agent-queue")):
            code, said = await refused(call)
            assert code == "UNAVAILABLE"
            assert re.search(r"Redis at .* (does not answer|has not answered)", said)
        assert (await caller.spec()).targetSize == 3, "nobody has to ask Redis for that"
        stub = health_pb2_grpc.HealthStub(caller.channel)
        said = await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=30)
        assert said.status == health_pb2.HealthCheckResponse.SERVING, "it does answer"
        fault_proxy.heal()
        assert await until(answer, lambda value: value is not None) == 2


async def test_a_redis_that_never_was_there_is_the_same(redis_settings: RedisSettings, short_dir):
    nowhere = msgspec.structs.replace(redis_settings, url=f"unix://{short_dir}/none.sock")
    async with calling(settings_of(nowhere)) as caller:
        assert (await refused(caller.active()))[0] == "UNAVAILABLE"
        stub = health_pb2_grpc.HealthStub(caller.channel)
        said = await stub.Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert said.status == health_pb2.HealthCheckResponse.SERVING
