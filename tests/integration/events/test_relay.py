"""The relay: every event to every sink, in order per run, at least once, whatever receivers do."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import io
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

import msgspec
import pytest

from holdfast.config import LogSettings
from holdfast.events.relay.undelivered import Undelivered
from holdfast.events.sinks.poster import _AnswerTimeout
from holdfast.services import relay as services_relay
from holdfast.telemetry.logs import configure
from tests.support.events.event_receiver import Receiver, in_order
from tests.support.events.relays import Outside
from tests.support.logs import restored_logs
from tests.support.waiting import until


@pytest.fixture
async def receiver():
    async with Receiver() as receiver:
        yield receiver


@pytest.fixture
async def outside(redis, redis_settings, receiver):
    async with Outside(redis_settings, receiver.url) as outside:
        yield outside


@pytest.fixture
def logged():
    """What this process has logged since, at any level."""
    stream = io.StringIO()
    with restored_logs():
        configure(LogSettings(level="debug", format="json"), stream)
        yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


async def test_every_event_reaches_the_event_api_once_and_in_order(outside, receiver):
    outside.relay()
    for run in ("a", "b", "c"):
        await outside.run(run)
        await outside.say(run, "submitted", *["chunk"] * 60, "succeeded")
    await outside.emptied()
    for run in ("a", "b", "c"):
        assert receiver.ids(run) == [f"{run}/{number}" for number in range(1, 63)]


async def test_an_event_tells_what_happened_to_whom_as_a_cloud_event(outside, receiver):
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    await outside.run(
        "r1",
        client_id="acme",
        project_id="p7",
        tenant="t1",
        trace=trace,
        logger_context={"user": "ada"},
        thread_id="th",
    )
    (event_id,) = await outside.say("r1", "thinking", data={"depth": 3})
    outside.relay()
    await outside.emptied()
    (got,) = receiver.got
    assert got.headers["x-enterprise-api-internal"] == "the secret"
    assert got.headers["x-client-id"] == "acme"
    assert got.headers["traceparent"] == trace["traceparent"]
    assert got.headers["content-type"].startswith("application/cloudevents+json")
    event = got.event
    assert (event["specversion"], event["id"], event["sequence"]) == ("1.0", "r1/1", "1")
    assert (event["type"], event["subject"], event["source"]) == (
        "holdfast.run.thinking",
        "r1",
        "/holdfast/queues/agent-queue",
    )
    assert event["traceparent"] == trace["traceparent"]
    assert event["time"].endswith("Z")
    assert event["data"] == {
        "run_id": "r1",
        "event_id": event_id,
        "type": "thinking",
        "agent": "echo",
        "thread_id": "th",
        "tenant": "t1",
        "client_id": "acme",
        "project_id": "p7",
        "payload": {"depth": 3},
        "logger_context": {"user": "ada"},
    }


async def test_events_that_come_later_go_on_with_the_next_number(outside, receiver):
    outside.relay()
    await outside.run("a")
    for number in range(1, 4):
        await outside.say("a", "chunk")
        await until(lambda number=number: len(receiver.got) == number)
    await outside.emptied()
    assert receiver.ids() == ["a/1", "a/2", "a/3"]


@pytest.mark.parametrize("trouble", [500, 503, 429, 408, 401, 403, 404, 405, 301, "reset", "hang"])
async def test_a_receiver_that_fails_is_tried_again_and_nothing_is_lost_or_passed_over(
    outside, receiver, trouble
):
    receiver.status = trouble
    running = outside.relay(**({"timeout_seconds": 0.5} if trouble == "hang" else {}))
    await outside.run("a")
    await outside.say("a", "submitted", "started", "succeeded")
    await until(lambda: len(receiver.got) >= 3)
    receiver.status = 204
    await outside.emptied()
    assert receiver.ids("a") == ["a/1", "a/2", "a/3"]
    assert in_order([got.event["id"] for got in receiver.got])
    assert await outside.undelivered() == []
    failed = sum(
        running.count("relay_failures_total", queue="agent-queue", sink="eventapi", kind=kind)
        for kind in ("status", "rejected", "timeout", "connection")
    )
    assert failed >= 3


class OwnThread(ThreadingHTTPServer):
    """A receiver that answers while this event loop stands still, once it may."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), OwnThreadHandler)
        self.ids: list[str] = []
        self.arrived, self.may_answer, self.answered = (threading.Event() for _ in range(3))

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.may_answer.set()
        self.shutdown()
        self.server_close()


