"""The checkpointer is LangGraph's contract and our fence: it answers as LangGraph's own one in memory does."""

from __future__ import annotations

import random
import time

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.memory import InMemorySaver

from holdfast.agents.frameworks.langgraph_saver import FencedSaver
from holdfast.errors import LeaseLost


async def saver_of(store, run_id="run", thread_id="t", fence=1, owner="w", **other) -> FencedSaver:
    memory = store.memory(run_id=run_id, thread_id=thread_id, fence=fence, owner=owner, **other)
    return FencedSaver(await memory.checkpoints())


@pytest.fixture
async def saver(any_store) -> FencedSaver:
    return await saver_of(any_store)


def at(thread="t", ns="", checkpoint_id=None):
    where = {"thread_id": thread, "checkpoint_ns": ns}
    return {"configurable": where if checkpoint_id is None else {**where, "checkpoint_id": checkpoint_id}}


def checkpoint(**values):
    made = empty_checkpoint()
    made["id"] = str(uuid6(clock_seq=-2))
    made["channel_values"] = values
    made["channel_versions"] = dict.fromkeys(values, made["id"])
    return made


async def put(saver, parent, made, **metadata):
    return await saver.aput(parent, made, {"source": "loop", "step": 1, **metadata}, made["channel_versions"])


async def ids(saver, config, **options) -> list[str]:
    return [found.checkpoint["id"] async for found in saver.alist(config, **options)]


async def test_it_answers_as_the_one_in_memory_does(saver):
    """The same random history in both, then every question that LangGraph asks of either."""
    chance = random.Random(11)
    memory = InMemorySaver()
    heads: dict[tuple[str, str], dict] = {}
    made: list[dict] = []
    for step in range(60):
        key = chance.choice([("t", ""), ("t", "sub:1"), ("u", "")])
        parent = heads.get(key, at(*key))
        if key in heads and chance.random() < 0.6:
            writes = chance.choice(
                [
                    [("a", step), ("b", [step])],
                    [("__error__", "once"), ("a", {"deep": step})],
                    [("__interrupt__", step)],
                    [("__resume__", [step])],
                ]
            )
            task, path = chance.choice([("task-1", "~2"), ("task-2", "~1"), ("task-3", "")])
            for each in (saver, memory):
                await each.aput_writes(parent, writes, task, path)
            continue
        new = checkpoint(a=step, b={"x": [step, None, "ü"]}, c=b"\x00bytes")
        for each in (saver, memory):
            heads[key] = await put(each, parent, new, odd=step % 2, step=step)
        made.append(heads[key])
    assert len(made) > 10
    questions = [at("t"), at("u"), at("t", "sub:1"), at("nobody"), *made]
    for question in questions:
        ours, theirs = await saver.aget_tuple(question), await memory.aget_tuple(question)
        assert ours == theirs, question
    middle = chance.choice(made)
    for config in (None, at("t"), at("u"), {"configurable": {"thread_id": "t"}}, middle):
        for options in ({}, {"limit": 3}, {"filter": {"odd": 1}}, {"filter": {"odd": 0}, "limit": 2}):
            for before in (None, middle):
                ours = [found async for found in saver.alist(config, before=before, **options)]
                theirs = [found async for found in memory.alist(config, before=before, **options)]
                if "limit" not in options or config not in (None, {"configurable": {"thread_id": "t"}}):
                    order = lambda found: found.checkpoint["id"]  # noqa: E731
                    assert sorted(ours, key=order) == sorted(theirs, key=order)
                newest_first = [found.checkpoint["id"] for found in ours]
                assert newest_first == sorted(newest_first, reverse=True)
    await saver.adelete_thread("t")
    assert await saver.aget_tuple(at("t")) is None
    assert await saver.aget_tuple(at("t", "sub:1")) is None
    assert await ids(saver, at("u")) != []


async def test_a_run_that_has_moved_on_writes_no_checkpoint(any_store):
    """A paused worker wakes up: whatever it tries, the thread is as its successor left it."""
    old = await saver_of(any_store, fence=1, owner="old")
    head = await put(old, at(), checkpoint(a=1))
    new = await saver_of(any_store, fence=2, owner="new")
    theirs = await put(new, head, checkpoint(a=2))
    for late in (
        put(old, head, checkpoint(a="late")),
        old.aput_writes(theirs, [("a", "late")], "task"),
        old.adelete_thread("t"),
        old.aprune(["t"]),
        old.finish("t"),
    ):
        with pytest.raises(LeaseLost):
            await late
    found = await new.aget_tuple(at())
    assert (found.checkpoint["channel_values"], found.pending_writes) == ({"a": 2}, [])
    assert len(await ids(new, at())) == 2


