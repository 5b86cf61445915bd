"""The Python files of an app: a change of any other file needs no reload.

These are the files of the loaded modules, and the files that their ``import`` statements name: an agent may
import a module when it runs, and a missing module may be written later.
"""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def app_files(folder: Path) -> list[str]:
    """Return the files under a folder that the loaded modules need, with some that do not exist yet."""
    root = os.path.realpath(folder)
    bases = [path for path in map(os.path.realpath, sys.path) if _related(path, root)]
    found: set[str] = set()
    pending = list(_loaded_modules(root))
    while pending:
        path, package = pending.pop()
        if path not in found and path.startswith(root + os.sep):
            found.add(path)
            for name in _imported_names(Path(path), package):
                pending += [each for base in bases for each in _candidates(base, name)]
    return sorted(found)


def _related(path: str, root: str) -> bool:
    """Whether modules of a folder of sys.path may lie under the root."""
    return path == root or path.startswith(root + os.sep) or root.startswith(path.rstrip(os.sep) + os.sep)


def _loaded_modules(root: str) -> Iterator[tuple[str, str]]:
    """Yield the files of loaded modules under the root, each with its package."""
    for module in tuple(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py"):
            path = os.path.realpath(file)
            if path.startswith(root + os.sep):
                yield path, getattr(module, "__package__", None) or ""


def _imported_names(path: Path, package: str) -> Iterator[str]:
    """Yield the modules that a file may import: ``from a import b`` may mean a or a.b."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            yield base
            yield from (f"{base}.{alias.name}".strip(".") for alias in node.names)


def _base(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    above = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*above, *filter(None, [node.module])])


def _candidates(base: str, name: str) -> Iterator[tuple[str, str]]:
    """Yield the files that importing a dotted name would load, existing or not, each with its package."""
    parts = [part for part in name.split(".") if part]
    for at in range(len(parts)):
        path = str(Path(base, *parts[: at + 1]))
        yield f"{path}.py", ".".join(parts[:at])
        yield f"{path}{os.sep}__init__.py", ".".join(parts[: at + 1])
