"""Mutation guards: a known mistake is put back into a copy of the source, and the test of its guard must fail there.

A guarded line of src has a marker, ``# guard: settle-fence`` (Lua: ``-- guard: settle-fence``), at its end or alone on
the line above. The slug names what is guarded and is there once. A row names the slug, never a file or a line:

    Mistake("a former owner settles a run", removed("settle-fence"), "tests/…/test_fences.py::test_a_stale_…")

``removed`` drops the marked statement, ``replaced`` changes a fragment that occurs once in it, ``instead`` puts other
statements in its place. In Python that is the innermost statement around the marked line: ``replaced`` looks at the
header of a compound one, the others take its body along. In Lua it is the marked line. New lines get its indentation.
tests/unit/test_guards.py checks in every test run that all rows apply; ``make mutations`` puts the mistakes back.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import keyword
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import pytest

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SOURCE = ROOT / "src"

_MARKER = re.compile(r"[ \t]*(?:#|--) guard: (\S+)$")
_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_STRING = re.compile(r"""[a-z]?"[^"\n]*"|[a-z]?'[^'\n]*'""")
_NAME = re.compile(r"(\.?)\b([A-Za-z_]\w*)")
_BOUND = re.compile(r"\b(\w+)\s*:?=(?!=)|\bdef (\w+)|\bfor (\w+)(?:, (\w+))? in\b")
_LUA_BROKEN = re.compile(r"Error compiling script|attempted to access nonexistent global")
_KNOWN = {
    ".py": {*keyword.kwlist, *dir(builtins)},
    ".lua": {"and", "end", "false", "function", "if", "nil", "not", "or", "setmetatable", "then", "true"},
}


class BrokenRow(Exception):
    """A row that does not fit the source any more, and would show nothing."""


# -- what a row says


@dataclass(frozen=True)
class Change:
    """What becomes of a marked statement: ``new`` in the place of ``old``, or of all of it."""

    guard: str
    old: str | None
    new: str


def removed(guard: str) -> Change:
    """The marked statement is missing."""
    return Change(guard, None, "")


def replaced(guard: str, old: str, new: str) -> Change:
    """A fragment of the marked statement is another."""
    return Change(guard, old, new)


def instead(guard: str, new: str) -> Change:
    """Other statements are in the place of the marked one."""
    return Change(guard, None, new)


@dataclass(frozen=True)
class Mistake:
    """A mistake and the test that must notice it; several changes where one guard stands behind another."""

    name: str
    changes: Change | tuple[Change, ...]
    test: str

    def __str__(self) -> str:
        return self.name

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes if isinstance(self.changes, tuple) else (self.changes,))


# -- where it applies


@dataclass(frozen=True)
class Statement:
    """A marked statement, by its place in the text of its file without markers."""

    path: Path
    text: str
    start: int
    header_end: int
    end: int
    scope: tuple[int, int]
    """The function around it, or else its outermost statement: what the parser understands by itself."""

    def edit(self, change: Change) -> tuple[int, int, str]:
        """Where the text changes, and what is there then."""
        indent = " " * (self.start - self.text.rfind("\n", 0, self.start) - 1)
        new = change.new.replace("\n", "\n" + indent)
        if change.old is None:
            return self.start, self.end, new or ("pass" if self.path.suffix == ".py" else "")
        header = self.text[self.start : self.header_end]
        if (count := header.count(change.old)) != 1:
            raise BrokenRow(f"{change.old!r} occurs {count} times in the marked statement: {header}")
        start = self.start + header.index(change.old)
        return start, start + len(change.old), new

    def check_syntax(self, edit: tuple[int, int, str]) -> None:
        """Raise BrokenRow if the result is no Python."""
        start, end, new = edit
        first, last = self.scope
        code = self.text[first:start] + new + self.text[end:last]
        try:
            ast.parse(f"if True:\n{code}" if code.startswith(" ") else code)
        except SyntaxError as exc:
            raise BrokenRow(f"the result is no Python: {exc.msg}: {(exc.text or '').strip()}") from None


