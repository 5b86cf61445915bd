"""The options that commands share, so that the same word means the same everywhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from holdfast.cli.parser import CommandParser
from holdfast.errors import InputError

if TYPE_CHECKING:
    from holdfast.config import Settings

Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Read the settings from FILE instead of ./holdfast.yaml."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines; errors too.")]
LogJson = Annotated[bool, typer.Option("--json", help="Log lines of JSON, also on a terminal.")]
AnyQueue = Annotated[
    str | None, typer.Option("--queue", metavar="QUEUE", help="Look in this queue only, not in all of them.")
]
OneQueue = Annotated[
    str | None, typer.Option("--queue", metavar="QUEUE", help="The queue, if it is not the default one.")
]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is shown to others.")]
Metadata = Annotated[
    list[str] | None,
    typer.Option(
        "--metadata", metavar="KEY=VALUE", help="Metadata for the agent; repeatable, or a JSON object."
    ),
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many at most.")]


def read_settings(config: Path | None) -> Settings:
    """Return the settings, from the file that was named if one was."""
    from holdfast.config import load

    return load(config).settings


def group(sentence: str) -> CommandParser:
    """Return a noun's command, which only holds others."""
    return CommandParser(help=sentence, no_args_is_help=True, rich_markup_mode=None)


def json_value(text: str) -> Any:
    """Read an argument that is JSON; - reads it from stdin."""
    data = sys.stdin.buffer.read() if text == "-" else text.encode(errors="surrogateescape")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        where = "stdin" if text == "-" else repr(text[:60])
        raise InputError(f"""{where} is not JSON ({exc}): write it like '{{"id": 7}}' or '"text"'""") from exc


def metadata_of(given: list[str] | None) -> dict[str, Any]:
    """Read what ``--metadata`` was given: KEY=VALUE, or JSON objects."""
    metadata: dict[str, Any] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if text.startswith("{"):
            metadata |= _object(text)
        elif key and equals:
            metadata[key] = value
        else:
            raise InputError(f"--metadata must be KEY=VALUE or a JSON object, got {text[:60]!r}")
    return metadata


def _object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as exc:
        raise InputError(f"--metadata {text[:60]!r} is not a JSON object: {exc}") from exc