class OwnThreadHandler(BaseHTTPRequestHandler):
    server: OwnThread

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.ids.append(json.loads(body)["id"])
        self.server.arrived.set()
        self.server.may_answer.wait(30)
        self.send_response(204)
        self.end_headers()
        self.server.answered.set()

    def log_message(self, *_: object) -> None:
        pass


async def test_an_answer_that_came_while_the_relay_stood_still_counts(redis, redis_settings):
    """Fails if the relay's own pause is the receiver's timeout: the event would be delivered again."""
    with OwnThread() as receiver:
        async with Outside(redis_settings, f"http://127.0.0.1:{receiver.server_port}/") as outside:
            running = outside.relay(timeout_seconds=1.0)
            await outside.run("a")
            await outside.say("a", "submitted")
            await until(receiver.arrived.is_set)
            receiver.may_answer.set()
            time.sleep(1.5)  # as a process without a CPU does
            assert receiver.answered.wait(30)
            await outside.emptied()
            assert receiver.ids == ["a/1"]
            failed = {"queue": "agent-queue", "sink": "eventapi", "kind": "timeout"}
            assert running.count("relay_failures_total", **failed) == 0


async def test_an_answer_that_came_in_a_pause_at_the_very_end_of_the_timeout_counts():
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        timeout = _AnswerTimeout(3.0)
        async with timeout:
            timeout._left = 1
            theirs.send(b"x")
            loop.call_soon(time.sleep, 0.7)  # more than two slices of the timeout
            assert await loop.sock_recv(ours, 1) == b"x"
            for _ in range(5):  # an answer is read in several steps
                await asyncio.sleep(0)


async def test_a_receiver_that_dies_and_comes_back_gets_everything_in_order(outside, receiver):
    running = outside.relay()
    runs = [await outside.run(f"r{number}") for number in range(5)]
    for run in runs:
        await outside.say(run, *["chunk"] * 10)
    await until(lambda: len(receiver.got) >= 5)
    await receiver.die()
    for run in runs:
        await outside.say(run, *["chunk"] * 10)
    await until(lambda: running.count("relay_receivers_down") == 1)
    await receiver.revive()
    await outside.emptied()
    assert in_order(receiver.ids())
    for run in runs:
        assert list(dict.fromkeys(receiver.ids(run))) == [f"{run}/{number}" for number in range(1, 21)]


async def test_other_runs_flow_while_one_runs_receiver_is_down(redis, redis_settings):
    async with Receiver() as good, Receiver() as bad, Outside(redis_settings) as outside:
        bad.status = "hang"
        outside.relay(timeout_seconds=60.0)  # who waits for the bad one waits longer than this test
        share = outside.settings.relay.concurrency // 4
        for number in range(100):
            await outside.run(f"bad{number}", webhook=f"{bad.url}/{number}")
            await outside.say(f"bad{number}", "submitted", "succeeded")
        await until(lambda: bad.open >= share)
        await outside.run("good", webhook=good.url)
        await outside.say("good", *["chunk"] * 20)
        await until(lambda: len(good.got) == 20)
        assert bad.taken == []
        assert bad.most_open <= share
        bad.status = 204
        bad.release()
        await outside.emptied()
        assert in_order(bad.ids())
        assert len(set(bad.ids())) == 200


async def test_sinks_of_one_run_do_not_wait_for_each_other(outside, receiver):
    async with Receiver() as hook:
        hook.status = 500
        outside.relay()
        await outside.run("a", webhook=hook.url)
        await outside.say("a", "submitted", "succeeded")
        await until(lambda: len(receiver.ids("a")) == 2 and hook.got)
        hook.status = 200
        await outside.emptied()
        assert hook.ids("a") == ["a/1", "a/2"]
        assert receiver.ids("a") == ["a/1", "a/2"]


