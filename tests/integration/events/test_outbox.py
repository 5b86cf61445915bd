"""The outbox under random histories: appends, claims, failures, crashes, and zombies that still write."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.config import RedisSettings
from holdfast.events.relay import outbox as outbox_module
from holdfast.events.relay.outbox import Outbox, OutboxEntry, PendingEvent
from holdfast.redis.client import connect
from holdfast.redis.keys import QueueKeys
from holdfast.redis.scripts import Script
from tests.support.events.event_receiver import in_order

KEYS = QueueKeys.of("agent-queue")
OWNERS = ("ada", "bob", "eve")
RUNS = ("a", "b")
SINKS = ("eventapi", "webhook")

ACTIONS = st.one_of(
    st.tuples(st.just("append"), st.sampled_from(RUNS), st.integers(1, 3)),
    st.tuples(st.just("claim"), st.sampled_from(OWNERS), st.integers(0, 3)),
    st.tuples(
        st.sampled_from(("deliver", "move", "deliver", "move", "fail", "give_up", "renew")),
        st.sampled_from(OWNERS),
        st.integers(0, 3),
    ),
    st.tuples(st.sampled_from(("crash", "time passes")), st.sampled_from(OWNERS), st.just(0)),
)


@dataclasses.dataclass
class Held:
    """An entry as its holder knows it; a zombie's time is over, so it sends nothing more, but may still write."""

    entry: OutboxEntry
    at: int = 0
    sent: bool = False
    zombie: bool = False


