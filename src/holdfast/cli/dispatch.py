"""The parser of all commands but the services': the one asked for, and a line of help for each other."""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any, Protocol, cast

import typer

from holdfast.cli.parser import CommandParser
from holdfast.cli.root import COMMANDS, INTERRUPTED, USAGE, complain, say
from holdfast.errors import InputError
from holdfast.packages import version


class Noun(Protocol):
    """A module of this package that holds commands."""

    def add_to(self, root: typer.Typer) -> None:
        """Add the commands to ``root``."""


def run(wanted: str, arguments: list[str]) -> int:
    """Parse the arguments, call the command, and return the exit code."""
    try:
        code = _root(wanted)(arguments, prog_name="holdfast", standalone_mode=False)
    except typer.Abort:
        return INTERRUPTED
    except Exception as exc:
        if not hasattr(exc, "format_message"):  # not the parser's
            raise
        _explain(cast("typer.BadParameter", exc), arguments)
        return USAGE
    return code if isinstance(code, int) else 0


def command_of(wanted: str) -> Any:
    """Return the parser of ``holdfast`` with all commands of one module."""
    return typer.main.get_command(_root(wanted))


def _root(wanted: str) -> typer.Typer:
    root = CommandParser(
        help="Holdfast runs AI agents that finish.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    root.callback()(_common)
    for name, sentence in COMMANDS.items():
        module = importlib.import_module(f"holdfast.cli.{name}") if name == wanted else None
        if hasattr(module, "add_to"):
            cast("Noun", module).add_to(root)
        else:
            root.command(name, help=sentence)(_elsewhere)
    return root


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"holdfast {version()}\n")
        raise typer.Exit


def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


def _elsewhere() -> None:
    """Stand for a command of another module, which is listed only."""
    raise InputError("write the command first, its options after it")


def _explain(exc: typer.BadParameter, arguments: list[str]) -> None:
    # What a value is checked with puts words of its own before the sentence.
    message = exc.format_message().strip().replace(": Value error, ", ": ", 1)
    if message.startswith("Usage:"):  # a command that only holds others was given none: this is its help
        say(message)
        return
    message = " ".join(message.split())  # the parser lists choices one a line
    path = exc.ctx.command_path if exc.ctx is not None else "holdfast"
    complain(f"{message} (`{path} --help` tells more)", arguments)