@pytest.mark.parametrize("status", [400, 413, 415, 422])
async def test_what_a_receiver_refuses_is_given_up_after_a_few_tries(outside, receiver, status):
    receiver.behave = lambda path, body: status if json.loads(body)["id"] == "a/2" else 204
    running = outside.relay()
    await outside.run("a")
    ids = await outside.say("a", "submitted", "odd", "succeeded", data="x")
    await outside.emptied()
    assert receiver.ids("a") == ["a/1", "a/3"]
    assert [got.event["id"] for got in receiver.got].count("a/2") == 3
    (letter,) = await outside.undelivered()
    assert json.loads(letter.pop("origin"))["run_id"] == "a"
    assert letter == {
        "address": "",
        "run_id": "a",
        "event_id": ids[1],
        "sequence": "2",
        "type": "odd",
        "sink": "eventapi",
        "error": f"the receiver answered {status} (3 times)",
        "data": '"x"',
    }
    assert running.count("relay_undelivered_total", queue="agent-queue", sink="eventapi") == 1


@pytest.mark.parametrize("status", [401, 404])
async def test_an_event_api_that_rejects_everything_for_longer_than_many_tries_loses_nothing(
    outside, receiver, status
):
    """Fails if a rotated secret, or a deploy that answers 404, counts as the event's fault."""
    receiver.status = status
    running = outside.relay()
    await outside.run("a")
    await outside.say("a", "submitted", "succeeded")
    rejected = {"queue": "agent-queue", "sink": "eventapi", "kind": "rejected"}
    await until(lambda: running.count("relay_failures_total", **rejected) >= 25)
    await until(lambda: running.count("relay_receivers_down") == 1)
    receiver.status = 204
    await outside.emptied()
    assert receiver.ids("a") == ["a/1", "a/2"]
    assert await outside.undelivered() == []


async def test_a_webhook_that_rejects_is_tried_longer_than_one_that_refuses_the_event(
    redis, redis_settings, receiver
):
    """A deploy of its owner that answers 404 for a while loses nothing; an address that is wrong is given up."""
    async with Outside(redis_settings) as outside:
        receiver.status = 404
        outside.relay()
        await outside.run("a", webhook=receiver.url)
        await outside.say("a", "submitted", "started", "succeeded")
        await until(lambda: len(receiver.got) >= 6)
        receiver.status = 204
        await outside.emptied()
        assert receiver.ids("a") == ["a/1", "a/2", "a/3"]
        receiver.status, receiver.got[:] = 404, []
        await outside.run("b", webhook=receiver.url)
        await outside.say("b", "submitted", "started", "succeeded")
        await outside.emptied()
        tries = [got.event["id"] for got in receiver.got]
        assert tries == [*["b/1"] * 20, "b/2", "b/3"], "the next events do not wait as long again"
        assert [letter["error"] for letter in await outside.undelivered()] == [
            "the receiver answered 404 (20 times)"
        ] * 3


async def test_the_events_that_wait_are_counted_not_only_their_runs(outside, receiver, monkeypatch):
    monkeypatch.setattr(services_relay, "_GAUGES_SECONDS", 0.05)
    receiver.behave = lambda path, body: 204 if json.loads(body)["id"] == "a/1" else 503
    running = outside.relay()
    for run, count in (("a", 8), ("b", 3)):
        await outside.run(run)
        await outside.say(run, *["chunk"] * count)
    labels = {"queue": "agent-queue", "sink": "eventapi"}
    await until(lambda: running.count("relay_events_waiting", **labels), lambda count: count == 7 + 3)
    await until(lambda: running.count("relay_waiting", **labels) == 2)
    receiver.behave = lambda path, body: 422
    await outside.emptied()
    await until(lambda: running.count("relay_events_waiting", **labels) == 0)
    receiver.behave = lambda path, body: 503
    await Undelivered(outside.keys, outside.redis).redeliver(run_id="a")
    await until(lambda: running.count("relay_events_waiting", **labels) == 7)


async def test_a_webhook_that_is_gone_is_given_up_at_once(redis, redis_settings, receiver):
    async with Outside(redis_settings) as outside:
        receiver.status = 410
        outside.relay()
        await outside.run("a", webhook=receiver.url)
        await outside.say("a", "submitted", "succeeded")
        await outside.emptied()
        assert [got.event["id"] for got in receiver.got] == ["a/1", "a/2"]
        assert len(await outside.undelivered()) == 2


