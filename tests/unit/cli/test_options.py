"""What every command has: help by -h, and --json."""

from __future__ import annotations

import pytest

from holdfast.cli.commands import all_commands
from holdfast.cli.root import COMMANDS, main


def test_every_command_that_does_something_has_json():
    found = {" ".join(path): command for path, command in all_commands().walk() if not command.commands}
    assert {path.split()[1] for path in found} >= set(COMMANDS) - {"api"}
    names = {path: [name for option in each.options for name in option.names] for path, each in found.items()}
    assert [path for path, known in names.items() if "--json" not in known] == []


def test_the_processes_that_hold_commands_have_json_too():
    processes = {
        each.name: each for each in all_commands().commands if each.name in {"api", "relay", "simulate"}
    }
    for name, command in processes.items():
        assert command.commands, name
        assert any("--json" in option.names for option in command.options), name


@pytest.mark.parametrize(
    "words", [[], ["runs"], ["runs", "list"], ["submit"], ["residents", "ask"], ["demo"]]
)
def test_help_is_told_by_its_short_name(words, capsys):
    assert main([*words, "-h"]) == 0
    assert "Usage: holdfast" in capsys.readouterr().out
