"""The relay's pure parts: what an answer means, how long to wait, when to give up, whom never to call."""

from __future__ import annotations

import contextlib
from unittest.mock import Mock

import pytest

from holdfast.config import RelaySettings, load
from holdfast.errors import ConfigError
from holdfast.events.event import FINAL, Event, order
from holdfast.events.relay.retry import given_up, pause_seconds
from holdfast.events.relay.run_facts import RunFacts, read_run_facts
from holdfast.events.sinks import destinations
from holdfast.events.sinks.addresses import is_literal, is_public, leads_inside
from holdfast.events.sinks.cloudevent import trace_headers
from holdfast.events.sinks.destinations import Destinations, ReceiverFailed
from holdfast.events.sinks.eventapi import EventApi
from holdfast.events.sinks.poster import Poster
from holdfast.events.sinks.push import LIFECYCLE, PushSink
from holdfast.events.sinks.request import ResponseMeaning, SinkRequest, SinkResponse, retry_after_of
from holdfast.events.sinks.webhook import Webhook
from holdfast.reliability.breaker import BreakerState
from holdfast.runs.execution.emit import RESERVED

EVENT = Event("1700000000000-0", "said", {"x": 1}, 1700000000.0)
RUN = RunFacts(run_id="r", queue="q")


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        *((status, ResponseMeaning.DELIVERED) for status in (200, 201, 202, 204)),
        *((status, ResponseMeaning.RETRY) for status in (408, 409, 425, 429, 500, 502, 503, 504, 599, 0)),
        *((status, ResponseMeaning.REFUSED) for status in (400, 413, 415, 422)),
        *((status, ResponseMeaning.REJECTED) for status in (301, 302, 307, 401, 403, 404, 405, 410, 418)),
    ],
)
def test_what_an_answer_means(status, verdict):
    assert SinkResponse(status=status).verdict is verdict


def test_an_a2a_client_gets_a_message_for_ends_and_questions_but_for_nothing_else_that_is_ours():
    """Fails if a new type of the system's events is not decided about."""
    assert FINAL | {"interrupted"} == RESERVED - LIFECYCLE


def test_an_address_that_must_not_be_called_is_impossible():
    assert SinkResponse(kind="address").verdict is ResponseMeaning.IMPOSSIBLE


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("7", 7),
        (" 7 ", 7),
        ("999999999999", 3600),
        ("Tue, 14 Nov 2023 22:13:30 GMT", 10),
        ("Tue, 14 Nov 2023 22:13:00 GMT", 0),
        ("soon", 0),
        ("-5", 0),
        ("", 0),
        ("٣", 0),
    ],
)
def test_retry_after_is_read_in_both_ways(text, seconds):
    assert retry_after_of(text, now=1700000000.0) == seconds


@pytest.mark.parametrize(
    ("answer", "tries", "refusals", "seconds"),
    [
        (SinkResponse(status=500), 0, 0, 0.5),
        (SinkResponse(status=500), 3, 0, 4.0),
        (SinkResponse(status=500), 99, 0, 60.0),
        (SinkResponse(status=503, retry_after=120.0), 0, 0, 120.0),
        (SinkResponse(status=404), 99, 0, 60.0),
        (SinkResponse(status=422), 99, 0, 0.5),
        (SinkResponse(status=422), 99, 1, 1.0),
    ],
)
def test_pauses_double_up_to_the_longest(answer, tries, refusals, seconds):
    assert pause_seconds(RelaySettings(), answer, tries=tries, refusals=refusals) == seconds


@pytest.mark.parametrize(
    ("answer", "ours", "refusals", "event_at", "since", "given"),
    [
        (SinkResponse(status=500), True, 0, 0.0, 0.0, False),  # the first failure
        (SinkResponse(status=500), True, 0, 0.0, 901.0, False),
        (SinkResponse(status=500), True, 0, 0.0, 900.0, True),
        # An event has its whole time, however long the receiver fails.
        (SinkResponse(status=500), True, 0, 950.0, 900.0, False),
        (SinkResponse(status=422), True, 1, 0.0, 0.0, False),
        (SinkResponse(status=422), True, 2, 0.0, 0.0, True),
        (SinkResponse(status=401), True, 1000, 0.0, 901.0, False),
        (SinkResponse(status=410), True, 1000, 0.0, 901.0, False),
        (SinkResponse(status=401), True, 0, 0.0, 900.0, True),
        (SinkResponse(status=404), False, 18, 0.0, 901.0, False),
        (SinkResponse(status=404), False, 19, 0.0, 901.0, True),
        (SinkResponse(status=404), False, 0, 0.0, 900.0, True),
        (SinkResponse(status=410), False, 0, 0.0, 0.0, True),
        (SinkResponse(kind="address", error="no"), True, 0, 0.0, 0.0, True),
    ],
)
def test_when_an_event_is_given_up(answer, ours, refusals, event_at, since, given):
    reason = given_up(
        answer,
        ours=ours,
        refusals=refusals,
        event_at=event_at,
        failing_since=since,
        now=1000.0,
        give_up_seconds=100.0,
    )
    assert bool(reason) is given


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
        *("224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1"),
        *("::ffff:127.0.0.1", "2002:7f00:1::", "64:ff9b::7f00:1", "::127.0.0.1", "not an address", ""),
    ],
)
def test_addresses_of_our_own_network_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_addresses_of_the_internet_are_public(address):
    assert is_public(address)


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "8.8.8.8", "::1", "fe80::1%eth0"),
        *("2130706433", "127.1", "127.0.1", "017700000001", "0177.0.0.1", "0", "00", "127.0.0.1."),
        *("0x7f000001", "0X7F.1", "0x7f.0.0.0x1", "0x", "127.0.0.01", "4294967297", "1.2.3.4.5", "1..1", "."),
    ],
)
def test_an_address_is_one_however_it_is_written(host):
    """Fails if only canonical forms count: the others were resolved, and some lead to loopback."""
    assert is_literal(host)