async def test_rejections_do_not_count_as_refusals_of_the_event(redis, redis_settings, receiver):
    """Fails if both have one count: the first 400 after a deployment's 404s would end the event."""
    answers = [404] * 5 + [400] * 2 + [404] * 3
    receiver.behave = lambda path, body: answers.pop(0) if answers else 204
    async with Outside(redis_settings) as outside:
        outside.relay()
        await outside.run("a", webhook=receiver.url)
        await outside.say("a", "submitted")
        await outside.emptied()
        assert await outside.undelivered() == []
        assert (receiver.ids("a"), answers) == (["a/1"], [])


@pytest.mark.parametrize("trouble", [401, 500, "reset"])
async def test_a_receiver_that_becomes_unavailable_and_recovers_is_logged_once_each(
    outside, receiver, trouble, logged
):
    receiver.status = trouble
    outside.relay()
    runs = [await outside.run(f"r{number}") for number in range(4)]
    for run in runs:
        await outside.say(run, "submitted", "succeeded")
    await until(lambda: len(receiver.got) >= 12)
    receiver.status = 204
    await outside.emptied()
    about = [each for each in logged() if each["event"].startswith("receiver ")]
    assert [(each["event"], each["level"]) for each in about] == [
        ("receiver unavailable", "warning"),
        ("receiver recovered", "warning"),
    ]
    assert about[0]["receiver"] == f"http://127.0.0.1:{receiver.port}"
    assert about[1]["failures"] >= 12


async def test_a_delivered_event_is_logged_at_debug_and_a_refused_one_at_warning(outside, receiver, logged):
    receiver.behave = lambda path, body: 422 if json.loads(body)["id"] == "a/2" else 204
    outside.relay()
    await outside.run("a")
    ids = await outside.say("a", "submitted", "odd", "succeeded")
    await outside.emptied()
    delivered = [each for each in logged() if each["event"] == "event delivered"]
    assert [(each["level"], each["event_id"], each["type"]) for each in delivered] == [
        ("debug", ids[0], "submitted"),
        ("debug", ids[2], "succeeded"),
    ]
    refused = [each for each in logged() if each["event"] == "event not accepted"]
    assert [(each["level"], each["event_id"]) for each in refused] == [("warning", ids[1])] * 2


async def test_what_fails_for_too_long_is_given_up_and_the_run_goes_on(redis, redis_settings, receiver):
    # Long enough for several tries, also of a relay that has no CPU for most of it.
    async with Outside(redis_settings, receiver.url, give_up_seconds=4.0) as outside:
        receiver.behave = lambda path, body: 500 if json.loads(body)["id"] == "a/1" else 204
        outside.relay()
        await outside.run("a")
        await outside.say("a", "submitted", "succeeded")
        await outside.emptied()
        assert receiver.ids("a") == ["a/2"]
        assert [letter["sequence"] for letter in await outside.undelivered()] == ["1"]
        assert len(receiver.got) > 4


async def test_retry_after_is_honoured(outside, receiver):
    arrived: list[float] = []

    def refuse_the_first(_path: str, _body: bytes) -> int:
        arrived.append(time.monotonic())
        return 503 if len(arrived) == 1 else 204

    receiver.behave, receiver.headers = refuse_the_first, {"retry-after": "1"}
    outside.relay()
    await outside.run("a")
    await outside.say("a", "submitted")
    await outside.emptied()
    first, second = arrived
    assert second - first > 0.9


async def test_webhooks_are_signed_as_standard_webhooks_has_it(redis, redis_settings, receiver):
    old, new = b"old key of 24 bytes.....", b"new key of 24 bytes....."
    secrets = " ".join(f"whsec_{base64.b64encode(key).decode()}" for key in (new, old))
    async with Outside(redis_settings, webhook_secret=secrets) as outside:
        outside.relay()
        await outside.run("a", webhook=f"http://127.0.0.1:{receiver.port}/hook?x=1")
        await outside.say("a", "submitted", "succeeded")
        await outside.emptied()
    assert [got.path for got in receiver.got] == ["/hook?x=1"] * 2
    for got in receiver.got:
        verify_standard_webhook(got, f"whsec_{base64.b64encode(old).decode()}")
        verify_standard_webhook(got, f"whsec_{base64.b64encode(new).decode()}")
        with pytest.raises(ValueError, match="signature"):
            verify_standard_webhook(got, f"whsec_{base64.b64encode(b'wrong').decode()}")
    assert [got.headers["webhook-id"] for got in receiver.got] == ["a/1", "a/2"]


