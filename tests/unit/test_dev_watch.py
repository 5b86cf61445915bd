"""How ``holdfast dev`` finds an app's folder and sees its files change."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
from pathlib import Path

import pytest

from holdfast.errors import AppError
from holdfast.services.dev import watch as watch_module
from holdfast.services.dev.imports import app_files
from holdfast.services.dev.watch import FileWatch, app_folder, snapshot
from tests.support.waiting import stays


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(watch_module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(watch_module, "STILL_SECONDS", 0.05)


async def changes_of_app(watch: FileWatch) -> list[str]:
    return [path.name for path in (await asyncio.wait_for(watch.changed(), 10)).app]


async def test_a_changed_a_new_and_a_removed_file_are_seen(tmp_path: Path):
    for name in ("a.py", "b.py", "same.py"):
        (tmp_path / name).write_text("1")
    watch = FileWatch(tmp_path)
    (tmp_path / "a.py").write_text("12")
    (tmp_path / "b.py").unlink()
    (tmp_path / "c.py").write_text("1")
    assert await changes_of_app(watch) == ["a.py", "b.py", "c.py"]


async def test_a_change_of_the_same_length_is_seen_by_its_time(tmp_path: Path):
    (tmp_path / "a.py").write_text("1")
    watch = FileWatch(tmp_path)
    os.utime(tmp_path / "a.py", ns=(1, 1))
    assert await changes_of_app(watch) == ["a.py"]


async def test_several_writes_in_a_row_are_one_change(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(watch_module, "STILL_SECONDS", 1.0)
    (tmp_path / "a.py").write_text("")
    watch = FileWatch(tmp_path)
    seen = asyncio.create_task(changes_of_app(watch))
    for step in range(1, 6):
        (tmp_path / "a.py").write_text("x" * step)
        await asyncio.sleep(0.02)  # an editor's own pace, quicker than the pause that ends a change
    assert await seen == ["a.py"]
    later = asyncio.create_task(changes_of_app(watch))
    await stays(lambda: not later.done(), seconds=0.1)
    later.cancel()


async def test_a_file_that_the_app_does_not_import_is_no_change_unless_it_is_new(tmp_path: Path):
    for name in ("a.py", "script.py"):
        (tmp_path / name).write_text("1")
    watch = FileWatch(tmp_path)
    watch.files = frozenset({str((tmp_path / "a.py").resolve())})
    seen = asyncio.create_task(watch.changed())
    (tmp_path / "script.py").write_text("12")
    await stays(lambda: not seen.done(), seconds=0.2)
    (tmp_path / "b.py").write_text("1")
    changes = await asyncio.wait_for(seen, 10)
    assert (changes.app, changes.new) == ([], [tmp_path / "b.py"])
    (tmp_path / "script.py").write_text("123")
    (tmp_path / "a.py").write_text("12")
    assert await changes_of_app(watch) == ["a.py"]
    watch.files = None  # the app can't be loaded: any file may mend it
    (tmp_path / "script.py").write_text("1234")
    assert await changes_of_app(watch) == ["script.py"]


def test_the_files_of_an_app_are_those_that_it_imports_now_or_later(tmp_path: Path, monkeypatch):
    files = {
        "files_of_app/__init__.py": "",
        "files_of_app/main.py": "from . import loaded\ndef agent():\n    from .late import word\n",
        "files_of_app/loaded.py": "import json\ntry:\n    import not_yet_there\nexcept ImportError:\n    pass\n",
        "files_of_app/late.py": "from ..outside import x\nfrom .deeper import y\n",
        "files_of_app/deeper/__init__.py": "from .broken import z\n",
        "files_of_app/deeper/broken.py": "def (:\n",
        "files_of_app/script.py": "import files_of_app.main\n",
        "script.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("files_of_app.main")
    try:
        found = {os.path.relpath(path, tmp_path.resolve()) for path in app_files(tmp_path)}
    finally:
        for name in [name for name in sys.modules if name.startswith("files_of_app")]:
            del sys.modules[name]
    assert {name for name in files if name in found} == set(files) - {"files_of_app/script.py", "script.py"}
    assert {"not_yet_there.py", "not_yet_there/__init__.py"} <= found


def test_only_python_files_outside_of_environments_count(tmp_path: Path):
    for name in ("a.py", "sub/b.py", ".venv/c.py", "__pycache__/d.py", "node_modules/e.py", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert sorted(Path(path).name for path in snapshot(tmp_path)) == ["a.py", "b.py"]


def test_the_folder_of_a_file_is_where_it_is(tmp_path: Path):
    (tmp_path / "desk.py").write_text("")
    assert app_folder(f"{tmp_path}/desk.py:app") == tmp_path.resolve()


def test_the_folder_of_a_module_is_its_whole_package(tmp_path: Path, monkeypatch):
    package = tmp_path / "watched_package" / "agents"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("raise RuntimeError('must not be imported here')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert app_folder("watched_package.agents:app") == package.parent


@pytest.mark.parametrize("reference", ["no_such_module_here:app", "no/such/file.py:app"])
def test_an_app_that_is_not_there_is_an_error_that_names_it(reference, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AppError, match=r"no_such_module_here|no/such/file\.py"):
        app_folder(reference)
