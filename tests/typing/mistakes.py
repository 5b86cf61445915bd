"""What a type checker must refuse: an error in each line that is marked, and in no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import App, Client, SyncClient

if TYPE_CHECKING:
    from holdfast import Context

app = App("mistakes")


@app.agent(isolation="fiber")  # wrong
async def fibre(ctx: Context) -> None:
    await ctx.emit("started")
    await ctx.journal.get("plan")  # wrong


@app.schedule(every="1m", overlap="never")  # wrong
async def refresh() -> None: ...


@app.resident
class Clerk:
    async def receive(self, ctx: Context, message: str) -> str:
        return message + ctx.run_id


Clerk().send("hello")  # wrong


async def ask(client: Client, priority: str) -> None:
    await client.submit("fibre", priority="urgent")  # wrong
    await client.submit("fibre", priority=priority)  # wrong
    await client.submit("fibre", multitask="queue")  # wrong
    await client.submit_many([{"agent": "fibre", "priority": "urgent"}])  # wrong
    await client.schedules.create("often", "fibre", every="1s", overlap="never")  # wrong
    await client.schedules.create("often", "fibre", every="1s", overlaps="skip")  # wrong
    handle = await client.submit("fibre")
    print((await handle.run()).state)  # wrong


with SyncClient() as blocking:
    blocking.submit("fibre", priority="urgent")  # wrong
    blocking.schedules.create("often", "fibre", every="1s", misfire="never")  # wrong
