"""A program as users write it: mypy and pyright check it, strictly, and each reveals the types that it says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, assert_type

from holdfast import (
    AgentView,
    App,
    Client,
    Context,
    Event,
    GiveUp,
    HoldfastError,
    InputError,
    LeaseLost,
    Needs,
    Producer,
    QueueFull,
    RedisUnavailable,
    Refused,
    Residents,
    ResidentView,
    ResultTimeout,
    RetryLater,
    Run,
    RunFailed,
    RunHandle,
    ScheduleView,
    Sent,
    Settings,
    Status,
    Submission,
    SubmitRequest,
    SyncClient,
    SyncContext,
    SyncRunHandle,
    current_context,
    load_settings,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Mapping
    from datetime import datetime

app = App("support")


@dataclass
class Ticket:
    """What the agents are given."""

    id: int
    text: str = ""


# -- agents


@app.agent(timeout="30m", max_attempts=5, concurrency=4, log_fields=["id"])
async def triage(ctx: Context, ticket: Ticket) -> dict[str, str]:
    """Answer a ticket."""
    await ctx.emit("thinking", {"ticket": ticket.id})
    plan = await ctx.step("plan", make_plan, ticket)
    assert_type(plan, list[str])
    count = await ctx.step("count", len, plan)
    assert_type(count, int)
    if ctx.draining or ctx.cancelled:
        raise RetryLater("the worker leaves", after=timedelta(minutes=1))
    answer = await ctx.interrupt({"approve": plan})
    await ctx.state.set("answer", answer)
    ctx.log.info("answered", attempt=ctx.attempt, fence=ctx.fence)
    return {"answer": str(answer), "key": ctx.idempotency_key("send")}


async def make_plan(ticket: Ticket) -> list[str]:
    """Ask a model."""
    return [ticket.text]


@app.agent
def invoice(ctx: SyncContext, order: dict[str, Any]) -> int:
    """Write an invoice, in a thread."""
    pages = ctx.step("pages", int, order["pages"])
    assert_type(pages, int)
    if ctx.wait_draining(0.1):
        raise GiveUp("too late")
    return pages


@app.agent(isolation="process", memory_mb=512, nice=5)
def convert(order: dict[str, Any]) -> dict[str, Any]:
    """Run in a process of its own."""
    return order


@app.agent
async def draft(ctx: Context) -> AsyncGenerator[str]:
    """Stream the pieces of an answer."""
    yield ctx.run_id


@app.schedule(every="30s", timeout="5m", overlap="skip", misfire="coalesce")
async def refresh(ctx: Context) -> None:
    """Run again and again."""
    await ctx.stream("refreshed")


@app.schedule(cron="0 6 * * *", tz="Europe/Paris", target="reports", max_runs=3)
async def report() -> None:
    """Run every morning."""


@app.resident
class Clerk:
    """A long-lived agent."""

    def __init__(self, greeting: str = "hello") -> None:
        self.greeting = greeting

    async def receive(self, ctx: Context, message: dict[str, Any]) -> str:
        """Answer one message."""
        return f"{self.greeting} {message['name']} {ctx.thread_id}"


@app.resident(name="porter", max_attempts=2)
class Porter:
    """Another one, with options."""

    bags = 0

    def receive(self, ctx: SyncContext, message: str) -> int:
        """Carry a bag."""
        return len(message) + ctx.attempt


assert_type(Clerk("good day"), Clerk)
assert_type(Clerk().greeting, str)
assert_type(Porter().bags, int)


async def node(value: int) -> str:
    """Find the context in a node of a graph."""
    return current_context().idempotency_key(str(value))


# -- clients


async def ask(url: str, priority: Literal["high", "normal"]) -> list[str]:
    """Submit runs and wait for them."""
    async with Client(url) as client:
        handle = await client.submit(
            "triage", {"id": 7}, priority=priority, multitask="enqueue", delay="5s", thread_id="t"
        )
        assert_type(handle, RunHandle)
        async for event in handle.events():
            seen(event)
        assert_type(await handle.status(), Status)
        requests: list[SubmitRequest] = [
            {"agent": "triage", "input": {"id": 1}, "priority": "low"},
            {"agent": "invoice", "input": {"pages": 3}, "timeout": timedelta(minutes=5)},
        ]
        handles = await client.submit_many(requests)
        assert_type(handles, list[RunHandle])
        mixed = await client.submit_many(requests, return_errors=True)
        assert_type(mixed, list[RunHandle | HoldfastError])
        await client.resume(handle.run_id, answer=True)
        return [described(await each.run()) for each in handles]


def seen(event: Event) -> None:
    """Print an event."""
    print(event.type, event.at, event.data)


def described(run: Run) -> str:
    """Say how a run ended."""
    if run.status is Status.FAILED and run.error is not None:
        return f"{run.id}: {run.error.kind}: {run.error.message}"
    return f"{run.id}: {run.status} {run.result}"


async def steer(client: Client) -> None:
    """Make schedules, start residents, read agents."""
    made = await client.schedules.create(
        "nightly", "report", cron="0 3 * * *", tz="UTC", overlap="buffer", misfire="skip", priority=3
    )
    assert_type(made, ScheduleView)
    agents = await client.agents.list()
    assert_type(agents, list[AgentView])
    clerk = await client.residents.start("Clerk", "clerk-1", "good day", needs=Needs(cpu=0.5))
    assert_type(clerk, ResidentView)


def script() -> Any:
    """Do the same without an event loop."""
    with SyncClient() as client:
        run = client.submit("triage", {"id": 7}, idempotency_key="ticket-7", priority="high")
        assert_type(run, SyncRunHandle)
        for event in events_of(run):
            seen(event)
        client.schedules.create("hourly", "report", every="1h", overlap="allow")
        try:
            return run.result(timeout=60)
        except ResultTimeout:
            return None
        except RunFailed as exc:
            return exc.run_id
        except (QueueFull, RedisUnavailable) as exc:
            return exc.retry_after


def events_of(run: SyncRunHandle) -> Generator[Event]:
    """Follow a run."""
    yield from run.events()


def patience_of(exc: HoldfastError) -> float:
    """Say when to try again."""
    match exc:
        case Refused():
            return exc.retry_after
        case InputError() | LeaseLost():
            return 0.0
        case _:
            return 1.0


# -- producers and hosts of their own


async def fallback(message: Submission) -> None:
    """Take what the queue does not."""
    print(message.agent, message.input, message.metadata)


async def produce(settings: Settings, jobs: Mapping[str, Any]) -> Sent:
    """Send a job to the queue or to the fallback."""
    async with Producer(
        "auth", agent="triage", rollout="new", fallback=fallback, settings=settings
    ) as producer:
        return await producer.send(jobs, tenant="acme", priority="low")


async def host(at: datetime) -> Any:
    """Keep residents in this program."""
    async with Residents(load_settings(), app="office.py:app") as residents:
        await residents.start("Clerk", "clerk-1", f"good morning, it is {at}")
        return await residents.ask("clerk-1", {"name": "Ada"})
