"""Whatever an agent does or raises, its run ends and its worker goes on."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import App, RetryLater
from holdfast.runs.run import Status
from tests.support.runs.system import System
from tests.support.waiting import until


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Trap(dict):
    def __getitem__(self, key):
        raise RuntimeError("a trap")

    def get(self, key, default=None):
        raise RuntimeError("a trap")


class OddNumber(int):
    def __le__(self, other):
        raise RuntimeError("not comparable")

    __lt__ = __ge__ = __gt__ = __le__


def with_attributes(**attributes) -> Exception:
    exc = Exception("odd")
    for name, value in attributes.items():
        setattr(exc, name, value)
    return exc


RAISED = [
    Unprintable,
    lambda: SystemExit(1),
    KeyboardInterrupt,
    GeneratorExit,
    StopIteration,
    StopAsyncIteration,
    asyncio.CancelledError,
    MemoryError,
    RecursionError,
    lambda: BaseExceptionGroup("g", [ValueError("a"), KeyboardInterrupt()]),
    lambda: RetryLater("later", after=1e308),
    lambda: with_attributes(retry_after=1e308),
    lambda: with_attributes(retry_after=float("nan")),
    lambda: with_attributes(retry_after=-5),
    lambda: with_attributes(status_code="x", response=object()),
    lambda: with_attributes(retry_after=10**5000),
    lambda: with_attributes(response=Trap()),
    lambda: with_attributes(status_code=OddNumber(500)),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "\udcff"),
]
NUMBERS = st.one_of(st.floats(), st.integers(), st.text(max_size=5), st.none(), st.binary(max_size=3))


@pytest.fixture
async def system(redis, redis_settings):
    async with System(redis_settings, slots=4, max_attempts=1, ttl=30.0) as system:
        yield system


async def test_whatever_an_agent_raises_its_worker_goes_on(system):
    app = App("test")

    @app.agent
    async def hostile(number):
        raise RAISED[number]

    @app.agent
    def threaded(number):
        raise RAISED[number]

    worker = await system.worker(app)
    for agent in ("hostile", "threaded"):
        run_ids = [await system.submit(agent, number) for number in range(len(RAISED))]
        for run_id in run_ids:
            assert (await system.ended(run_id)).status is Status.FAILED
    assert not worker.task.done()
    await system.nothing_left()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    retry_after=NUMBERS,
    status=NUMBERS,
    code=NUMBERS,
    result=st.sampled_from(["raise", "object", "cycle", "nan", "bytes"]),
)
def test_odd_errors_and_results_end_as_outcomes(
    valkey_server, redis_settings, retry_after, status, code, result
):
    async def check() -> None:
        app = App("test")

        @app.agent(max_attempts=3)
        async def odd(_):
            if result == "raise":
                raise with_attributes(retry_after=retry_after, status_code=status, code=code)
            cycle: list = []
            cycle.append(cycle)
            return {"object": object(), "cycle": cycle, "nan": float("nan"), "bytes": b"\xff"}[result]

        async with System(redis_settings, name="odd", ttl=30.0) as system:
            worker = await system.worker(app)
            run_id = await system.submit("odd")
            await until(
                lambda: system.queue.get(run_id),
                lambda found: found.status not in {Status.QUEUED, Status.RUNNING},
            )
            assert not worker.task.done()

    asyncio.run(check())


async def test_results_of_many_megabytes_are_settled_in_calls_of_bounded_size(redis, redis_settings):
    app = App("test")

    @app.agent
    async def large(_):
        return "x" * 900_000

    async with System(redis_settings, slots=30, ttl=30.0) as system:
        run_ids = [await system.submit("large", number) for number in range(30)]
        await redis.config_resetstat()
        await system.worker(app)
        for run_id in run_ids:
            assert (await system.ended(run_id)).status is Status.SUCCEEDED
        assert (await redis.info("commandstats"))["cmdstat_xack"]["calls"] >= 10


@pytest.mark.parametrize("timeout", [0, -1, 1e12, float("nan"), "99999999d"])
def test_a_timeout_that_is_no_time_is_refused_at_registration(timeout):
    from holdfast import AppError

    with pytest.raises(AppError, match="timeout"):

        @App("test").agent(timeout=timeout)
        async def slow():
            pass


@pytest.mark.parametrize("kind", [5, None, "", "x" * 201, "\ud800"])
async def test_an_event_whose_type_is_none_is_the_agents_mistake(system, kind):
    """Fails if it is not understood as such: it was tried again, which can't help."""
    app = App("test")

    @app.agent
    async def speaker(ctx):
        await ctx.emit(kind, 1)

    await system.worker(app)
    run = await system.ended(await system.submit("speaker"))
    assert run.status is Status.FAILED
    assert "the type of an event must be text of 1 to 200 characters" in run.error.message
