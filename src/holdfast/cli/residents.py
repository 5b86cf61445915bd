"""``holdfast residents``: long-lived agents on hosts; start, stop, move them and send them messages."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from holdfast.cli import options, output
from holdfast.cli.formatting import ago, compact, moment
from holdfast.cli.output import Column
from holdfast.cli.root import COMMANDS
from holdfast.errors import HoldfastError, InputError, NoHost, NotFound, ResultTimeout, RunError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.client.handle import RunHandle
    from holdfast.client.residents import ClientResidents, ResidentInfo
    from holdfast.config import Settings
    from holdfast.hosts.agent import Needs

T = TypeVar("T")

_LOOK_SECONDS = 0.25
"""How long after a look for a first host the next one is."""

residents = options.group(COMMANDS["residents"])

ResidentId = Annotated[
    str, typer.Argument(metavar="ID", help="The resident's id, unique among all residents.")
]
Message = Annotated[
    str,
    typer.Argument(
        metavar="JSON",
        help="A JSON value, null if it is left out; - reads it from stdin.",
        show_default=False,
    ),
]

_COLUMNS = (
    Column("ID", free=True),
    Column("NAME", free=True),
    Column("STATE"),
    Column("HOST", free=True),
    Column("PID", number=True),
    Column("RESTARTS", number=True),
    Column("SINCE"),
)


def add_to(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(residents, name="residents")


@residents.command("list")
def list_residents(
    status: Annotated[str, typer.Option("--status", help="Only those in this state.")] = "",
    host: Annotated[str, typer.Option("--host", help="Only those on this host.")] = "",
    name: Annotated[str, typer.Option("--name", help="Only those of this name.")] = "",
    limit: options.Limit = 100,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List residents and their hosts."""
    found = with_residents(
        options.read_settings(config),
        lambda known: known.list(status=status, host=host, name=name, limit=limit + 1),
    )
    found, has_more = found[:limit], len(found) > limit
    if json:
        from holdfast.api.residentshapes import ResidentRow

        rows = msgspec.convert(msgspec.to_builtins(found), list[ResidentRow])
        output.document({"residents": rows, "cursor": _cursor(found[-1]) if has_more else ""})
    else:
        output.table(_COLUMNS, [_row(each) for each in found], empty=_none(status, host, name))


def _cursor(last: ResidentInfo) -> str:
    """Return the cursor of ``GET /residents`` for the page after this resident."""
    from holdfast.runs.paging import write_cursor

    return write_cursor({"since": str(round(last.created_at * 1000)), "after": last.id})


def _none(status: str, host: str, name: str) -> str:
    """What an empty list prints: that there are no residents, or none that fit."""
    if not (status or host or name):
        return "no residents"
    called = f" of the name {name!r}" if name else ""
    return f"no resident{called} is {status or 'there'}" + (f" on host {host!r}" if host else "")


@residents.command("show")
def show(resident_id: ResidentId, json: options.Json = False, config: options.Config = None) -> None:
    """Show one resident: its host, and why it last ended."""
    found = with_residents(options.read_settings(config), lambda known: known.get(resident_id))
    output.document(found) if json else output.record(_fields(found))


@residents.command("start")
def start(
    resident: Annotated[str, typer.Argument(metavar="RESIDENT", help="Its name in the hosts' app.")],
    resident_id: ResidentId,
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="JSON",
            help="A JSON value; left out, it is what the resident of this id was made with, else null.",
            show_default=False,
        ),
    ] = None,
    needs: Annotated[
        str | None,
        typer.Option(
            "--needs",
            metavar="JSON",
            help='What it asks of its host, like {"near": ["gpu"]}; left out, it stays.',
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", min=0, help="How many seconds a first host may take to come; 0 does not wait."
        ),
    ] = 15.0,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Start a resident on one of the hosts, or start it again. JSON is what its class is made with."""
    made_with, wanted = options.json_value("null" if value is None else value), _needs(needs or "{}")

    async def work(known: ClientResidents) -> ResidentInfo:
        there = await _known(known, resident, resident_id)
        stored = there.input if there and value is None else made_with
        needed = there.needs if there and needs is None else wanted
        try:
            return await _begun(
                known, lambda: known.start(resident, resident_id, stored, needs=needed), wait, json=json
            )
        except HoldfastError:
            if there and stored is not None:  # what could not be started is forgotten
                again = f"{resident_id} is made with {compact(stored)}: give that when you start it again"
                output.note(again, json=json)
            raise

    _tell(with_residents(options.read_settings(config), work), json=json)


async def _known(known: ClientResidents, resident: str, resident_id: str) -> ResidentInfo | None:
    """The resident of that id, if it is of that name: one that crashed is started as it was."""
    try:
        there = await known.get(resident_id)
    except NotFound:
        return None
    return there if there.name == resident else None


@residents.command("move")
def move(
    resident_id: ResidentId,
    to: Annotated[str, typer.Option("--to", metavar="HOST", help="There, and not to the best host.")] = "",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Move a resident to another host. It stops, then starts; where it was, if there is no other."""
    _tell(
        with_residents(options.read_settings(config), lambda known: known.move(resident_id, to=to)), json=json
    )