async def test_the_same_fence_of_another_owner_is_refused(any_store):
    """After a failover of Redis a fence may repeat."""
    first = await saver_of(any_store, owner="first")
    await put(first, at(), checkpoint(a=1))
    with pytest.raises(LeaseLost):
        await saver_of(any_store, owner="second")


async def test_after_a_run_the_thread_keeps_its_last_checkpoint_and_the_one_to_go_back_to(any_store):
    first = await saver_of(any_store, run_id="one")
    head = at()
    for number in range(4):
        head = await put(first, head, checkpoint(a=number))
        await first.aput_writes(head, [("a", number)], "task")
        await put(first, at(ns="sub:1"), checkpoint(a=number))
    await first.finish("t")
    assert await ids(first, at()) == [head["configurable"]["checkpoint_id"]]
    assert await ids(first, {"configurable": {"thread_id": "t"}}) == await ids(first, at())
    assert len((await first.aget_tuple(at())).pending_writes) == 1

    second = await saver_of(any_store, run_id="two")
    after = head
    for number in range(4):
        after = await put(second, after, checkpoint(a=f"two {number}"))
    await second.finish("t")
    kept = [each["configurable"]["checkpoint_id"] for each in (after, head)]
    assert await ids(second, at()) == kept
    assert (await second.began("t"), await first.began("t")) == (True, False)


async def test_a_run_that_is_taken_back_leaves_the_thread_where_it_was(any_store):
    first = await saver_of(any_store, run_id="one")
    head = await put(first, at(), checkpoint(a="kept"))
    second = await saver_of(any_store, run_id="two")
    after = await put(second, head, checkpoint(a="undone"))
    await second.aput_writes(after, [("a", 1)], "task")
    await second.aput_writes(head, [("a", 1)], "task")
    await second.finish("t")
    third = any_store.memory(run_id="three", thread_id="t", fence=1, owner="w")
    await third.rollback("two")
    saver = FencedSaver(await third.checkpoints())
    found = await saver.aget_tuple(at())
    assert (found.checkpoint["channel_values"], found.pending_writes) == ({"a": "kept"}, [])
    with pytest.raises(LeaseLost):
        await put(second, head, checkpoint(a="late"))


async def test_checkpoints_that_later_ones_need_are_not_pruned(any_store):
    """A channel kept as deltas is rebuilt from all checkpoints since its last snapshot."""
    saver = await saver_of(any_store)
    head = at()
    for number in range(3):
        head = await put(saver, head, checkpoint(a=number), counters_since_delta_snapshot={"d": [number, 1]})
    await saver.aprune(["t"])
    await saver.finish("t")
    assert len(await ids(saver, at())) == 3


async def test_threads_of_two_tenants_do_not_meet(any_store):
    ours = await saver_of(any_store, run_id="one", tenant="a")
    await put(ours, at(), checkpoint(a=1))
    theirs = await saver_of(any_store, run_id="two", tenant="b")
    assert await theirs.aget_tuple(at()) is None
    assert await ids(theirs, None) == []


async def test_pruning_by_langgraphs_own_names(saver):
    head = at()
    for number in range(3):
        head = await put(saver, head, checkpoint(a=number))
    await saver.aprune(["t"])
    assert await ids(saver, at()) == [head["configurable"]["checkpoint_id"]]
    await saver.aprune(["t"], strategy="delete")
    assert await ids(saver, at()) == []


async def test_silent_threads_and_forgotten_runs_lose_their_checkpoints(any_store):
    thread = await saver_of(any_store, run_id="one")
    await thread.aput_writes(await put(thread, at(), checkpoint(a=1)), [("a", 1)], "task")
    alone = await saver_of(any_store, run_id="two", thread_id="")
    await alone.aput_writes(await put(alone, at("two"), checkpoint(a=1)), [("a", 1)], "task")
    later = time.time() + 60
    sizes = await any_store.sizes()
    assert (sizes["checkpoints"], sizes["checkpoint_writes"]) == (2, 2)
    await any_store.prune(archived_before=0.0, steps_before=later, limit=100)
    assert await alone.aget_tuple(at("two")) is None
    assert await thread.aget_tuple(at()) is not None, "a thread outlives its runs"
    await any_store.prune(archived_before=0.0, steps_before=0.0, threads_before=time.time() - 60, limit=100)
    assert await thread.aget_tuple(at()) is not None, "it was used a moment ago"
    await any_store.prune(archived_before=0.0, steps_before=0.0, threads_before=later, limit=100)
    sizes = await any_store.sizes()
    assert (sizes["checkpoints"], sizes["checkpoint_writes"]) == (0, 0)
