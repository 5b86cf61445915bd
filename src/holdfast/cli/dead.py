"""``holdfast dead``: the runs that were given up, with their reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from holdfast.cli import options, output
from holdfast.cli.letters import Boxes, Dealt, Filter, Found, Listed
from holdfast.cli.output import Column
from holdfast.cli.root import COMMANDS, FAILED
from holdfast.cli.station import Station, at_station
from holdfast.cli.wording import ago, compact, moment
from holdfast.errors import InputError, NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

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


def add_to(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(dead, name="dead")


@dead.command("list")
def list_letters(
    queue: options.AnyQueue = None,
    agent: Agent = "",
    reason: Why = "",
    limit: options.Limit = 20,
    cursor: Annotated[
        str, typer.Option("--cursor", help="Go on where a page ended; needs --queue if there are several.")
    ] = "",
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """List dead letters, newest first."""
    settings, chosen = options.read_settings(config), Filter(agent, reason)
    several = queue is None and len(settings.queue_names()) > 1
    if cursor and several:
        raise InputError("--cursor belongs to one queue: name it with --queue")

    async def work(station: Station) -> tuple[Listed, str]:
        boxes = await Boxes.at(station, queue)
        page = await boxes.list(chosen, limit=limit, cursor=cursor)
        return page, "" if page.letters or cursor else await boxes.missing(chosen)

    page, missing = at_station(settings, work)
    if json:
        output.document({"letters": [_listed(each) for each in page.letters], "cursor": page.cursor})
        return
    shown = [at for at, column in enumerate(_COLUMNS) if several or column.title != "QUEUE"]
    rows = [tuple(_row(each)[at] for at in shown) for each in page.letters]
    output.table([_COLUMNS[at] for at in shown], rows, empty=missing or "no dead letters")
    if page.more:
        output.note(f"more: --cursor {page.cursor}" if page.cursor else "more: --limit, or --queue for one")


def _listed(found: Found) -> dict[str, Any]:
    return {**msgspec.to_builtins(found.letter), "queue": found.queue}


def _row(found: Found) -> tuple[str, ...]:
    letter = found.letter
    tries, error = str(letter.attempts), letter.error.message
    return (letter.run_id, letter.agent, found.queue, letter.reason, tries, ago(letter.at), error)


@dead.command("show")
def show_letter(
    ref: LetterRef,
    queue: options.AnyQueue = None,
    json: options.Json = False,
    config: options.Config = None,
) -> None:
    """Show one dead letter, with its last error."""

    async def work(station: Station) -> Found:
        return await (await Boxes.at(station, queue)).find(ref)

    found = at_station(options.read_settings(config), work)
    if json:
        output.document(_listed(found))
    else:
        output.record(_fields(found))


def _fields(found: Found) -> list[tuple[str, str]]:
    letter = found.letter
    return [
        ("letter", letter.id),
        ("run", letter.run_id),
        ("agent", letter.agent),
        ("queue", found.queue),
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
    chosen = _choice(refs, Filter(agent, reason), everything=everything)

    async def deal(boxes: Boxes) -> Dealt:
        if refs:
            return await boxes.each(refs, lambda found: found.box.replay_letter(found.letter))
        return await boxes.all(lambda box: box.replay_all(agent=agent, reason=reason))

    _deal(_QUEUED, deal, chosen, queue, json, config)


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
    """Throw dead letters away. Their runs can't be replayed by them any more."""
    chosen = _choice(refs, Filter(agent, reason), everything=everything)

    async def deal(boxes: Boxes) -> Dealt:
        if refs:
            return await boxes.each(refs, lambda found: found.box.drop_letter(found.letter))
        return await boxes.all(lambda box: box.drop_all(agent=agent, reason=reason))

    _deal(_DROPPED, deal, chosen, queue, json, config)


def _choice(refs: list[str] | None, chosen: Filter, *, everything: bool) -> Filter:
    """Return the filter; what is neither named nor asked for as a whole is not touched."""
    if everything and refs:
        raise InputError("name letters or say --all, not both")
    if not everything and not refs:
        raise InputError("name the letters, or say --all for all of them")
    if chosen and not everything:
        raise InputError("--agent and --reason choose among all letters: say --all with them")
    return chosen


def _deal(
    word: str,
    deal: Callable[[Boxes], Awaitable[Dealt]],
    chosen: Filter,
    queue: str | None,
    json: bool,
    config: Path | None,
) -> None:
    async def work(station: Station) -> tuple[Dealt, str]:
        boxes = await Boxes.at(station, queue)
        dealt = await deal(boxes)
        return dealt, "" if dealt.done or dealt.refused else await boxes.missing(chosen)

    dealt, missing = at_station(options.read_settings(config), work)
    if missing:
        raise NotFound(missing)
    _print_json(word, dealt) if json else _print(word, dealt)
    if dealt.refused:
        raise typer.Exit(FAILED)


def _print(word: str, dealt: Dealt) -> None:
    for found in dealt.done:
        output.line(f"{found.letter.run_id} {word}")
    for problem in dealt.refused.values():
        output.note(problem)
    if not dealt.done and not dealt.refused:
        output.line("no dead letters")


def _print_json(word: str, dealt: Dealt) -> None:
    """Print a line for each letter: what ``POST /deadletters/{ref}/replay`` or ``DELETE`` answers."""
    from holdfast.views.runs import Changed

    for found in dealt.done:
        queued = Changed(found.letter.run_id, word)
        output.json_line(queued if word == _QUEUED else _listed(found))
    for ref, problem in dealt.refused.items():
        output.json_line({"id": ref, "error": problem})