class Source:
    """A source tree: its markers, and its files without them."""

    def __init__(self, folder: Path) -> None:
        self.texts: dict[Path, str] = {}
        self.markers: dict[str, list[tuple[Path, int]]] = defaultdict(list)
        for file in sorted((*folder.rglob("*.py"), *folder.rglob("*.lua"))):
            path, text = file.relative_to(folder), file.read_text("utf-8")
            self.texts[path] = self._without_markers(path, text) if " guard: " in text else text

    def _without_markers(self, path: Path, text: str) -> str:
        lines: list[str] = []
        for line in text.split("\n"):
            if marker := _MARKER.search(line):
                self.markers[marker[1]].append((path, len(lines) + 1))
            if not marker or marker.start():
                lines.append(line[: marker.start()] if marker else line)
        return "\n".join(lines)

    def find(self, guard: str) -> Statement:
        """The statement with this marker."""
        places = self.markers.get(guard, [])
        if len(places) != 1:
            raise BrokenRow(f"src has {len(places)} markers {guard!r} instead of one")
        path, line = places[0]
        text = self.texts[path]
        return Statement(path, text, *(_find_python if path.suffix == ".py" else _find_lua)(text, line))

    def mutate(self, mistake: Mistake) -> dict[Path, str]:
        """The files that the mistake changes, as they are then."""
        edits: dict[Path, list[tuple[int, int, str]]] = defaultdict(list)
        for change in mistake:
            statement = self.find(change.guard)
            edits[statement.path].append(statement.edit(change))
        return {path: _edited(self.texts[path], edits[path]) for path in edits}

    def check(self, mistake: Mistake) -> None:
        """Raise BrokenRow unless each change makes other code of the source, and sound code; and the test exists."""
        for change in mistake:
            statement = self.find(change.guard)
            start, end, new = edit = statement.edit(change)
            if statement.text[start:end] == new:
                raise BrokenRow("it changes nothing")
            if statement.path.suffix == ".py":
                statement.check_syntax(edit)
            self._check_names(change.new, statement.path)
        file, _, test = mistake.test.partition("::")
        name = test.rpartition("::")[2].partition("[")[0]
        if not name or f"def {name}(" not in _read_test(file):
            raise BrokenRow(f"there is no test {mistake.test}")

    def _check_names(self, new: str, path: Path) -> None:
        """A name that is nowhere else is an error of the row: any test would fail for that one."""
        code = _STRING.sub("", new)
        known = _KNOWN[path.suffix].union(*_BOUND.findall(code))
        for dot, name in _NAME.findall(code):
            if name in known:
                continue
            # An attribute may be declared in another module, and a function of Lua in a fragment that is included.
            anywhere = dot or path.suffix == ".lua"
            texts = self._texts_with(name, path.suffix) if anywhere else [self.texts[path]]
            word = re.compile(rf"\b{name}\b" if dot else rf"(?<![\w.]){name}\b")
            if not any(map(word.search, texts)):
                raise BrokenRow(f"there is no {name!r} in {path}")

    def _texts_with(self, name: str, suffix: str) -> list[str]:
        return [text for path, text in self.texts.items() if path.suffix == suffix and name in text]

    def problems(self, mistakes: Iterable[Mistake]) -> list[str]:
        """What is wrong with rows and markers, each in a line."""
        found: list[str] = []
        named: set[str] = set()
        for mistake in mistakes:
            named |= {change.guard for change in mistake}
            try:
                self.check(mistake)
            except BrokenRow as broken:
                found.append(f"{mistake.name!r}: {broken}")
        for guard, places in self.markers.items():
            where = ", ".join(f"{path}:{line}" for path, line in places)
            if len(places) > 1:
                found.append(f"the marker {guard!r} is there more than once: {where}")
            if guard not in named:
                found.append(f"no row names the marker {guard!r}: {where}")
            if not _SLUG.fullmatch(guard):
                found.append(f"the marker {guard!r} is not written like-this: {where}")
        return found


def _find_lua(text: str, line: int) -> tuple[int, int, int, tuple[int, int]]:
    lines = text.split("\n")
    while lines[line - 1].lstrip().startswith("--"):
        line += 1
    end = _offset(lines, line + 1, 0) - 1
    start = end - len(lines[line - 1].lstrip())
    return start, end, end, (start, end)