@residents.command("stop")
def stop(resident_id: ResidentId, json: options.Json = False, config: options.Config = None) -> None:
    """Stop a resident; its mailbox and its state stay."""
    stopped = with_residents(options.read_settings(config), lambda known: known.stop(resident_id))
    output.document(stopped) if json else output.line(f"{resident_id} has stopped")


@residents.command("send")
def send(
    resident_id: ResidentId,
    value: Message = "null",
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Wait so many seconds for the reply; 0 does not wait.")
    ] = 0.0,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Put a message into a mailbox, and wait for its reply if wanted."""
    if wait:
        ask(resident_id, value, wait, json=json, config=config)
        return
    message = options.json_value(value)

    async def work(known: ClientResidents) -> tuple[RunHandle, str]:
        sent = await known.send(resident_id, message)
        return sent, (await sent.status()).value if json else ""

    sent, status = with_residents(options.read_settings(config), work)
    if json:
        from holdfast.api.residentshapes import MessageView

        output.document(MessageView(resident_id, sent.run_id, sent.queue, status))
    else:
        output.line(f"message {sent.run_id} is in the mailbox of {resident_id}: {_look(sent)}")


@residents.command("ask")
def ask(
    resident_id: ResidentId,
    value: Message = "null",
    wait: Annotated[float, typer.Option("--wait", min=0.001, help="How many seconds at most.")] = 30.0,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Send a resident a message and print its reply, which is JSON."""
    # The reply is JSON in any case; with --json, notes and errors are too.
    message = options.json_value(value)
    settings = options.read_settings(config)
    output.as_it_is(
        with_residents(settings, lambda known: _answer(known, resident_id, message, wait, json=json))
    )


async def _answer(known: ClientResidents, resident_id: str, message: Any, wait: float, *, json: bool) -> Any:
    """What ``ask`` returns; where there is no reply, say how to look at the message."""
    from holdfast.hosts.residents import require_alive

    there = await known.get(resident_id)
    require_alive(there.status, there.error, resident_id)
    sent = await known.send(resident_id, message)
    try:
        return await sent.result(wait)
    except (ResultTimeout, RunError):
        output.note(f"no reply to message {sent.run_id}: {_look(sent)}", json=json)
        there = await known.get(resident_id)
        if there.status == "placing":
            why = there.error or "it waits for one"
            output.note(f"resident {resident_id!r} has no live host: {why}", json=json)
        raise


def _look(sent: RunHandle) -> str:
    """The command that shows a message; no mailbox is among the queues that are looked in unasked."""
    return f"`holdfast runs show {sent.run_id} --queue {shlex.quote(sent.queue)}` shows it"


def with_residents(settings: Settings, work: Callable[[ClientResidents], Awaitable[T]]) -> T:
    """Do something with the residents of the Redis that is configured, or of this directory's server."""
    from holdfast.client.client import Client
    from holdfast.redis.locate import located
    from holdfast.services.signals import run_until_interrupted

    near = located(settings)

    async def use() -> T:
        async with Client(near.redis.url, settings=near) as client:
            return await work(client.residents)

    return run_until_interrupted(use())


async def _begun(
    known: ClientResidents, begin: Callable[[], Awaitable[ResidentInfo]], seconds: float, *, json: bool
) -> ResidentInfo:
    """Begin, once there is a host: the one of `holdfast dev` is ready some seconds after its first lines."""
    had_hosts = bool(await known.hosts())
    try:
        return await begin()
    except NoHost:
        # Hosts that were there have said why they don't take it: that is no matter of waiting.
        if had_hosts or not await _first_host(known, seconds, json=json):
            raise
    return await begin()


async def _first_host(known: ClientResidents, seconds: float, *, json: bool) -> bool:
    """Wait for any host; False if none comes in time."""
    import asyncio

    if not seconds:
        return False
    output.note(f"waiting for a host, {seconds:g} s at most", json=json)
    deadline = time.monotonic() + seconds
    while not await known.hosts():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(_LOOK_SECONDS)
    return True


def _needs(text: str) -> Needs:
    from holdfast.hosts.agent import Needs

    try:
        return msgspec.convert(options.json_value(text), Needs)
    except msgspec.ValidationError as exc:
        raise InputError(f"--needs: {exc}") from exc


def _tell(placed: ResidentInfo, *, json: bool) -> None:
    if json:
        output.document(placed)
    else:
        output.line(f"{placed.id} runs on host {placed.host} (process {placed.pid})")


def _row(found: ResidentInfo) -> tuple[str, ...]:
    return (
        found.id,
        found.name,
        found.status,
        found.host,
        str(found.pid or ""),
        str(found.restarts),
        ago(found.started_at),
    )


def _fields(found: ResidentInfo) -> list[tuple[str, str]]:
    return [
        ("id", found.id),
        ("name", found.name),
        ("entry", found.entry),
        ("tenant", found.tenant),
        ("guild", found.guild_id),
        ("input", "" if found.input is None else compact(found.input)),
        ("state", found.status),
        ("host", f"{found.host} ({found.address})" if found.host else ""),
        ("process", str(found.pid or "")),
        ("fence", str(found.fence)),
        ("restarts", str(found.restarts)),
        ("created", moment(found.created_at)),
        ("started", moment(found.started_at)),
        ("error", found.error),
    ]
