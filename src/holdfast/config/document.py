"""The settings of the file, each with its line.

Values are read as plain text: ``0123`` stays a password and ``no`` a name, in spite of YAML's types.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from holdfast.config.connection import CONNECTION, as_ours
from holdfast.config.parse import Given, Odd
from holdfast.config.problems import unknown_key
from holdfast.config.resolve import SettingsDocument
from holdfast.config.schema import leaves, queue_leaves

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_STANDARD_TAG: Final = "tag:yaml.org,2002:"
_NULL: Final = f"{_STANDARD_TAG}null"
_QUEUES: Final = "queues"
_QUOTED = re.compile(r"'[^'<]{2,}'")


class _Tree(dict[str, "_Tree"]):
    """The names of a section, each with the names below it; empty for a leaf."""


def read_document(path: Path) -> SettingsDocument:
    """Read a settings file; its errors are the document's problems."""
    document = SettingsDocument(name=str(path))
    root = _compose(path, document.problems)
    if isinstance(root, MappingNode):
        _DocumentReader(document).read(root)
    elif root is not None and root.tag != _NULL:
        document.problems.append(
            f"{path} must be a mapping of settings, like `redis:` with `url: …` below it"
        )
    return document


def _compose(path: Path, problems: list[str]) -> Node | None:
    try:
        return yaml.SafeLoader(path.read_text(encoding="utf-8")).get_single_node()
    except UnicodeDecodeError:
        problems.append(f"{path} is not UTF-8 text: save it as UTF-8")
    except OSError as exc:
        how = "correct the path, on the command line or in HOLDFAST_CONFIG"
        problems.append(f"{path} can't be read ({exc.strerror}): {how}")
    except RecursionError:
        problems.append(f"{path} is nested too deeply to be a settings file")
    except yaml.YAMLError as exc:
        problems.append(_not_yaml(path, exc))
    return None


def _not_yaml(path: Path, exc: yaml.YAMLError) -> str:
    if not isinstance(exc, yaml.MarkedYAMLError) or exc.problem_mark is None:
        return f"{path} is not valid YAML: it holds characters that are not text"
    # Never the line itself, nor a part of it: it may have the password.
    reason = _QUOTED.sub("'…'", exc.problem or "it can't be parsed")
    mark = exc.problem_mark
    where = f"{path}:{mark.line + 1} (column {mark.column + 1})"
    return f"{where} is not valid YAML: {reason}. Check the indentation; quote text with special characters"


@dataclass(frozen=True, slots=True)
class _Target:
    """The settings below ``base``, by the rest of their path."""

    base: str
    given: dict[str, Given]

    def put(self, path: str, given: Given) -> None:
        self.given[path.removeprefix(self.base)] = given


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of a mapping: its key, its value, and its line."""

    key: str
    node: Node
    source: str


class _DocumentReader:
    """Walks the file along the tree of known settings, never deeper than that tree."""

    def __init__(self, document: SettingsDocument) -> None:
        self._document = document

    def read(self, root: MappingNode) -> None:
        tree = _tree((*(leaf.path for leaf in leaves()), *CONNECTION))
        tree[_QUEUES] = _Tree()
        target = _Target("", self._document.given)
        for entry in self._items(root, ""):
            if entry.key == _QUEUES:
                self._read_queues(entry)
            else:
                self._read_entry(entry, "", tree, target)

    def _read_queues(self, queues: _Entry) -> None:
        for queue in self._below(queues, _QUEUES):
            base = f"{_QUEUES}.{queue.key}"
            self._document.queue_sources[queue.key] = queue.source
            target = _Target(f"{base}.", self._document.queues.setdefault(queue.key, {}))
            self._read_section(queue, base, _tree(queue_leaves()), target)

    def _read_section(self, section: _Entry, path: str, tree: _Tree, target: _Target) -> None:
        for entry in self._below(section, path):
            self._read_entry(entry, f"{path}.", tree, target)

    def _read_entry(self, entry: _Entry, prefix: str, tree: _Tree, target: _Target) -> None:
        path = prefix + entry.key
        if entry.key not in tree:
            self._problem(unknown_key(path, entry.source, tree))
        elif below := tree[entry.key]:
            self._read_section(entry, path, below, target)
        else:
            self._put(path, Given(raw=_raw(entry.node), source=entry.source), target)

    def _put(self, path: str, given: Given, target: _Target) -> None:
        ours, text = path, f"{path} ({given.source})"
        if path in CONNECTION:
            ours, given = CONNECTION[path], as_ours(path, given)
            text = f"{text} is {ours}, which"
        if before := target.given.get(ours):  # under its other name
            self._problem(f"{text} is already set at {before.source}: remove one of the two")
        elif ours:
            target.put(ours, given)

    def _below(self, section: _Entry, path: str) -> Iterator[_Entry]:
        if isinstance(section.node, MappingNode):
            yield from self._items(section.node, f"{path}.")
        elif section.node.tag != _NULL:
            self._problem(f"{path} ({section.source}) must be a mapping, with one setting to a line below it")

    def _items(self, node: MappingNode, prefix: str) -> Iterator[_Entry]:
        seen: dict[str, str] = {}
        for key_node, value in node.value:
            source = f"{self._document.name}:{key_node.start_mark.line + 1}"
            if not isinstance(key_node, ScalarNode):
                self._problem(f"{source}: the name of a setting must be plain text")
            elif (key := str(key_node.value)) in seen:
                self._problem(
                    f"{prefix}{key} ({source}) is already set at {seen[key]}: remove one of the two"
                )
            else:
                seen[key] = source
                yield _Entry(key, value, source)

    def _problem(self, text: str) -> None:
        self._document.problems.append(text)


def _raw(node: Node) -> str | tuple[str, ...] | Odd:
    if not node.tag.startswith(_STANDARD_TAG):
        return Odd(f"a value with the tag {node.tag}")
    if isinstance(node, MappingNode):
        return Odd("a mapping")
    if isinstance(node, SequenceNode):
        return _texts(node)
    return Odd("nothing") if node.tag == _NULL else str(node.value)


def _texts(node: SequenceNode) -> tuple[str, ...] | Odd:
    texts = [item.value for item in node.value if isinstance(item, ScalarNode) and item.tag != _NULL]
    return tuple(texts) if len(texts) == len(node.value) else Odd("a list of more than plain text")


def _tree(paths: Iterable[str]) -> _Tree:
    root = _Tree()
    for path in paths:
        *sections, name = path.split(".")
        here = root
        for section in sections:
            here = here.setdefault(section, _Tree())
        here[name] = _Tree()
    return root