def _find_python(text: str, line: int) -> tuple[int, int, int, tuple[int, int]]:
    lines = text.split("\n")
    while lines[line - 1].lstrip().startswith("#"):
        line += 1
    node: ast.AST = _parse(text)
    scope: ast.AST | None = None
    while inner := [each for each in _body(node) if _first_line(each) <= line <= (each.end_lineno or 0)]:
        node = inner[0]
        if scope is None or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            scope = node
    if not isinstance(node, ast.stmt | ast.excepthandler):
        raise BrokenRow(f"there is no statement in line {line}")
    start = _offset(lines, node.lineno, node.col_offset)
    end = _offset(lines, node.end_lineno, node.end_col_offset)
    body = _body(node)
    header_end = _offset(lines, _first_line(body[0]), 0) if body else end
    around = _offset(lines, _first_line(scope), 0), _offset(lines, scope.end_lineno, scope.end_col_offset)
    return start, start + len(text[start:header_end].rstrip()), end, around


def _offset(lines: list[str], line: int, column: int) -> int:
    before = sum(map(len, lines[: line - 1])) + line - 1
    return before + (len(lines[line - 1].encode()[:column].decode()) if column else 0)


def _body(node: ast.AST) -> list[ast.stmt | ast.excepthandler]:
    """The statements within a compound one."""
    owners = node.cases if isinstance(node, ast.Match) else [node]
    fields = ("body", "handlers", "orelse", "finalbody")
    return [each for owner in owners for field in fields for each in getattr(owner, field, ())]


def _first_line(node: ast.AST) -> int:
    return min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))


def _edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


@functools.cache
def _parse(text: str) -> ast.Module:
    return ast.parse(text)


@functools.cache
def _read_test(file: str) -> str:
    path = ROOT / file
    return path.read_text("utf-8") if path.is_file() else ""


# -- whether its test notices it


@contextlib.contextmanager
def source_with(changed: dict[Path, str]) -> Iterator[Path]:
    """A copy of src with changed files. The other files are links: quick to make, and compiled already."""
    with tempfile.TemporaryDirectory(prefix="hf") as folder:
        source = Path(folder) / "src"
        shutil.copytree(SOURCE, source, copy_function=os.symlink)
        for path, text in changed.items():
            (source / path).unlink()
            (source / path).write_text(text, "utf-8")
        yield source


def run_tests(source: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run tests on a source tree; without the plugins that only whole runs of the suite need."""
    options = "--import-mode=importlib --disable-plugin-autoload -ppytest_asyncio.plugin -ppytest_timeout -pno:cacheprovider"
    # Of several changed modules one may have imported another before pytest does.
    options += " -Wignore::pytest.PytestAssertRewriteWarning"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        f"-oaddopts={options}",
        "--timeout=120",
        *arguments,
    ]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ |= {"PYTHONPATH": str(source), **environment}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def check_noticed(mistake: Mistake) -> None:
    """Run the test of a mistake on a copy of the source that has it."""
    changed = Source(SOURCE).mutate(mistake)
    # A changed module is imported before any test: where that fails, the row is wrong, and no test has noticed it.
    modules = [f"-p{'.'.join(path.with_suffix('').parts)}" for path in changed if path.suffix == ".py"]
    with source_with(changed) as source:
        done = run_tests(source, *modules, mistake.test, PATIENCE_OF_TESTS="20")
    output = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert done.returncode != 0, f"{mistake.test} does not notice: {mistake.name}\n{output}"
    failed = done.returncode == 1 and "1 failed" in done.stdout and not _LUA_BROKEN.search(done.stdout)
    assert failed, (
        f"the row is broken, the source does not load or the test does not exist: {mistake.name}\n{output}"
    )


@pytest.mark.long
@pytest.mark.mutation
@pytest.mark.timeout(600)
class KnownMistakes:
    """The tests of a table: ``class TestMistakes(KnownMistakes)`` in a module ``test_…_mistakes.py``."""

    mistakes: ClassVar[list[Mistake]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "mistake" in metafunc.fixturenames:
            metafunc.parametrize("mistake", self.mistakes, ids=str)
        if "file" in metafunc.fixturenames:
            files = {mistake.test.partition("::")[0] for mistake in self.mistakes}
            metafunc.parametrize("file", sorted(files), ids=lambda file: Path(file).stem)

    def test_with_the_mistake_put_back_the_test_fails(self, mistake: Mistake):
        check_noticed(mistake)

    def test_without_mistakes_the_same_tests_pass(self, file: str):
        tests = sorted({mistake.test for mistake in self.mistakes if mistake.test.startswith(f"{file}::")})
        with source_with({}) as source:
            done = run_tests(source, *tests)
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
