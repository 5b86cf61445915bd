"""Undelivered events are delivered again when somebody asks: in order, once, by the relays, whatever they do."""

from __future__ import annotations

import json

import pytest

from holdfast.events.relay.outbox import Outbox
from holdfast.events.relay.undelivered import Undelivered, served_sinks
from holdfast.redis.members import Members
from tests.support.events.event_receiver import Receiver
from tests.support.events.relays import Outside
from tests.support.waiting import until


@pytest.fixture
async def receiver():
    async with Receiver() as receiver:
        yield receiver


@pytest.fixture
async def outside(redis, redis_settings, receiver):
    async with Outside(redis_settings, receiver.url) as outside:
        yield outside


def undelivered_of(outside: Outside) -> Undelivered:
    return Undelivered(outside.keys, outside.redis)


async def give_up(outside: Outside, receiver: Receiver, run: str, *ids: str, **message: object) -> None:
    """Have the receiver refuse these events of a run that says five."""
    receiver.behave = lambda path, body: 422 if json.loads(body)["id"] in ids else receiver.status
    await outside.run(run, **message)
    await outside.say(run, "submitted", "started", "thinking", "chunk", "succeeded", data={"n": 1})
    await outside.emptied()
    assert [f"{each['run_id']}/{each['sequence']}" for each in await outside.undelivered()] == list(ids)
    receiver.behave = lambda path, body: receiver.status
    receiver.got.clear()


async def test_what_was_given_up_is_delivered_again_in_order_and_leaves_the_list(outside, receiver):
    running = outside.relay()
    await give_up(outside, receiver, "a", "a/2", "a/3", "a/5", client_id="acme")
    result = await undelivered_of(outside).redeliver(run_id="a")
    assert (result.queued, result.refused) == (3, {})
    await outside.emptied()
    assert receiver.ids("a") == ["a/2", "a/3", "a/5"]
    assert await outside.undelivered() == []
    again = receiver.taken[0]
    assert again.headers["x-client-id"] == "acme"
    assert (again.event["type"], again.event["data"]["payload"]) == ("holdfast.run.started", {"n": 1})
    assert running.count("relay_delivered_total", queue="agent-queue", sink="eventapi") == 5


async def test_asking_twice_delivers_once(outside, receiver):
    relay = outside.relay()
    await give_up(outside, receiver, "a", "a/1", "a/2")
    await relay.stop()
    undelivered = undelivered_of(outside)
    for _ in range(3):
        assert (await undelivered.redeliver()).queued == 2
    assert [event.redelivering for event in (await undelivered.list()).events] == [True, True]
    outside.relay()
    await outside.emptied()
    assert receiver.ids("a") == ["a/1", "a/2"]
    assert (await undelivered.redeliver()).queued == 0


async def test_events_that_come_meanwhile_wait_for_those_that_are_delivered_again(outside, receiver):
    """Fails if redelivery goes beside the run's own events: the receiver would get 6 before 4."""
    relay = outside.relay()
    await give_up(outside, receiver, "a", "a/4", "a/5")
    await relay.stop()
    await undelivered_of(outside).redeliver(sink="eventapi")
    await outside.say("a", "replayed", "succeeded")
    outside.relay()
    await outside.emptied()
    assert receiver.ids("a") == ["a/4", "a/5", "a/6", "a/7"]


async def test_a_run_that_goes_on_and_on_does_not_hold_up_what_is_delivered_again(outside, receiver):
    """An entry that never runs out of events is released after a page, for events that are older."""
    relay = outside.relay()
    await give_up(outside, receiver, "a", "a/1")
    await relay.stop()
    await outside.say("a", *["chunk"] * 100)
    outbox = Outbox(outside.keys, outside.redis, owner="other", ttl_seconds=60, event_api=True)
    await outbox.fan_out()
    (entry,) = (await outbox.claim("eventapi", 1)).entries
    await undelivered_of(outside).redeliver()
    assert (await outbox.claim("eventapi", 1)).entries == [], "the entry is still held by one"
    for number, event in enumerate(entry.pending(), 1):
        assert event.last is (number == 20)
        assert await outbox.advance(entry, event) is not event.last
        if event.last:
            break
    (entry,) = (await outbox.claim("eventapi", 1)).entries
    assert [event.sequence for event in entry.redeliveries] == [1]
    assert not await outbox.advance(entry, entry.redeliveries[0])
    (entry,) = (await outbox.claim("eventapi", 1)).entries
    assert entry.sequence == 25
    await outbox.release(entry)
    await outbox.aclose()


