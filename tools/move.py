"""Move modules and packages: the files, every import and every other mention of their names.

``python -m tools.move OLD NEW [OLD NEW ...]`` with dotted names: ``holdfast.services.desk holdfast.runs.execution.pool``.
A package moves with all that is in it. Imports, strings such as ``"holdfast.services.host:run"``, paths such as
``services/desk.py`` in documents, `.importlinter` and `pyproject.toml` follow. What it can't decide, it lists.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = {
    "holdfast": ROOT / "src" / "holdfast",
    "holdfast_simulator": ROOT / "src" / "holdfast_simulator",
    "holdfast_demo": ROOT / "examples" / "demo" / "holdfast_demo",
    "tests": ROOT / "tests",
    "bench": ROOT / "bench",
}
TEXTS = {
    ".py",
    ".md",
    ".toml",
    ".cfg",
    ".ini",
    ".yml",
    ".yaml",
    ".sh",
    ".txt",
    ".tpl",
    ".json",
    ".lua",
    ".proto",
    "",
}
LEFT_ALONE = {"uv.lock", "CHANGELOG.md"}
"""The changelog says what was; its entry of the move names both."""


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def tracked() -> Iterator[Path]:
    """Every text file that may name a module."""
    for name in git("ls-files").splitlines():
        path = ROOT / name
        ours = name.startswith("tools/")  # their examples stay as they are
        if path.suffix in TEXTS and path.name not in LEFT_ALONE and path.is_file() and not ours:
            yield path


def path_of(module: str) -> Path:
    """The file or folder of a module, whether or not it is there."""
    top, _, rest = module.partition(".")
    place = SOURCES[top].joinpath(*rest.split(".")) if rest else SOURCES[top]
    return place if place.is_dir() else place.with_suffix(".py")


def move_file(old: str, new: str) -> None:
    """Move a module's file, or a package's folder, and make the packages that it moves into."""
    source = path_of(old)
    if not source.exists():
        sys.exit(f"there is no module {old} ({source})")
    target = SOURCES[new.partition(".")[0]].joinpath(*new.split(".")[1:])
    target = target if source.is_dir() else target.with_suffix(".py")
    if target.exists():
        sys.exit(f"{new} exists already: move its parts by hand")
    target.parent.mkdir(parents=True, exist_ok=True)
    for folder in target.relative_to(ROOT).parents:
        package = ROOT / folder
        inside = any(package.is_relative_to(place) for place in SOURCES.values())
        if inside and not (package / "__init__.py").exists():
            (package / "__init__.py").write_text('"""TODO: say in a sentence what this package is for."""\n')
            git("add", str(package / "__init__.py"))
    git("mv", str(source), str(target))


class Mentions:
    """Rewrites the mentions of one moved module in a text."""

    def __init__(self, old: str, new: str, *, package: bool) -> None:
        self._old, self._new = old, new
        self._parent, _, self._leaf = old.rpartition(".")
        self._new_parent, _, self._new_leaf = new.rpartition(".")
        self._dotted = re.compile(rf"(?<![\w.]){re.escape(old)}(?!\w)")
        end = "/" if package else r"\.py\b"
        top, _, inside = old.replace(".", "/").partition("/")
        new_top, _, new_inside = new.replace(".", "/").partition("/")
        self._path = re.compile(rf"(?<![\w/])((?:(?:src/)?{top}/)?){re.escape(inside)}{end}")
        # A path may begin at the package, at its folder or at the repository; out of the package, at the last.
        start = r"\g<1>" if top == new_top else f"{SOURCES[new_top].relative_to(ROOT)}/"
        self._new_path = f"{start}{new_inside}{'/' if package else '.py'}"

    def rewrite(self, text: str, *, python: bool) -> str:
        """Return the text with the new names; imports from the parent package first, as they name two things."""
        if python and self._leaf in text:
            text = self._from_parent(text)
        text = self._dotted.sub(self._new, text)
        return self._path.sub(self._new_path, text)

    def _from_parent(self, text: str) -> str:
        """``from holdfast.services import desk`` becomes an import from the new parent, and uses follow."""
        lines = text.splitlines(keepends=True)
        moved = False
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ImportFrom) or node.module != self._parent or node.level:
                continue
            if not any(alias.name == self._leaf for alias in node.names):
                continue
            moved = True
            indent = " " * node.col_offset
            rest = [alias for alias in node.names if alias.name != self._leaf]
            ours = next(alias for alias in node.names if alias.name == self._leaf)
            renamed = f" as {ours.asname}" if ours.asname else ""
            made = [f"{indent}from {self._new_parent} import {self._new_leaf}{renamed}\n"]
            if rest:
                names = ", ".join(a.name + (f" as {a.asname}" if a.asname else "") for a in rest)
                made.append(f"{indent}from {self._parent} import {names}\n")
            comment = lines[(node.end_lineno or node.lineno) - 1].partition("#")
            if comment[1]:
                made[0] = made[0].rstrip("\n") + f"  #{comment[2].rstrip()}\n"
            lines[node.lineno - 1 : node.end_lineno] = ["".join(made)] + [""] * (
                node.end_lineno - node.lineno
            )
            if ours.asname:
                moved = False
        text = "".join(lines)
        if moved and self._leaf != self._new_leaf:
            text = re.sub(rf"(?<![\w.\"'/]){re.escape(self._leaf)}(?=\.\w)", self._new_leaf, text)
        return text


def move(pairs: list[tuple[str, str]]) -> None:
    """Move each pair in turn, then sort the imports and format."""
    for old, new in pairs:
        package = path_of(old).is_dir()
        move_file(old, new)
        mentions = Mentions(old, new, package=package)
        for path in tracked():
            before = path.read_text()
            after = mentions.rewrite(before, python=path.suffix == ".py")
            if after != before:
                path.write_text(after)
        for path in tracked():
            for number, line in enumerate(path.read_text().splitlines(), 1):
                if re.search(rf"\b{re.escape(old.rpartition('.')[2])}\.py\b", line):
                    print(f"look: {path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    for command in (["check", "--select", "I", "--fix", "--quiet"], ["format", "--quiet"]):
        subprocess.run([sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, check=False)


if __name__ == "__main__":
    names = sys.argv[1:]
    if not names or len(names) % 2:
        sys.exit(__doc__)
    move(list(zip(names[::2], names[1::2], strict=True)))
