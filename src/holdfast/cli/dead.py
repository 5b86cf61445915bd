"""``holdfast dead``: the runs that were given up, with their reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from holdfast.cli import options, output
from holdfast.cli.formatting import ago, compact, moment
from holdfast.cli.output import Column
from holdfast.cli.root import COMMANDS, FAILED
from holdfast.cli.session import Session, in_session
from holdfast.errors import Conflict, InputError, NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from holdfast.operations.dead_letters import DeadLetterOperations
    from holdfast.views.dead_letters import LetterBatch, LetterList, LetterView

dead = options.group(COMMANDS["dead"])

LetterRef = Annotated[str, typer.Argument(metavar="LETTER", help="A dead letter's id, or its run's.")]
LetterRefs = Annotated[
    list[str] | None, typer.Argument(metavar="LETTER", help="Dead letters' ids, or their runs'.")
]
Agent = Annotated[str, typer.Option("--agent", metavar="AGENT", help="Only letters of this agent.")]
Why = Annotated[str, typer.Option("--reason", metavar="REASON", help="Only letters with this reason.")]
All = Annotated[bool, typer.Option("--all", help="All letters, or those that the filters leave.")]

_QUEUED = "queued"
_DROPPED = "dropped"

_COLUMNS = (
    Column("RUN"),
    Column("AGENT", free=True),
    Column("QUEUE", free=True),
    Column("REASON"),
    Column("TRIES", number=True),
    Column("WHEN"),
    Column("ERROR", free=True),
)


class LetterFilter(TypedDict):
    """Which letters are meant; an empty field matches all."""

    queue: str
    agent: str
    reason: str


def add_to(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(dead, name="dead")


@dead.command("list")
def list_letters(
    queue: options.AnyQueue = None,
    agent: Agent = "",
    reason: Why = "",
    limit: options.Limit = 20,
    cursor: Annotated[str, typer.Option("--cursor", help="Go on where a page ended.")] = "",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List dead letters, newest first."""
    settings = options.read_settings(config)
    several = queue is None and len(settings.queue_names()) > 1

    async def work(session: Session) -> tuple[LetterList, str]:
        letters = (await session.operations(queue)).dead_letters
        wanted: LetterFilter = {"queue": queue or "", "agent": agent, "reason": reason}
        page = await letters.list(**wanted, limit=limit, cursor=cursor)
        return page, "" if page.letters or cursor else await letters.explain_none(**wanted)

    page, missing = in_session(settings, work)
    if json:
        output.as_it_is(page)
        return
    shown = [at for at, column in enumerate(_COLUMNS) if several or column.title != "QUEUE"]
    rows = [tuple(_row(each)[at] for at in shown) for each in page.letters]
    output.table([_COLUMNS[at] for at in shown], rows, empty=missing or "no dead letters")
    if page.cursor:
        output.note(f"more: --cursor {page.cursor}")


def _row(letter: LetterView) -> tuple[str, ...]:
    tries, error = str(letter.attempts), letter.error.message
    return (letter.run_id, letter.agent, letter.queue, letter.reason, tries, ago(letter.at), error)


