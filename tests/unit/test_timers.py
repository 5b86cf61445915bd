"""One timer for many deadlines: it fires when the first is due, and goes on as long as it is asked to."""

from __future__ import annotations

import asyncio

from holdfast.agents.deadlines import Deadlines
from holdfast.leases.timers import SharedTimer
from tests.support.waiting import stays, until


async def test_it_checks_at_the_earliest_time_that_was_asked_for():
    loop, checked = asyncio.get_running_loop(), asyncio.Event()
    timer = SharedTimer(checked.set)
    timer.at(loop.time() + 3600)
    timer.at(loop.time() + 0.01)
    timer.at(loop.time() + 1800)
    await asyncio.wait_for(checked.wait(), 5)


async def test_a_later_deadline_is_asked_for_again():
    loop, times = asyncio.get_running_loop(), []

    def check() -> None:
        times.append(loop.time())
        if len(times) < 3:
            timer.at(loop.time() + 0.01)

    timer = SharedTimer(check)
    timer.at(loop.time())
    await until(lambda: len(times) >= 3)


async def test_a_closed_timer_checks_no_more_until_asked_again():
    loop, times = asyncio.get_running_loop(), []
    timer = SharedTimer(lambda: times.append(1))
    timer.at(loop.time() + 0.01)
    timer.close()
    timer.at(loop.time() + 0.02)
    await until(lambda: times)
    await stays(lambda: times == [1], seconds=0.05)


async def test_each_deadline_is_called_once_at_its_time_and_not_if_it_was_cleared():
    loop, called, deadlines = asyncio.get_running_loop(), [], Deadlines()
    calls = {number: (lambda number=number: called.append((number, loop.time()))) for number in range(5)}
    began = loop.time()
    for number, call in calls.items():
        deadlines.set(call, began + 0.03 * (5 - number))
    deadlines.clear(calls[1])
    await until(lambda: len(called) >= 4)
    # In no order: on a slow machine several are due at once.
    assert sorted(number for number, _ in called) == [0, 2, 3, 4]
    assert all(at >= began + 0.03 * (5 - number) for number, at in called)


async def test_a_deadline_that_fails_does_not_take_the_others_with_it():
    loop, called, deadlines = asyncio.get_running_loop(), [], Deadlines()
    problems = []
    loop.set_exception_handler(lambda _, context: problems.append(context["exception"]))

    def fail() -> None:
        raise ZeroDivisionError

    deadlines.set(fail, loop.time() + 0.01)
    deadlines.set(lambda: called.append(1), loop.time() + 0.01)
    deadlines.set(lambda: called.append(2), loop.time() + 0.05)
    await until(lambda: len(called) >= 2)
    assert [type(problem) for problem in problems] == [ZeroDivisionError]
