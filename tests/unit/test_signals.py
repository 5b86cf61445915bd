"""A command that is interrupted ends quietly, wherever the event loop is at that moment."""

from __future__ import annotations

import asyncio
import gc
import signal
import warnings
from typing import Any

import pytest

from holdfast.services.signals import run_until_interrupted


def test_an_interrupt_waits_for_the_callback_that_runs(caplog):
    """Fails with the handler of asyncio.run: it cancels a future that the callback is about to set."""
    seen = list[str]()

    async def work() -> None:
        future = asyncio.get_running_loop().create_future()

        def answer() -> None:
            assert not future.cancelled()
            signal.raise_signal(signal.SIGINT)
            future.set_result("answered")

        asyncio.get_running_loop().call_soon(answer)
        seen.append(await future)
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cancelled")

    with pytest.raises(KeyboardInterrupt):
        run_until_interrupted(work())
    assert seen == ["answered", "cancelled"]
    assert not caplog.records


def test_a_second_interrupt_does_not_wait():
    seen = list[str]()

    async def work() -> None:
        signal.raise_signal(signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            signal.raise_signal(signal.SIGINT)
            seen.append("went on")

    with pytest.raises(KeyboardInterrupt):
        run_until_interrupted(work())
    assert not seen


def test_an_interrupt_before_the_first_step_leaves_no_warning(monkeypatch):
    begun = list[str]()

    class Interrupted(asyncio.SelectorEventLoop):
        """Its process gets a SIGINT when the task exists and has not had its first step."""

        def run_until_complete(self, future: Any) -> Any:
            if not begun:
                begun.append("task")
                signal.raise_signal(signal.SIGINT)
            return super().run_until_complete(future)

    async def work() -> None:
        begun.append("work")

    monkeypatch.setattr(asyncio.events, "new_event_loop", Interrupted)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            run_until_interrupted(work())
        gc.collect()
    assert begun == ["task"]
    assert not caught


def test_an_interrupt_is_ignored_where_the_process_was_started_to_ignore_it():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def work() -> str:
        signal.raise_signal(signal.SIGINT)
        return await asyncio.sleep(0.01, "done")

    try:
        result = run_until_interrupted(work())
    except KeyboardInterrupt:
        result = "interrupted"
    finally:
        signal.signal(signal.SIGINT, before)
    assert result == "done"


def test_work_that_is_not_interrupted_returns_its_result_or_raises():
    async def fail() -> None:
        raise asyncio.CancelledError

    assert run_until_interrupted(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(asyncio.CancelledError):
        run_until_interrupted(fail())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
