"""The messages about problems of the settings, with advice for the operator; all problems at once."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from holdfast.config.parse import Given, show_given
from holdfast.config.schema import Leaf, leaves
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def config_error(problems: Sequence[str]) -> ConfigError:
    """Return one error with all problems."""
    distinct = tuple(dict.fromkeys(problems))
    if len(distinct) == 1:
        return ConfigError(distinct[0])
    listed = "\n".join(f"  - {problem}" for problem in distinct)
    return ConfigError(f"{len(distinct)} problems with the settings:\n{listed}")


def invalid_value(path: str, leaf: Leaf, given: Given, *, allowed: str) -> str:
    """Return the message for an invalid value: the setting, the value, its source and what is allowed."""
    meant = get_close_matches(str(given.raw).upper(), [choice.upper() for choice in leaf.choices], n=1)
    hint = f". Did you mean {next(c for c in leaf.choices if c.upper() == meant[0])}?" if meant else ""
    return f"{path} = {show_given(leaf, given)} ({given.source}) is not allowed: it must be {allowed}{hint}"


def unknown_key(path: str, source: str, siblings: Iterable[str]) -> str:
    """Return the message for an unknown key of the file, with similar settings."""
    section, _, name = path.rpartition(".")
    if name == "<<":
        return f"{path} ({source}): merge keys are not supported; put what the queues share under queue"
    if name == "name" and section.partition(".")[0] in {"queue", "queues"}:
        return (
            f"{path} ({source}) is not a setting: a queue's name is its key under queues, or messaging.queue"
        )
    return f"{_one_line(path)} ({source}) is not a setting. {_advice(closest_paths(path, siblings))}"


def unknown_variable(name: str) -> str:
    """Return the message for an unknown variable, with similar ones."""
    return f"{name} (environment) is not a setting. {_advice(closest_variables(name))}"


def closest_paths(path: str, siblings: Iterable[str]) -> tuple[str, ...]:
    """Return up to three settings that are similar to ``path``: those of its section first."""
    section, dot, last = path.rpartition(".")
    name = _plain(last)
    by_env = tuple(leaf.path for leaf in leaves() if last in leaf.env)
    if by_env:
        return by_env
    written = {_plain(sibling): sibling for sibling in siblings}
    if name in written:
        return (section + dot + written[name],)
    begun = [sibling for plain, sibling in written.items() if name and plain.startswith(f"{name}_")]
    near = [*begun, *(written[plain] for plain in _closest(name, written))]
    elsewhere = [leaf.path for leaf in leaves() if _plain(leaf.path.rpartition(".")[2]) == name]
    return tuple(dict.fromkeys((*(section + dot + sibling for sibling in near), *elsewhere)))[:3]


def closest_variables(name: str) -> tuple[str, ...]:
    """Return up to three variables that are similar to ``name``."""
    # Compared without the prefix, which would make all names similar.
    full = {known.removeprefix("HOLDFAST_"): known for leaf in leaves() for known in leaf.env[::-1]}
    return tuple(full[match] for match in _closest(name.removeprefix("HOLDFAST_"), full))


def _closest(word: str, words: Iterable[str]) -> list[str]:
    # For a typo there is one close name; less similar ones are returned only without a close one.
    known = list(words)
    return get_close_matches(word, known, cutoff=0.8) or get_close_matches(word, known, cutoff=0.6)


def _plain(name: str) -> str:
    # Some keys have hyphens and some underscores: both spellings are the same name.
    return name.lower().replace("-", "_")


def _one_line(path: str) -> str:
    return path if path.isprintable() else repr(path)


def _advice(candidates: Sequence[str]) -> str:
    if not candidates:
        return "Remove it; `holdfast config show` lists every setting."
    return f"Did you mean {' or '.join(candidates)}?"
