"""Completion in a real bash: commands, options and values, from a script that starts no Python."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from holdfast.cli.commands import all_commands
from holdfast.cli.root import COMMANDS, main

# Each line is a command line up to the cursor; its answer is a line of words.
BASH = """
source "$1"
while IFS= read -r line; do
    IFS="|" read -r -a COMP_WORDS <<< "$line|"
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _holdfast
    echo "${COMPREPLY[*]}"
done
"""
CASES = {
    ("ru",): "runs",
    ("runs", ""): "list show events cancel retry resume explain",
    ("runs", "list", "--st"): "--status",
    ("runs", "list", "--json", "--st"): "--status",
    ("runs", "list", "--status", "s"): "succeeded",
    ("runs", "list", "--queue", ""): "",
    ("schedules", "pause", "--r"): "--reason",
    ("relay", "undelivered", "redeliver", "--a"): "--all",
    ("relay", "u"): "undelivered",
    ("api", "--fd"): "--fd",
    ("api", "new-key", "--ro"): "--roles",
    ("worker", "--app", ""): "",  # the shell completes files then
    ("dev", ""): "",
    ("dev", "--work"): "--workers",
    ("completion", ""): "bash zsh fish",
    ("--v",): "--version",
    ("nonsense", "x"): "",
}


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    script = tmp_path_factory.mktemp("completion") / "holdfast.bash"

    def run(lines: list[tuple[str, ...]], text: str) -> list[str]:
        script.write_text(text)
        written = "".join("|".join(("holdfast", *words)) + "\n" for words in lines)
        done = subprocess.run(
            [shutil.which("bash"), "--norc", "-c", BASH, "bash", str(script)],
            input=written,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={"PATH": "/nowhere"},  # a TAB starts no other program
        )
        assert done.stderr == ""
        return done.stdout.splitlines()

    return run


def printed(capsys, shell: str) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def test_bash_completes_commands_options_and_values(complete, capsys):
    script = printed(capsys, "bash")
    assert dict(zip(CASES, complete(list(CASES), script), strict=True)) == CASES
    (first,) = complete([("",)], script)
    assert first.split() == list(COMMANDS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_knows_every_command_and_option(shell, capsys):
    script = printed(capsys, shell)
    for path, command in all_commands().walk():
        assert " ".join(path) in script
        for name in (name for option in command.options for name in option.names):
            assert (name if shell != "fish" else name.lstrip("-")) in script


def test_a_script_is_written_as_json_too_and_an_unknown_shell_is_refused(capsys):
    assert main(["completion", "zsh", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["script"].startswith("#compdef holdfast\n")
    assert main(["completion", "tcsh"]) == 2
    assert "tcsh" in capsys.readouterr().err