def verify_standard_webhook(got, secret):
    """Verify as the specification says, by other means than ours."""
    key = base64.b64decode(secret.split("_", 1)[1])
    stamp = got.headers["webhook-timestamp"]
    if abs(time.time() - int(stamp)) > 300:
        raise ValueError("timestamp")
    signed = b".".join([got.headers["webhook-id"].encode(), stamp.encode(), got.body])
    mac = hmac.new(key, signed, hashlib.sha256)
    for versioned in got.headers["webhook-signature"].split(" "):
        version, _, signature = versioned.partition(",")
        if version == "v1" and hmac.compare_digest(base64.b64decode(signature), mac.digest()):
            return
    raise ValueError("signature")


async def test_a2a_clients_are_told_by_push_notifications(redis, redis_settings, receiver):
    async with Outside(redis_settings) as outside:
        outside.relay()
        await outside.run("a", push={"url": receiver.url, "token": "tok"}, thread_id="ctx")
        await outside.say("a", "submitted")
        for kind in ("started", "handed_back", "reclaimed"):
            await outside.say("a", kind, data={"attempt": 1, "fence": 1, "owner": "worker-7f9c-abcde"})
        await outside.say("a", "thinking", data={"depth": 3})
        await outside.say("a", "chunk", data="Hel")
        await outside.say("a", "interrupted", data={"index": 1, "value": "ok?"})
        await outside.say("a", "succeeded", data={"result": 42})
        await outside.emptied()
    submitted, *ours, thinking, chunk, interrupted, succeeded = (got.event for got in receiver.got)
    for update in ours:  # what we say of the run is no message of the agent, and names our pods
        assert update["statusUpdate"]["status"]["state"] == "TASK_STATE_WORKING"
        assert "message" not in update["statusUpdate"]["status"]
    assert "worker-7f9c" not in str([got.body for got in receiver.got])
    assert thinking["statusUpdate"]["status"]["message"]["parts"] == [{"data": {"depth": 3}}]
    assert all(got.headers["x-a2a-notification-token"] == "tok" for got in receiver.got)
    assert submitted["statusUpdate"]["status"]["state"] == "TASK_STATE_SUBMITTED"
    assert (submitted["statusUpdate"]["taskId"], submitted["statusUpdate"]["contextId"]) == ("a", "ctx")
    assert chunk["artifactUpdate"]["artifact"]["parts"] == [{"text": "Hel"}]
    assert chunk["artifactUpdate"]["append"] is True
    assert interrupted["statusUpdate"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert succeeded["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert succeeded["statusUpdate"]["status"]["message"]["parts"] == [{"data": {"result": 42}}]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "http://[::1]:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://2130706433:{port}/",
        "http://0.0.0.0:{port}/",
        "http://169.254.169.254/latest/meta-data",
        "ftp://127.0.0.1/",
        "not a url",
        "http://",
    ],
)
async def test_a_webhook_into_our_own_network_is_never_called(redis, redis_settings, receiver, url):
    async with Outside(redis_settings, private_webhooks=False) as outside:
        outside.relay()
        await outside.run("a", webhook=url.format(port=receiver.port))
        await outside.say("a", "submitted")
        await outside.emptied()
        (letter,) = await outside.undelivered()
        assert letter["sink"] == "webhook"
        assert "private" in letter["error"] or "can't be called" in letter["error"], letter
    assert receiver.got == []


async def test_a_run_without_anywhere_to_go_leaves_the_outbox_only_if_somebody_serves_it(
    redis, redis_settings
):
    """Without an Event API here the run must have been meant for one elsewhere: it waits for that."""
    async with Receiver() as receiver, Outside(redis_settings) as outside:
        outside.relay()
        await outside.run("a")
        await outside.say("a", "submitted")
        await until(lambda: outside.redis.zscore(outside.keys.outbox, "a"), lambda found: (found or 0) >= 1)
        await outside.redis.zadd(outside.keys.outbox, {"a": 0})
        event_api = msgspec.structs.replace(outside.settings.event_api, url=receiver.url)
        await outside.running[0].stop()
        outside.settings = msgspec.structs.replace(outside.settings, event_api=event_api)
        outside.relay()
        await outside.redis.zadd(outside.keys.outbox, {"a": 0})
        await outside.emptied()
        assert receiver.ids() == ["a/1"]


