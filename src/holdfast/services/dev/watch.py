"""Detects changes of Python files by polling their times, which works on every file system and mount."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from holdfast.agents.reference import split
from holdfast.errors import AppError

POLL_SECONDS = 0.4
STILL_SECONDS = 0.2
"""Editors write a file in several steps: a change is complete when no file changed for this long."""

_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})

Snapshot = dict[str, tuple[int, int]]


def app_folder(reference: str) -> Path:
    """Return the folder of the app that a reference names: the file's, or that of its whole package."""
    source, _ = split(reference)
    if source.endswith(".py") or "/" in source:
        path = Path(source).expanduser().resolve()
        if not path.is_file():
            raise AppError(f"there is no file {path}: give a path to a .py file, or package.module:name")
        return path.parent
    return _module_folder(source.partition(".")[0])


def _module_folder(name: str) -> Path:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise AppError(
            f"there is no module {name!r} (looked in {Path.cwd()} and the installed packages): "
            "start from the folder that holds it, or give the path to its file"
        )
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin or ".").resolve().parent


def snapshot(folder: Path) -> Snapshot:
    """Return time and size of every Python file under a folder."""
    seen: Snapshot = {}
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _SKIPPED]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(parent, name)  # noqa: PTH118 - a walk of thousands, many times a minute
                try:
                    found = os.stat(path)  # noqa: PTH116
                except OSError:
                    continue  # removed since the walk listed it
                seen[path] = (found.st_mtime_ns, found.st_size)
    return seen


@dataclass(frozen=True, slots=True)
class Changes:
    """Changed Python files: files of the app, and new files, which it may import now."""

    app: list[Path]
    new: list[Path]


class FileWatch:
    """Compares the files of a folder with their last state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: frozenset[str] | None = None
        """The files of the app; None is every file, as after a failed load."""
        self._seen = snapshot(folder)

    async def changed(self) -> Changes:
        """Wait until files that may belong to the app have changed and are complete; return them."""
        while True:
            changes = self._changes(await self._settled())
            if changes.app or changes.new:
                return changes

    def _changes(self, now: Snapshot) -> Changes:
        before, self._seen = self._seen, now
        paths = sorted(Path(path) for path in {*before, *now} if before.get(path) != now.get(path))
        app = self.of_app(paths)
        return Changes(app, [path for path in paths if str(path) not in before and path not in app])

    def of_app(self, paths: list[Path]) -> list[Path]:
        """Return the paths that belong to the app."""
        return [path for path in paths if self.files is None or os.path.realpath(path) in self.files]

    async def _settled(self) -> Snapshot:
        while (now := await self._poll(POLL_SECONDS)) == self._seen:
            pass
        while (later := await self._poll(STILL_SECONDS)) != now:
            now = later
        return now

    async def _poll(self, after_seconds: float) -> Snapshot:
        await asyncio.sleep(after_seconds)
        return await asyncio.to_thread(snapshot, self.folder)
