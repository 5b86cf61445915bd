"""``holdfast residents``: long-lived agents on hosts; start, stop, move them and send them messages."""

from __future__ import annotations

import shlex
import time
import uuid
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer

from holdfast.cli import options, output
from holdfast.cli.formatting import ago, compact, moment
from holdfast.cli.output import Column
from holdfast.cli.root import COMMANDS
from holdfast.cli.session import Session, in_session
from holdfast.errors import HoldfastError, InputError, NoHost, NotFound, ResultTimeout, RunError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.config import Settings
    from holdfast.operations import Operations
    from holdfast.views.residents import MessageView, Needs, ResidentList, ResidentRow, ResidentView

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

    async def work(operations: Operations) -> ResidentList:
        from holdfast.operations.residents import ResidentFilter

        return await operations.residents.first(ResidentFilter(status=status, host=host, name=name), limit)

    found = _with_operations(options.read_settings(config), work)
    if json:
        output.as_it_is(found)
    else:
        output.table(_COLUMNS, [_row(each) for each in found.residents], empty=_none(status, host, name))


def _none(status: str, host: str, name: str) -> str:
    """What an empty list prints: that there are no residents, or none that fit."""
    if not (status or host or name):
        return "no residents"
    called = f" of the name {name!r}" if name else ""
    return f"no resident{called} is {status or 'there'}" + (f" on host {host!r}" if host else "")


@residents.command("show")
def show(resident_id: ResidentId, json: options.Json = False, config: options.Config = None) -> None:
    """Show one resident: its host, and why it last ended."""
    settings = options.read_settings(config)
    found = _with_operations(settings, lambda operations: operations.residents.get(resident_id))
    if json:
        output.as_it_is(found)
    else:
        output.record(_fields(found))


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

    async def work(operations: Operations) -> ResidentView:
        there = await _known(operations, resident, resident_id)
        stored = there.input if there and value is None else made_with
        needed = there.needs if there and needs is None else wanted

        async def begin() -> ResidentView:
            started, _ = await operations.residents.start(resident_id, resident, stored, needs=needed)
            return started

        try:
            return await _begun(operations, begin, wait, json=json)
        except HoldfastError:
            if there and stored is not None:  # what could not be started is forgotten
                again = f"{resident_id} is made with {compact(stored)}: give that when you start it again"
                output.note(again, json=json)
            raise

    _print_place(_with_operations(options.read_settings(config), work), json=json)


async def _known(operations: Operations, resident: str, resident_id: str) -> ResidentView | None:
    """Return the resident of that id, if it is of that name: one that crashed is started as it was."""
    try:
        there = await operations.residents.get(resident_id)
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
    settings = options.read_settings(config)
    moved = _with_operations(settings, lambda operations: operations.residents.move(resident_id, to))
    _print_place(moved, json=json)


@residents.command("stop")
def stop(resident_id: ResidentId, json: options.Json = False, config: options.Config = None) -> None:
    """Stop a resident; its mailbox and its state stay."""
    settings = options.read_settings(config)
    stopped = _with_operations(settings, lambda operations: operations.residents.stop(resident_id))
    if json:
        output.as_it_is(stopped)
    else:
        output.line(f"{resident_id} has stopped")


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

    settings = options.read_settings(config)
    sent = _with_operations(settings, lambda operations: _sent(operations, resident_id, message))
    if json:
        output.as_it_is(sent)
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
        in_session(settings, lambda session: _reply(session, resident_id, message, wait, json=json))
    )


async def _reply(session: Session, resident_id: str, message: Any, wait: float, *, json: bool) -> Any:
    """Send a message and return its reply; where there is none, name the command that shows the message."""
    from holdfast.client import Client

    operations = await session.operations()
    sent = await _sent(operations, resident_id, message, expects_reply=True)
    try:
        async with Client(session.settings.redis.url, settings=session.settings) as client:
            return await client.handle(sent.run_id, queue=sent.queue).result(wait)
    except (ResultTimeout, RunError):
        output.note(f"no reply to message {sent.run_id}: {_look(sent)}", json=json)
        there = await operations.residents.get(resident_id)
        if there.status == "placing":
            why = there.error or "it waits for one"
            output.note(f"resident {resident_id!r} has no live host: {why}", json=json)
        raise


async def _sent(
    operations: Operations, resident_id: str, message: Any, *, expects_reply: bool = False
) -> MessageView:
    """Send a message under a key of its own: it is one message, even if it is sent again after an error."""
    sent, _ = await operations.residents.send(
        resident_id, message, expects_reply=expects_reply, idempotency_key=uuid.uuid4().hex
    )
    return sent


def _look(sent: MessageView) -> str:
    """Return the command that shows a message; no mailbox is among the queues that are looked in unasked."""
    return f"`holdfast runs show {sent.run_id} --queue {shlex.quote(sent.queue)}` shows it"


def _with_operations(settings: Settings, work: Callable[[Operations], Awaitable[T]]) -> T:
    """Do ``work`` with all that an operator can ask for."""

    async def in_operations(session: Session) -> T:
        return await work(await session.operations())

    return in_session(settings, in_operations)


async def _begun(
    operations: Operations, begin: Callable[[], Awaitable[ResidentView]], seconds: float, *, json: bool
) -> ResidentView:
    """Begin, once there is a host: the one of `holdfast dev` is ready some seconds after its first lines."""
    had_hosts = bool((await operations.hosts.list()).hosts)
    try:
        return await begin()
    except NoHost:
        # Hosts that were there have said why they don't take it: that is no matter of waiting.
        if had_hosts or not await _first_host(operations, seconds, json=json):
            raise
    return await begin()


async def _first_host(operations: Operations, seconds: float, *, json: bool) -> bool:
    """Wait for any host; False if none comes in time."""
    import asyncio

    if not seconds:
        return False
    output.note(f"waiting for a host, {seconds:g} s at most", json=json)
    deadline = time.monotonic() + seconds
    while not (await operations.hosts.list()).hosts:
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(_LOOK_SECONDS)
    return True


def _needs(text: str) -> Needs:
    from holdfast.views.residents import Needs

    try:
        return msgspec.convert(options.json_value(text), Needs)
    except msgspec.ValidationError as exc:
        raise InputError(f"--needs: {exc}") from exc


def _print_place(placed: ResidentView, *, json: bool) -> None:
    if json:
        output.as_it_is(placed)
    else:
        output.line(f"{placed.id} runs on host {placed.host} (process {placed.pid})")


def _row(found: ResidentRow) -> tuple[str, ...]:
    return (
        found.id,
        found.name,
        found.status,
        found.host,
        str(found.pid or ""),
        str(found.restarts),
        ago(found.started_at),
    )


def _fields(found: ResidentView) -> list[tuple[str, str]]:
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