async def test_a_stale_holder_moves_nothing(outside, receiver):
    relay = outside.relay()
    await give_up(outside, receiver, "a", "a/1")
    await relay.stop()
    await undelivered_of(outside).redeliver()
    stale = Outbox(outside.keys, outside.redis, owner="stale", ttl_seconds=60, event_api=True)
    (entry,) = (await stale.claim("eventapi", 1)).entries
    await outside.redis.zadd(outside.keys.outbox_entries("eventapi"), {"a": 0})  # its lease has ended
    holder = Outbox(outside.keys, outside.redis, owner="holder", ttl_seconds=60, event_api=True)
    (held,) = (await holder.claim("eventapi", 1)).entries
    assert not await stale.advance(entry, entry.redeliveries[0])
    assert not await stale.advance(entry, entry.redeliveries[0], reason="refused")
    assert len(await outside.undelivered()) == 1, "its receiver has not taken it"
    assert not await holder.advance(held, held.redeliveries[0])
    assert await outside.undelivered() == []
    for outbox in (stale, holder):
        await outbox.aclose()


async def test_a_run_that_has_left_is_told_of_as_before(outside, receiver):
    """Runs leave soon after their last event was given up: what the request needs is kept with the event."""
    outside.relay()
    hook = f"http://127.0.0.1:{receiver.port}/hook"
    await give_up(outside, receiver, "a", client_id="acme", tenant="t1")
    receiver.status = 422
    await outside.run("b", client_id="acme", tenant="t1", webhook=hook)
    await outside.say("b", "submitted", "succeeded")
    await outside.emptied()
    assert len(await outside.undelivered()) == 4
    await outside.redis.delete(outside.keys.run("b"), outside.keys.feed("b"))
    receiver.status, receiver.got[:] = 204, []
    page = await undelivered_of(outside).list(tenant="t1")
    assert {event.tenant for event in page.events} == {"t1"}
    assert len(page.events) == 4
    assert (await undelivered_of(outside).redeliver(run_id="b")).queued == 4
    await outside.emptied()
    assert receiver.ids("b", path="/events") == receiver.ids("b", path="/hook") == ["b/1", "b/2"]
    assert {got.event["data"]["client_id"] for got in receiver.taken} == {"acme"}
    assert await outside.undelivered() == []
    assert await outside.redis.exists(f"{outside.keys.outbox}:departed") == 0


async def test_what_is_refused_again_is_noted_again_with_the_new_reason(outside, receiver):
    outside.relay()
    await give_up(outside, receiver, "a", "a/2", "a/3")
    receiver.behave = lambda path, body: 400 if json.loads(body)["id"] == "a/2" else 204
    await undelivered_of(outside).redeliver(run_id="a")
    await outside.emptied()
    assert receiver.ids("a") == ["a/3"]
    (left,) = await outside.undelivered()
    assert (left["sequence"], left["error"]) == ("2", "the receiver answered 400 (3 times)")
    receiver.behave = lambda path, body: 204
    assert (await undelivered_of(outside).redeliver(run_id="a")).queued == 1
    await outside.emptied()
    assert receiver.ids("a") == ["a/3", "a/2"]


async def test_a_receiver_that_is_down_is_waited_for_again(outside, receiver):
    outside.relay()
    await give_up(outside, receiver, "a", "a/1", "a/2")
    receiver.status = 503
    await undelivered_of(outside).redeliver()
    await until(lambda: len(receiver.got) >= 3)
    receiver.status = 204
    await outside.emptied()
    assert receiver.ids("a") == ["a/1", "a/2"]


