"""``holdfast completion``: a script for a shell that completes commands, options and values of options.

Invariant: the script has all words in it, so that a TAB starts no Python. An upgrade needs a new script.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import options, output
from holdfast.cli.root import COMMANDS
from holdfast.packages import version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from holdfast.cli.commands import Command, Option


class Shell(StrEnum):
    """A shell that can be told how to complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def add_to(root: typer.Typer) -> None:
    """Add the command."""
    root.command("completion", help=COMMANDS["completion"])(completion)


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", show_default=False)],
    json: options.Json = False,
) -> None:
    """Print a completion script for SHELL. Save it where the shell looks for them, again after an upgrade."""
    from holdfast.cli.commands import all_commands

    scripts: dict[Shell, Callable[[Command], str]] = {Shell.BASH: _bash, Shell.ZSH: _zsh, Shell.FISH: _fish}
    script = scripts[shell](all_commands())
    if json:
        output.document({"shell": shell, "script": script})
    else:
        output.text(script)


def _note(shell: str) -> str:
    return f"# Completion of holdfast {version()} for {shell}, written by `holdfast completion {shell}`."


# -- bash


def _bash(root: Command) -> str:
    return f"""{_note("bash")}
_holdfast() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}}
    local path=holdfast i commands= options=
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$path ${{COMP_WORDS[i]}}" in
            {_any_of(" ".join(path) for path, _ in root.walk() if len(path) > 1)})
                path="$path ${{COMP_WORDS[i]}}" ;;
        esac
    done
    COMPREPLY=()
    case "$path $prev" in
{_lines(_bash_values(root), 8)}
    esac
    case "$path" in
{_lines(_bash_words(root), 8)}
    esac
    case "$path" in
        {_any_of(_with_files(root))}) [[ $cur == -* ]] || return ;;
    esac
    if [[ $cur == -* || -z $commands ]]; then
        commands+=" $options"
    fi
    COMPREPLY=($(compgen -W "$commands" -- "$cur"))
}}
complete -o default -F _holdfast holdfast
"""


def _bash_values(root: Command) -> Iterator[str]:
    chosen, files, others = _values(root)
    for words, choices in chosen:
        reply = f"""$(compgen -W {_quoted(" ".join(choices))} -- "$cur")"""
        yield f"{_quoted(words)}) COMPREPLY=({reply}); return ;;"
    yield f"{_any_of(files)}) return ;;"  # the default of the shell: files
    yield f"{_any_of(others)}) compopt +o default 2>/dev/null; return ;;"


def _bash_words(root: Command) -> Iterator[str]:
    for path, command in root.walk():
        commands = " ".join([each.name for each in command.commands] or command.choices)
        names = " ".join(name for option in command.options for name in option.names)
        yield f"{_quoted(' '.join(path))}) commands={_quoted(commands)} options={_quoted(names)} ;;"


# -- zsh


def _zsh(root: Command) -> str:
    return f"""#compdef holdfast
{_note("zsh")}
_holdfast() {{
    local called=holdfast i
    local -a commands options
    for ((i = 2; i < CURRENT; i++)); do
        case "$called ${{words[i]}}" in
            {_any_of(" ".join(path) for path, _ in root.walk() if len(path) > 1)})
                called="$called ${{words[i]}}" ;;
        esac
    done
    case "$called ${{words[CURRENT-1]}}" in
{_lines(_zsh_values(root), 8)}
    esac
    case "$called" in
{_lines(_zsh_words(root), 8)}
    esac
    case "$called" in
        {_any_of(_with_files(root))}) [[ $PREFIX == -* ]] || {{ _files; return; }} ;;
    esac
    if [[ $PREFIX == -* || ${{#commands}} -eq 0 ]]; then
        _describe option options
    else
        _describe command commands
    fi
}}
if [[ $funcstack[1] == _holdfast ]]; then
    _holdfast "$@"
else
    compdef _holdfast holdfast
fi
"""


def _zsh_values(root: Command) -> Iterator[str]:
    chosen, files, others = _values(root)
    for words, choices in chosen:
        yield f"{_quoted(words)}) compadd -- {' '.join(map(_quoted, choices))}; return ;;"
    yield f"{_any_of(files)}) _files; return ;;"
    yield f"{_any_of(others)}) return ;;"


def _zsh_words(root: Command) -> Iterator[str]:
    for path, command in root.walk():
        commands = [(each.name, each.help) for each in command.commands]
        commands += [(choice, "") for choice in command.choices]
        names = [(name, option.help) for option in command.options for name in option.names]
        yield f"{_quoted(' '.join(path))}) commands=({_described(commands)}) options=({_described(names)}) ;;"


def _described(words: Iterable[tuple[str, str]]) -> str:
    return " ".join(_quoted(f"{word}:{text}" if text else word) for word, text in words)


# -- fish


def _fish(root: Command) -> str:
    paths = " ".join(_fish_quoted(" ".join(path)) for path, _ in root.walk() if len(path) > 1)
    return f"""{_note("fish")}
set -g __holdfast_paths {paths}
function __holdfast_is
    set -l called holdfast
    set -l words (commandline -opc)
    for word in $words[2..-1]
        if contains -- "$called $word" $__holdfast_paths
            set called "$called $word"
        end
    end
    test "$called" = "$argv"
end
complete -c holdfast -e
{_lines(_fish_rules(root), 0)}
"""


def _fish_rules(root: Command) -> Iterator[str]:
    for path, command in root.walk():
        rule = f"complete -c holdfast -n {_fish_quoted('__holdfast_is ' + ' '.join(path))}"
        if not command.takes_file:
            yield f"{rule} -f"
        for each in command.commands:
            yield f"{rule} -a {_fish_quoted(each.name)} -d {_fish_quoted(each.help)}"
        if command.choices:
            yield f"{rule} -a {_fish_quoted(' '.join(command.choices))}"
        for option in command.options:
            yield f"{rule} {_fish_option(option)} -d {_fish_quoted(option.help)}"


def _fish_option(option: Option) -> str:
    words = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    if option.choices:
        words.append(f"-x -a {_fish_quoted(' '.join(option.choices))}")
    elif option.takes_value:
        words.append("-r -F" if option.is_file else "-x")
    return " ".join(words)


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


# -- shared


def _values(root: Command) -> tuple[list[tuple[str, tuple[str, ...]]], list[str], list[str]]:
    """The options after which a value comes: those with choices, those of files, and all others."""
    chosen: list[tuple[str, tuple[str, ...]]] = []
    files: list[str] = []
    others: list[str] = []
    for path, command in root.walk():
        for option in command.options:
            for name in option.names if option.takes_value else ():
                words = " ".join((*path, name))
                if option.choices:
                    chosen.append((words, option.choices))
                else:
                    (files if option.is_file else others).append(words)
    return chosen, files, others


def _with_files(root: Command) -> list[str]:
    """The commands whose argument is a file."""
    return [" ".join(path) for path, command in root.walk() if command.takes_file]


def _any_of(texts: Iterable[str]) -> str:
    return "|".join(map(_quoted, texts))


def _quoted(text: str) -> str:
    escaped = text.replace("'", "'\\''")
    return f"'{escaped}'"


def _lines(lines: Iterable[str], indent: int) -> str:
    return "\n".join(" " * indent + line for line in lines)