class World:
    """Owners that claim and deliver as deliveries do, step by step, and what the receivers saw."""

    def __init__(self, redis) -> None:
        self.redis = redis
        self.outboxes = {
            name: Outbox(KEYS, redis, owner=name, ttl_seconds=60, event_api=True)
            for name in (*OWNERS, "last")
        }
        self.held: dict[str, list[Held]] = {name: [] for name in self.outboxes}
        self.seen: dict[str, list[str]] = {sink: [] for sink in SINKS}
        self.said = dict.fromkeys(RUNS, 0)
        self.furthest: dict[tuple[str, str], int] = {}

    async def prepare(self) -> None:
        await self.redis.execute_command("FLUSHALL", "SYNC")
        for run in RUNS:
            fields = {"status": "running", "message": "{}", "webhook": "http://hook", "outbox": KEYS.outbox}
            await self.redis.hset(KEYS.run(run), mapping=fields)

    async def append(self, run: str, count: int) -> None:
        for _ in range(count):
            await self.redis.zadd(KEYS.outbox, {run: 0}, nx=True)
            await self.redis.xadd(KEYS.feed(run), {"type": "chunk", "data": "1"})
            self.said[run] += 1

    async def claim(self, owner: str, number: int) -> None:
        await self.outboxes[owner].fan_out()
        sink = SINKS[number % len(SINKS)]
        for entry in (await self.outboxes[owner].claim(sink, 1 + number // len(SINKS))).entries:
            for others in self.held.values():
                for other in others:
                    if other.entry.key == entry.key:
                        assert other.zombie, "two hold the same entry"
            self.held[owner].append(Held(entry))

    def pick(self, owner: str, number: int) -> Held | None:
        return self.held[owner][number % len(self.held[owner])] if self.held[owner] else None

    async def deliver(self, owner: str, number: int) -> None:
        held = self.pick(owner, number)
        if held and not held.sent and not held.zombie:
            self.seen[held.entry.sink].append(f"{held.entry.run_id}/{held.entry.sequence + 1}")
            held.sent = True

    async def move(self, owner: str, number: int, reason: str = "") -> None:
        held = self.pick(owner, number)
        if held is None or not (held.sent or reason):
            return
        entry, events = held.entry, held.entry.events
        last = held.at + 1 == len(events)
        event = PendingEvent(event=events[held.at], sequence=entry.sequence + 1, address="", last=last)
        ours = await self.outboxes[owner].advance(entry, event, reason=reason)
        held.sent = False
        held.at = 0 if last else held.at + 1
        if not ours:
            self.held[owner].remove(held)

    async def give_up(self, owner: str, number: int) -> None:
        held = self.pick(owner, number)
        if held and not held.sent and not held.zombie:
            self.seen[held.entry.sink].append(f"{held.entry.run_id}/{held.entry.sequence + 1}")
            await self.move(owner, number, reason="no")

    async def fail(self, owner: str, number: int) -> None:
        held = self.pick(owner, number)
        if held:
            await self.outboxes[owner].release(held.entry, 0, counts_as="failed")
            self.held[owner].remove(held)

    async def renew(self, owner: str, _number: int) -> None:
        for held in list(self.held[owner]):
            (kept,) = await self.outboxes[owner].renew(
                self.redis, [(held.entry.run_id, held.entry.sink, held.entry.fence)]
            )
            held.zombie = not kept
            if not kept:
                self.held[owner].remove(held)

    async def crash(self, owner: str, _number: int) -> None:
        self.held[owner].clear()

    async def time_passes(self, _owner: str = "", _number: int = 0) -> None:
        for sink in SINKS:
            for run in await self.redis.zrange(KEYS.outbox_entries(sink), 0, -1):
                await self.redis.zadd(KEYS.outbox_entries(sink), {run: 0})
        for helds in self.held.values():
            for held in helds:
                held.zombie = True

    async def do(self, action: str, *args) -> None:
        await getattr(self, action.replace(" ", "_"))(*args)
        for run in RUNS:
            states = await self.redis.hmget(KEYS.run(run), *(f"relay:{sink}" for sink in SINKS))
            for sink, packed in zip(SINKS, states, strict=True):
                at = int(packed.split()[3]) if packed else 0
                assert at >= self.furthest.get((run, sink), 0), "a cursor went back"
                self.furthest[run, sink] = at

    async def finish(self) -> None:
        for _ in range(200):
            await self.do("time passes")
            await self.do("claim", "last", 10)
            await self.do("claim", "last", 11)
            while self.held["last"]:
                await self.do("deliver", "last", 0)
                await self.do("move", "last", 0)
            if not sum([await self.redis.zcard(KEYS.outbox_entries(sink)) for sink in SINKS]):
                return
        raise AssertionError("the outbox is never emptied")


def play(url: str, actions) -> None:
    async def playing() -> None:
        redis = connect(RedisSettings(url=url))
        try:
            world = World(redis)
            await world.prepare()
            for action in actions:
                await world.do(*action)
            await world.finish()
            for seen in world.seen.values():
                assert in_order(seen), seen
            for run in RUNS:
                for sink in SINKS:
                    whole = [f"{run}/{number}" for number in range(1, world.said[run] + 1)]
                    of_run = [each for each in world.seen[sink] if each.startswith(f"{run}/")]
                    assert list(dict.fromkeys(of_run)) == whole
        finally:
            await redis.aclose()

    asyncio.run(playing())


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(actions=st.lists(ACTIONS, max_size=40))
def test_every_event_is_delivered_in_order_whatever_relays_do(redis_url, actions):
    play(redis_url, actions)


@pytest.mark.parametrize("how", ["released", "delivered"])
async def test_an_entry_that_its_holder_released_is_not_lost_before_another_has_it(redis, how):
    """Its renewal may come between the script that ends the hold and the reply: that is no lost lease."""
    world = World(redis)
    await world.prepare()
    await world.append("a", 1)
    await world.claim("ada", 0)
    (held,) = world.held["ada"]
    renewal = [(held.entry.run_id, held.entry.sink, held.entry.fence)]
    if how == "released":
        await world.fail("ada", 0)
    else:
        await world.deliver("ada", 0)
        await world.move("ada", 0)
        await world.append("a", 1)
    assert await world.outboxes["ada"].renew(redis, renewal) == [True]
    await world.claim("bob", 0)
    assert await world.outboxes["ada"].renew(redis, renewal) == [False]
    assert len(world.held["bob"]) == 1, "the renewal has left it free"
    await world.finish()


STALE = "if entry.fence ~= fence or (entry.owner ~= owner and entry.owner ~= '-') then return 'stale' end"
TAKEN_OVER = [
    ("append", "a", 1),
    ("claim", "ada", 0),
    ("deliver", "ada", 0),
    ("time passes", "ada", 0),
    ("claim", "bob", 0),
]
NEWS = [("append", "a", 1), ("claim", "eve", 2), ("deliver", "bob", 0), ("move", "bob", 0)]
GUARDS = [
    ("_ADVANCE", STALE, [*TAKEN_OVER, ("move", "ada", 0), *NEWS]),
    ("_RELEASE", STALE, [*TAKEN_OVER, ("fail", "ada", 0), *NEWS]),
    ("_FAN_OUT", "'NX', 0, run", [*TAKEN_OVER, *NEWS]),
]


@pytest.mark.parametrize(("script", "guard", "history"), GUARDS)
def test_without_its_guard_a_zombie_does_harm(redis_url, monkeypatch, script, guard, history):
    """The history is well; then the mistake is put back, and the entry has two holders or loses its order."""
    play(redis_url, history)
    ours = getattr(outbox_module, script)
    assert guard in ours.source
    broken = Script(
        ours.name,
        ours.source.replace(guard, "0, run" if "NX" in guard else "").replace(
            "if entry.owner == '-'", "if false"
        ),
    )
    monkeypatch.setattr(outbox_module, script, broken)
    with pytest.raises(AssertionError):
        play(redis_url, history)
