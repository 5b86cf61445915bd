"""Two paths, one result: plain runs are claimed and settled together, all others one by one; both write the same bytes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.redis.scripts import Script
from holdfast.runs.execution import claim, settle
from holdfast.runs.execution.settlement import Settlement
from holdfast.runs.run import Priority, Status, Submission
from tests.support.runs.manual_worker import Hand, open_queue

TIME = re.compile(rb"\b\d{10}(\.\d+)?\b|\d{13,16}(-\d+)?")

RUN = st.fixed_dictionaries(
    {"agent": st.sampled_from(["echo", "limited", "für"]), "input": st.one_of(st.integers(), st.text())},
    optional={
        "priority": st.sampled_from(list(Priority)),
        "thread_id": st.sampled_from(["t", "u"]),
        "tenant": st.just("acme"),
    },
)
END = st.tuples(
    st.sampled_from([Status.SUCCEEDED] * 3 + [Status.FAILED, Status.TIMED_OUT]),
    st.sampled_from([b"1", b'{"a":[1,2]}', b'"\xc3\xbc"']),
    st.booleans(),
)


def without(script: Script, shortcut: str, instead: str) -> Script:
    """The same script with its plain path taken by no run."""
    assert script.source.count(shortcut) == 1
    return Script(script.name, script.source.replace(shortcut, instead))


ONE_BY_ONE = {
    claim: ("_CLAIM", "if have and is_plain(have, lane, entry, fields[4]) then", "if false then"),
    settle: ("_SETTLE", "local plain = lane and status == 'succeeded'", "local plain = false"),
}


async def contents(redis: Any) -> dict[bytes, Any]:
    """Everything in the database, with every time replaced: the two histories are not of one moment."""
    found: dict[bytes, Any] = {}
    for key in await redis.keys("*"):
        match await redis.type(key):
            case b"hash":
                value: Any = await redis.hgetall(key)
            case b"stream":
                value = [fields for _, fields in await redis.xrange(key)]
            case b"zset":
                value = sorted(await redis.zrange(key, 0, -1))
            case b"set":
                value = sorted(await redis.smembers(key))
            case b"list":
                value = await redis.lrange(key, 0, -1)
            case _:
                value = await redis.get(key)
        found[key] = TIME.sub(b"TIME", repr(value).encode())
    return found


async def history(redis: Any, runs: list[dict[str, Any]], ends: list[tuple[Status, bytes, bool]]) -> Any:
    """Submit runs, claim them in one call, settle them in one call: the replies, and what is left in Redis."""
    await redis.flushdb()
    queue = await open_queue(redis, tenant_concurrency=2)
    hand = await Hand(queue, "w", {"limited": 1}).join()
    await queue.submit_many([Submission(run_id=f"r{n}", **run) for n, run in enumerate(runs)])
    claimed = await hand.claim(len(runs))
    between = await contents(redis)
    settlements = [
        Settlement(
            hand.lease(run),
            status,
            "result" if status is Status.SUCCEEDED else "error",
            value,
            value if has_data else b"",
            "" if status is Status.SUCCEEDED else "server",
        )
        for run, (status, value, has_data) in zip(claimed, ends, strict=False)
    ]
    verdicts = await hand._settler._settle(settlements) if settlements else []
    replies = [(run.run_id, run.fence, run.attempt, run.agent, run.lane, run.message) for run in claimed]
    return replies, between, verdicts, await contents(redis)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(runs=st.lists(RUN, min_size=1, max_size=8), ends=st.lists(END, min_size=8, max_size=8))
async def test_plain_runs_are_claimed_and_settled_as_all_others_are(redis, runs, ends):
    batched = await history(redis, runs, ends)
    with pytest.MonkeyPatch.context() as patch:
        for module, (name, shortcut, instead) in ONE_BY_ONE.items():
            patch.setattr(module, name, without(getattr(module, name), shortcut, instead))
        assert await history(redis, runs, ends) == batched