@pytest.mark.parametrize("host", ["2130706433", "127.1", "017700000001", "0", "0x7f000001", "8.8.2056"])
def test_an_address_that_is_not_written_as_one_is_not_public(host):
    assert not is_public(host)


@pytest.mark.parametrize(
    "host", ["example.com", "0x.example.com", "1.2.3.4.nip.io", "3com.com", "a", "0xg", "x7f", "fa.de", ""]
)
def test_a_name_is_no_address(host):
    assert not is_literal(host)


@pytest.mark.parametrize(
    "host",
    ["2130706433", "127.1", "017700000001", "0", "0x7f000001", "0x7f.1", "127.0.0.1", "[::1]"],
)
async def test_a_guarded_call_goes_to_no_address_of_our_own_however_it_is_written(host, monkeypatch):
    """Older releases of aiohttp hand such a host to the system as it is."""
    called: list[str] = []

    async def connect(*_: object, **__: object) -> None:
        called.append(host)
        raise OSError("nobody is to be called")

    monkeypatch.setattr("aiohttp.TCPConnector.connect", connect)
    async with Poster(RelaySettings()) as poster:
        answer = await poster.post(
            SinkRequest(url=f"http://{host}:9/x", body=b"{}", headers={}, guarded=True)
        )
    assert (answer.kind, called) == ("address", [])
    assert "private address" in answer.error


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST.", "api.localhost", "receiver", "receiver.", "receiver.shop.svc"),
        *(
            "receiver.shop.svc.cluster.local",
            "Receiver.Shop.SVC.",
            "printer.local",
            "metadata.google.internal",
        ),
        *("nas.lan", "nas.home.arpa", "10.0.0.1", "[::1]", "[fd00::1]", "127.1"),
    ],
)
def test_a_name_that_only_a_private_network_has_leads_inside(host):
    """Fails if only addresses count: the run was accepted, and the relay gave all its events up at once."""
    assert leads_inside(f"http://{host}/hook")
    assert leads_inside(f"https://user:secret@{host}:8443")


@pytest.mark.parametrize(
    "host",
    [
        *(
            "example.com",
            "example.com.",
            "hooks.internal.example.com",
            "svc.example",
            "mylocal.dev",
            "x.arpa",
        ),
        *("local.example.org", "home.arpa.example.net", "8.8.8.8", "[2606:4700::1111]"),
    ],
)
def test_a_name_of_the_public_dns_leads_outside(host):
    assert not leads_inside(f"http://{host}:8080/hook")


def test_a_url_without_a_host_leads_nowhere():
    assert not leads_inside("http://:80/") and not leads_inside("http://[::1")


def test_event_ids_are_ordered_by_number():
    assert order("9-10") > order("9-9")
    assert order("10-0") > order("9-99")
    assert order("7") == (7, 0)


def test_a_header_is_only_what_can_be_one():
    odd = RunFacts(
        run_id="r", queue="q", client_id="a\r\nb: c", trace={"traceparent": "x\r\ny", "tracestate": "ok"}
    )
    assert trace_headers(odd) == {"tracestate": "ok"}
    settings = type("S", (), {"url": "http://x", "secret": "s"})()
    assert "x-client-id" not in EventApi(settings).request(odd, EVENT, 1, "").headers


def test_a_message_that_nobody_can_read_says_nothing():
    for message in (
        b"",
        b"\xff",
        b"[]",
        b"7",
        b'{"webhook": 7, "push": [], "trace": {"a": 1}}',
        b"[" * 100_000,
    ):
        facts, addresses = read_run_facts(message, run_id="r", queue="q", agent="a", thread_id="", tenant="")
        assert (facts.trace, facts.logger_context, addresses.webhook, addresses.push) == ({}, {}, "", "")


def test_a_push_config_that_nobody_can_read_has_no_url():
    assert PushSink().request(RUN, EVENT, 1, "{nonsense").url == ""