@dead.command("show")
def show_letter(
    ref: LetterRef,
    queue: options.AnyQueue = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Show one dead letter, with its last error."""

    async def work(session: Session) -> LetterView:
        return await (await session.operations(queue)).dead_letters.get(ref, queue=queue or "")

    letter = in_session(options.read_settings(config), work)
    if json:
        output.as_it_is(letter)
    else:
        output.record(_fields(letter))


def _fields(letter: LetterView) -> list[tuple[str, str]]:
    return [
        ("letter", letter.id),
        ("run", letter.run_id),
        ("agent", letter.agent),
        ("queue", letter.queue),
        ("tenant", letter.tenant),
        ("status", letter.status),
        ("reason", letter.reason),
        ("attempts", str(letter.attempts)),
        ("given up", moment(letter.at)),
        ("message", letter.message),
        ("input", "" if letter.message else compact(letter.input)),
        ("error", f"{letter.error.kind}: {letter.error.message}"),
        ("traceback", letter.error.traceback.rstrip()),
    ]


@dead.command("replay")
def replay_letters(
    refs: LetterRefs = None,
    everything: All = False,
    queue: options.AnyQueue = None,
    agent: Agent = "",
    reason: Why = "",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Queue the runs of dead letters again, from their first attempt."""
    wanted = _wanted(refs, queue, agent, reason, everything=everything)

    async def replay(letters: DeadLetterOperations) -> LetterBatch:
        if refs:
            return await _each(letters, refs, queue or "", letters.replay)
        return await letters.replay_all(**wanted)

    _change(_QUEUED, replay, wanted, json=json, config=config)


@dead.command("drop")
def drop_letters(
    refs: LetterRefs = None,
    everything: All = False,
    queue: options.AnyQueue = None,
    agent: Agent = "",
    reason: Why = "",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Delete dead letters. Their runs can't be replayed by them any more."""
    wanted = _wanted(refs, queue, agent, reason, everything=everything)

    async def drop(letters: DeadLetterOperations) -> LetterBatch:
        if refs:
            return await _each(letters, refs, queue or "", letters.drop)
        return await letters.drop_all(**wanted)

    _change(_DROPPED, drop, wanted, json=json, config=config)


def _wanted(
    refs: list[str] | None, queue: str | None, agent: str, reason: str, *, everything: bool
) -> LetterFilter:
    """Return the filter; letters that are neither named nor selected by --all are not touched."""
    if everything and refs:
        raise InputError("name letters or say --all, not both")
    if not everything and not refs:
        raise InputError("name the letters, or say --all for all of them")
    if (agent or reason) and not everything:
        raise InputError("--agent and --reason choose among all letters: say --all with them")
    return {"queue": queue or "", "agent": agent, "reason": reason}


async def _each(
    letters: DeadLetterOperations, refs: list[str], queue: str, change: Callable[..., Awaitable[object]]
) -> LetterBatch:
    """Change one letter after the other; one that can't be changed does not keep the others from it."""
    from holdfast.views.dead_letters import LetterBatch

    batch = LetterBatch([], {})
    for ref in refs:
        try:
            letter = await letters.get(ref, queue=queue)
            await change(ref, queue=queue)
            batch.done.append(letter)
        except (NotFound, Conflict) as exc:
            batch.refused[ref] = str(exc)
    return batch


def _change(
    word: str,
    change: Callable[[DeadLetterOperations], Awaitable[LetterBatch]],
    wanted: LetterFilter,
    *,
    json: bool,
    config: Path | None,
) -> None:
    async def work(session: Session) -> tuple[LetterBatch, str]:
        letters = (await session.operations(wanted["queue"] or None)).dead_letters
        batch = await change(letters)
        return batch, "" if batch.done or batch.refused else await letters.explain_none(**wanted)

    batch, missing = in_session(options.read_settings(config), work)
    if missing:
        raise NotFound(missing)
    _print_json(word, batch) if json else _print(word, batch)
    if batch.refused:
        raise typer.Exit(FAILED)


def _print(word: str, batch: LetterBatch) -> None:
    for letter in batch.done:
        output.line(f"{letter.run_id} {word}")
    for problem in batch.refused.values():
        output.note(problem)
    if not batch.done and not batch.refused:
        output.line("no dead letters")


def _print_json(word: str, batch: LetterBatch) -> None:
    """Print a line for each letter: what ``POST /deadletters/{ref}/replay`` or ``DELETE`` returns."""
    from holdfast.views.runs import Changed

    for letter in batch.done:
        output.json_line(Changed(letter.run_id, word) if word == _QUEUED else letter)
    for ref, problem in batch.refused.items():
        output.json_line({"id": ref, "error": problem})