async def test_lists_are_filtered_and_go_on_where_they_ended(outside, receiver):
    outside.relay()
    for run in ("a", "b"):
        receiver.behave = lambda path, body: 422
        await outside.run(run)
        await outside.say(run, "submitted", "started", "succeeded")
    await outside.emptied()
    undelivered = undelivered_of(outside)
    first = await undelivered.list(limit=2, run_id="a")
    rest = await undelivered.list(limit=2, run_id="a", cursor=first.cursor)
    assert [event.sequence for event in first.events + rest.events] == [3, 2, 1]
    assert rest.cursor == ""
    assert {event.run_id for event in first.events + rest.events} == {"a"}
    assert (await undelivered.list(sink="webhook")).events == []
    assert (await undelivered.list(tenant="other")).events == []
    assert len((await undelivered.list()).events) == 6


async def test_a_note_that_a_run_left_is_no_event_to_deliver(outside, receiver):
    await outside.run("a")
    await outside.say("a", "submitted")
    await outside.redis.delete(outside.keys.run("a"), outside.keys.feed("a"))
    outside.relay()
    await outside.emptied()
    result = await undelivered_of(outside).redeliver()
    assert (result.queued, result.refused) == (0, {})


async def test_an_event_of_which_nothing_was_kept_is_refused_once_its_run_has_left(outside):
    entry = {"run_id": "a", "event_id": "1-1", "sequence": "1", "type": "x", "sink": "eventapi", "error": "e"}
    await outside.redis.xadd(outside.keys.undelivered, {**entry, "data": "1"})
    result = await undelivered_of(outside).redeliver()
    assert result.queued == 0
    assert "event 1 of run a" in next(iter(result.refused.values()))


async def test_an_event_for_a_sink_that_no_relay_serves_is_refused(redis, redis_settings, receiver):
    """Fails if it is queued: it would wait for ever, and its run with it."""
    members = Members(prefix="", heartbeat_seconds=30.0)
    async with Outside(redis_settings) as outside:
        undelivered = undelivered_of(outside)
        await outside.run("a", webhook=receiver.url)
        for sink in ("eventapi", "webhook"):
            fields = {"run_id": "a", "event_id": "1-1", "sequence": "1", "type": "said", "sink": sink}
            await redis.xadd(
                outside.keys.undelivered, {**fields, "error": "no", "data": "1", "address": receiver.url}
            )
        assert await served_sinks(members, redis, "agent-queue") == frozenset()
        outside.relay()
        served = await until(lambda: served_sinks(members, redis, "agent-queue"))
        assert served == {"webhook", "push"}
        result = await undelivered.redeliver(served=served)
        assert result.queued == 1
        (problem,) = result.refused.values()
        assert "no relay serves sink eventapi" in problem
        await until(outside.undelivered, lambda left: [each["sink"] for each in left] == ["eventapi"])
        assert await redis.zcard(outside.keys.outbox_entries("eventapi")) == 0


async def test_a_claim_passes_over_a_bounded_number_of_events_that_are_not_kept_any_more(outside, receiver):
    """Fails if one claim passes over all of them: no other command is executed meanwhile."""
    await outside.run("a")
    await outside.say("a", "submitted")
    outbox = Outbox(outside.keys, outside.redis, owner="one", ttl_seconds=60, event_api=True)
    await outbox.fan_out()
    await outbox.route([("a", "", "")])
    await outbox.fan_out()
    waiting = outside.keys.redeliveries("eventapi", "a")
    await outside.redis.zadd(waiting, {f"{number}-1": number for number in range(1, 5001)})
    claimed = await outbox.claim("eventapi", 10)
    assert (claimed.looked, claimed.entries) == (1, []), "the entry waits for the next claim"
    assert 0 < await outside.redis.zcard(waiting) < 5000
    entries = (await until(lambda: outbox.claim("eventapi", 10), lambda claimed: claimed.entries)).entries
    assert [event.type for event in entries[0].events] == ["submitted"]
    await outbox.release(entries[0])
    await outbox.aclose()