def test_push_credentials_become_an_authorization():
    config = '{"url":"http://x","authentication":{"schemes":["Bearer"],"credentials":"abc"}}'
    assert PushSink().request(RUN, EVENT, 1, config).headers["authorization"] == "Bearer abc"


def test_without_a_secret_webhooks_have_no_signature():
    assert "webhook-signature" not in Webhook("").request(RUN, EVENT, 1, "http://x").headers


def test_a_secret_that_is_not_base64_stops_the_start():
    with pytest.raises(ConfigError, match="webhook_secret"):
        Webhook("whsec_***")


@pytest.mark.parametrize(
    ("secrets", "sound"),
    [
        ("", True),
        ("whsec_c2VjcmV0", True),
        ("c2VjcmV0", True),
        ("whsec_YQ==", True),
        ("whsec_YWI=", True),
        (" whsec_c2VjcmV0  whsec_YWI= ", True),
        ("abc", False),
        ("whsec_", False),
        ("whsec_x", False),
        ("whsec_YQ=", False),
        ("whsec_YQ===", False),
        ("whsec_YQ==YQ==", False),
        ("whsec_c2Vj cmV", False),
        ("whsec_c2V-", False),
    ],
)
def test_the_settings_refuse_the_secrets_that_webhooks_can_not_sign_with(tmp_path, secrets, sound):
    """What ``config check`` lets pass is what the relay starts with."""
    file = tmp_path / "holdfast.yaml"
    file.write_text(f'relay: {{webhook_secret: "{secrets}"}}')
    if sound:
        assert Webhook(load(file, {}).settings.relay.webhook_secret)
        return
    with pytest.raises(ConfigError, match=r"relay\.webhook_secret.*whsec_ and a key in base64"):
        load(file, {})
    with pytest.raises(ConfigError):
        Webhook(secrets)


def test_a_crowded_receiver_keeps_deliveries_away_longer_the_more_there_are():
    settings = RelaySettings(concurrency=8)
    one = Destinations(settings).of("http://host:1/a", ours=False)
    pauses = [one.pause_when_full(settings) for _ in range(1000)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 1
    assert pauses[-1] == settings.retry_most_seconds


def test_receivers_are_told_apart_by_host_and_port():
    receivers = Destinations(RelaySettings(concurrency=8))
    assert receivers.of("http://host:1/a", ours=False) is receivers.of("http://host:1/b?c", ours=False)
    assert receivers.of("http://host:1/a", ours=False) is not receivers.of("http://host:2/a", ours=False)
    assert receivers.of("http://host:1/a", ours=False).most == 2
    receivers.of("http://[nonsense", ours=False)


def ask(receiver, answer, times=1):
    """Have a receiver give an answer, as the sender sees it."""
    for _ in range(times):
        with contextlib.suppress(ReceiverFailed), receiver.breaker.guard():
            if receiver.has_failed(answer):
                raise ReceiverFailed
        receiver.report(answer)


def test_one_run_whose_events_are_rejected_does_not_open_the_breaker_for_those_that_are_taken():
    receiver = Destinations(RelaySettings(breaker_failures=5)).of("http://host:1/a", ours=True)
    for _ in range(20):
        ask(receiver, SinkResponse(status=404), 4)
        ask(receiver, SinkResponse(status=204))
    assert receiver.breaker.state is BreakerState.CLOSED
    ask(receiver, SinkResponse(status=404), 4)
    assert receiver.breaker.state is BreakerState.CLOSED
    ask(receiver, SinkResponse(status=404))
    assert receiver.breaker.state is BreakerState.OPEN
    receiver.breaker.end_cooldown()
    ask(receiver, SinkResponse(status=403))
    assert receiver.breaker.state is BreakerState.OPEN, "a rejection is no recovery"
    receiver.breaker.end_cooldown()
    ask(receiver, SinkResponse(status=204))
    assert receiver.breaker.state is BreakerState.CLOSED


def test_a_webhook_on_the_event_apis_host_is_another_receiver():
    receivers = Destinations(RelaySettings(concurrency=8, breaker_failures=5))
    webhook, ours = (receivers.of("http://host:1/a", ours=ours) for ours in (False, True))
    assert (webhook.most, ours.most) == (2, 8)
    ask(webhook, SinkResponse(status=503), 5)
    assert (webhook.breaker.state, ours.breaker.state) == (BreakerState.OPEN, BreakerState.CLOSED)


def test_webhooks_that_reject_events_do_not_make_their_host_unavailable(monkeypatch):
    log = Mock()
    monkeypatch.setattr(destinations, "_log", log)
    webhook = Destinations(RelaySettings(breaker_failures=5)).of("http://host:1/a", ours=False)
    ask(webhook, SinkResponse(status=404), 20)
    ask(webhook, SinkResponse(status=500), 20)
    assert (webhook.breaker.state, log.mock_calls) == (BreakerState.CLOSED, [])
    ask(webhook, SinkResponse(kind="timeout"), 5)
    assert [call.args[0] for call in log.warning.call_args_list] == ["receiver unavailable"]