async def test_a_run_that_left_too_early_is_noted(outside, receiver):
    await outside.run("a")
    await outside.say("a", "submitted")
    await outside.redis.delete(outside.keys.run("a"), outside.keys.feed("a"))
    running = outside.relay()
    await outside.emptied()
    (letter,) = await outside.undelivered()
    assert (letter["run_id"], letter["event_id"]) == ("a", "")
    assert "left" in letter["error"]
    await until(lambda: running.count("relay_undelivered_total", queue="agent-queue", sink="any") == 1)


async def test_odd_messages_and_data_are_delivered_all_the_same(outside, receiver):
    outside.relay()
    await outside.run("a")
    await outside.redis.hset(outside.keys.run("a"), "message", b"\xff not json")
    await outside.redis.xadd(outside.keys.feed("a"), {"type": "odd", "data": b"\xffno json"})
    await outside.redis.xadd(outside.keys.feed("a"), {"what": "ever"})
    await outside.run("b", client_id=7, trace=[1], webhook={"x": 1}, logger_context="no", push="p")
    await outside.say("b", "x\r\ny")
    await outside.say("a", "last")
    await outside.emptied()
    assert receiver.ids("a") == ["a/1", "a/2", "a/3"]
    assert receiver.ids("b") == ["b/1"]


async def test_a_relay_that_is_told_to_stop_lets_go_at_once(redis, redis_settings, receiver):
    async with Outside(redis_settings, receiver.url, ttl=120.0) as outside:
        first = outside.relay("first")
        await outside.run("a")
        await outside.say("a", *["chunk"] * 200)
        await until(lambda: len(receiver.got) > 5)
        await first.stop()
        seen = len(receiver.got)
        outside.relay("second")
        await until(lambda: len(receiver.got) > seen)  # a quarter of the ttl is waited for that
        await outside.emptied()
        assert receiver.ids("a") == [f"a/{number}" for number in range(1, 201)]


async def test_two_relays_share_the_work_and_repeat_nothing(outside, receiver):
    outside.relay("first", concurrency=8)
    outside.relay("second", concurrency=8)
    runs = [await outside.run(f"r{number}") for number in range(30)]
    for _ in range(5):
        for run in runs:
            await outside.say(run, "chunk", "chunk")
    await outside.emptied()
    for run in runs:
        assert receiver.ids(run) == [f"{run}/{number}" for number in range(1, 11)]


async def test_a_relay_survives_a_redis_that_restarts(restartable_valkey, redis_settings, receiver):
    settings = msgspec.structs.replace(redis_settings, url=restartable_valkey.url)
    # What Redis could not tell before it died is claimed again when the lease has ended.
    async with Outside(settings, receiver.url, ttl=2.0) as outside:
        outside.relay()
        runs = [await outside.run(f"r{number}") for number in range(10)]
        for run in runs:
            await outside.say(run, *["chunk"] * 30)
        await until(lambda: len(receiver.got) > 20)
        await asyncio.to_thread(restartable_valkey.restart)
        await outside.emptied()
        assert in_order(receiver.ids())
        for run in runs:
            assert list(dict.fromkeys(receiver.ids(run))) == [f"{run}/{number}" for number in range(1, 31)]


async def test_a_lost_reply_of_redis_repeats_no_event(
    redis, redis_settings, patient_settings, fault_proxy, receiver
):
    async with Outside(
        patient_settings, receiver.url, ttl=6.0
    ) as outside:  # a lost claim is waited for so long
        outside.redis = redis
        outside.relay()
        await outside.run("a")
        fault_proxy.drop_replies("EVALSHA", after=6, times=3)
        await outside.say("a", *["chunk"] * 30)
        await outside.emptied()
        assert fault_proxy.dropped == 3
        assert receiver.ids("a") == [f"a/{number}" for number in range(1, 31)]
        outside.running[0].task.cancel()
