"""``holdfast dead``: the runs that were given up, with their reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import options, output
from holdfast.cli.output import Column
from holdfast.cli.root import COMMANDS, FAILED
from holdfast.cli.station import Station, at_station
from holdfast.cli.wording import ago, compact, moment
from holdfast.errors import Conflict, InputError, NotFound
from holdfast.runs.deadletter import DeadLetters, Dealt, Letter, Letters

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

dead = options.group(COMMANDS["dead"])

LetterRef = Annotated[str, typer.Argument(metavar="LETTER", help="A dead letter's id, or its run's.")]
LetterRefs = Annotated[
    list[str] | None, typer.Argument(metavar="[LETTER...]", help="Dead letters' ids, or their runs'.")
]
Agent = Annotated[str, typer.Option("--agent", metavar="AGENT", help="Only letters of this agent.")]
Why = Annotated[str, typer.Option("--reason", metavar="REASON", help="Only letters with this reason.")]
All = Annotated[
    bool, typer.Option("--all", help="All letters of the queue, or those that the filters leave.")
]

_COLUMNS = (
    Column("RUN"),
    Column("AGENT", free=True),
    Column("REASON"),
    Column("TRIES", number=True),
    Column("WHEN"),
    Column("ERROR", free=True),
)


def add_to(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(dead, name="dead")


@dead.command("list")
def list_letters(
    queue: options.OneQueue = None,
    agent: Agent = "",
    reason: Why = "",
    limit: options.Limit = 20,
    cursor: Annotated[str, typer.Option("--cursor", help="Go on where a page ended.")] = "",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List dead letters, newest first."""

    async def work(station: Station) -> Letters:
        letters = DeadLetters(await station.queue(queue))
        return await letters.list(limit=limit, cursor=cursor, agent=agent, reason=reason)

    page = at_station(options.read_settings(config), work)
    if json:
        output.document(page)
        return
    output.table(_COLUMNS, [_row(letter) for letter in page.letters], empty="no dead letters")
    if page.cursor:
        output.note(f"more: --cursor {page.cursor}")


def _row(letter: Letter) -> tuple[str, ...]:
    tries, error = str(letter.attempts), letter.error.message
    return (letter.run_id, letter.agent, letter.reason, tries, ago(letter.at), error)


@dead.command("show")
def show_letter(
    ref: LetterRef,
    queue: options.OneQueue = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Show one dead letter, with its last error."""

    async def work(station: Station) -> Letter:
        return await DeadLetters(await station.queue(queue)).show(ref)

    letter = at_station(options.read_settings(config), work)
    if json:
        output.document(letter)
    else:
        output.record(_fields(letter))


def _fields(letter: Letter) -> list[tuple[str, str]]:
    return [
        ("letter", letter.id),
        ("run", letter.run_id),
        ("agent", letter.agent),
        ("tenant", letter.tenant),
        ("status", letter.status),
        ("reason", letter.reason),
        ("attempts", str(letter.attempts)),
        ("given up", moment(letter.at)),
        ("input", compact(letter.input)),
        ("error", f"{letter.error.kind}: {letter.error.message}"),
        ("traceback", letter.error.traceback.rstrip()),
    ]


@dead.command("replay")
def replay_letters(
    refs: LetterRefs = None,
    everything: All = False,
    queue: options.OneQueue = None,
    agent: Agent = "",
    reason: Why = "",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Queue the runs of dead letters again, from their first attempt."""
    if _choice(refs, everything=everything, filters=agent + reason):
        _deal("queued", lambda letters: letters.replay_all(agent=agent, reason=reason), queue, json, config)
    else:
        _deal("queued", lambda letters: _each(refs or [], letters.replay), queue, json, config)


@dead.command("drop")
def drop_letters(
    refs: LetterRefs = None,
    everything: All = False,
    queue: options.OneQueue = None,
    agent: Agent = "",
    reason: Why = "",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Throw dead letters away: their runs can't be replayed by them any more."""
    if _choice(refs, everything=everything, filters=agent + reason):
        _deal("dropped", lambda letters: letters.drop_all(agent=agent, reason=reason), queue, json, config)
    else:
        _deal("dropped", lambda letters: _each(refs or [], letters.drop), queue, json, config)


def _choice(refs: list[str] | None, *, everything: bool, filters: str) -> bool:
    """Whether all letters are meant; what is neither named nor asked for as a whole is not touched."""
    if everything and refs:
        raise InputError("name letters or say --all, not both")
    if not everything and not refs:
        raise InputError("name the letters, or say --all for all of them")
    if filters and not everything:
        raise InputError("--agent and --reason choose among all letters: say --all with them")
    return everything


async def _each(refs: list[str], deal: Callable[[str], Awaitable[Letter]]) -> Dealt:
    done: list[Letter] = []
    refused: dict[str, str] = {}
    for ref in refs:
        try:
            done.append(await deal(ref))
        except (NotFound, Conflict) as exc:
            refused[ref] = str(exc)
    return Dealt(done, refused)


def _deal(
    word: str,
    deal: Callable[[DeadLetters], Awaitable[Dealt]],
    queue: str | None,
    json: bool,
    config: Path | None,
) -> None:
    async def work(station: Station) -> Dealt:
        return await deal(DeadLetters(await station.queue(queue)))

    dealt = at_station(options.read_settings(config), work)
    if json:
        done = [{"id": letter.id, "run_id": letter.run_id} for letter in dealt.done]
        output.document({word: done, "refused": dealt.refused})
    else:
        _tell(word, dealt)
    if dealt.refused:
        raise typer.Exit(FAILED)


def _tell(word: str, dealt: Dealt) -> None:
    for letter in dealt.done:
        output.line(f"{letter.run_id} {word}")
    for problem in dealt.refused.values():
        output.note(problem)
    if not dealt.done and not dealt.refused:
        output.line("no dead letters")
