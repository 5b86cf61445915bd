"""Every command with its options, read from the parsers themselves: what help shows, completion knows."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

from holdfast.cli.dispatch import command_of
from holdfast.cli.root import COMMANDS, SERVICES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_FILES: Final = frozenset({"FILE", "FOLDER", "APP"})


@dataclass(frozen=True, slots=True)
class Option:
    """An option: its names, and what follows them."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...] = ()
    is_file: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    """A command: ``runs list`` is the command list of the command runs."""

    name: str
    help: str
    options: tuple[Option, ...]
    commands: tuple[Command, ...] = ()
    choices: tuple[str, ...] = ()
    """What its argument may be, if that is a choice."""
    takes_file: bool = False
    """Whether its argument is a file."""

    def walk(self, *above: str) -> Iterator[tuple[tuple[str, ...], Command]]:
        """The command and all that it holds, each with the words that call it."""
        path = (*above, self.name)
        yield path, self
        for each in self.commands:
            yield from each.walk(*path)


def all_commands() -> Command:
    """Return ``holdfast`` itself, with all that it holds."""
    found = tuple(_service(name) if name in SERVICES else _read(name) for name in COMMANDS)
    root = command_of("")
    return Command("holdfast", root.help or "", tuple(_options(root)), found)


def _read(name: str) -> Command:
    return _converted(command_of(name).commands[name], name)


def _service(name: str) -> Command:
    module: Any = importlib.import_module(f"holdfast.cli.{name}")
    below = list(_read(name).commands) if hasattr(module, "add_to") else []
    if hasattr(module, "new_key_parser"):
        below.append(_of_parser("new-key", module.new_key_parser()))
    return _of_parser(name, module.parser(), tuple(below))


# -- typer


def _converted(command: Any, name: str) -> Command:
    listed = ((word, each) for word, each in getattr(command, "commands", {}).items() if not each.hidden)
    below = tuple(_converted(each, word) for word, each in listed)
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    return Command(
        name,
        _line(command.help),
        tuple(_options(command)),
        below,
        choices=_choices(arguments[0]) if arguments else (),
        takes_file=any(each.metavar in _FILES for each in arguments),
    )


def _options(command: Any) -> Iterator[Option]:
    for each in command.params:
        if each.param_type_name == "option" and not each.hidden:
            names = (*each.opts, *each.secondary_opts)
            is_file = each.metavar in _FILES
            yield Option(names, _line(each.help), not each.is_flag, _choices(each), is_file)
    yield Option(("-h", "--help"), "Show this message and exit.", takes_value=False)


def _choices(param: Any) -> tuple[str, ...]:
    known = getattr(getattr(param, "type", None), "choices", ())  # older versions of typer
    if known:
        return tuple(str(getattr(each, "value", each)) for each in known)
    annotation: Any = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return tuple(str(each.value) for each in annotation)
    return tuple(map(str, get_args(annotation))) if get_origin(annotation) is Literal else ()


# -- argparse


def _of_parser(name: str, parser: Any, below: tuple[Command, ...] = ()) -> Command:
    actions: list[argparse.Action] = parser.actions()
    options = tuple(_option(action) for action in actions if action.option_strings)
    return Command(name, _line(parser.description), options, below)


def _option(action: argparse.Action) -> Option:
    choices = tuple(map(str, action.choices or ()))
    takes_value = action.nargs != 0
    return Option(
        tuple(action.option_strings), _line(action.help), takes_value, choices, action.metavar in _FILES
    )


def _line(text: str | None) -> str:
    return " ".join((text or "").split())
