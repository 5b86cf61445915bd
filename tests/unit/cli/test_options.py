"""What every command has: help by -h, and --json."""

from __future__ import annotations

import pytest
import typer

from holdfast.cli.menu import _root
from holdfast.cli.root import COMMANDS, main

SERVICES = {"api", "worker", "scheduler", "janitor", "relay", "host", "scaler"}
WITHOUT_JSON = {"demo"}  # a show for people


def commands(name: str) -> dict[tuple[str, ...], list[str]]:
    """Every command of a noun, with its options."""
    found: dict[tuple[str, ...], list[str]] = {}

    def walk(command, path: tuple[str, ...]) -> None:
        for word, below in getattr(command, "commands", {}).items():
            walk(below, (*path, word))
        if not hasattr(command, "commands"):
            found[path] = [option for param in command.params for option in param.opts]

    walk(typer.main.get_command(_root(name)).commands[name], (name,))
    return found


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - SERVICES - WITHOUT_JSON))
def test_every_command_has_json(name):
    assert [path for path, options in commands(name).items() if "--json" not in options] == []


@pytest.mark.parametrize("words", [[], ["runs"], ["runs", "list"], ["submit"], ["agents", "ask"], ["demo"]])
def test_help_is_told_by_its_short_name(words, capsys):
    assert main([*words, "-h"]) == 0
    assert "Usage: holdfast" in capsys.readouterr().out
