"""Find the App that a command line names; every error says what was found instead and what to write."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.agents.app import App
from holdfast.agents.reference import attribute, load_module, split
from holdfast.errors import AppError

if TYPE_CHECKING:
    from types import ModuleType


def load_app(reference: str) -> App:
    """Load ``package.module:app`` or ``path/to/file.py:app``; a module's only App needs no name."""
    source, name = split(reference)
    module = load_module(source)
    found = attribute(module, name, reference) if name else _only_app(module, source)
    if not isinstance(found, App):
        raise AppError(f"{reference!r} is {_described(found)}, not an App{_choices(module, source)}")
    found.reference = f"{_from_anywhere(source)}:{name}"
    found.complete()
    return found


def reference_of(app: App) -> str:
    """Where another process finds an App: what it was loaded by, else a module that has a name for it."""
    found = (_named(app, module) for module in tuple(sys.modules.values()))
    return app.reference or next(filter(None, found), "")


def _named(app: App, module: ModuleType) -> str:
    # What other libraries put among the modules need not be one.
    things: dict[str, object] = getattr(module, "__dict__", {})
    name = next((name for name, value in tuple(things.items()) if value is app), "")
    if name and module.__name__ == "__main__":
        path: str | None = getattr(module, "__file__", None)
        return f"{_from_anywhere(path)}:{name}" if path else ""
    return f"{module.__name__}:{name}" if name else ""


def _from_anywhere(source: str) -> str:
    is_file = source.endswith(".py") or "/" in source
    return str(Path(source).expanduser().resolve()) if is_file else source


def _only_app(module: ModuleType, source: str) -> App:
    apps = _apps(module)
    if len({id(app) for app in apps.values()}) == 1:
        return next(iter(apps.values()))
    if not apps:
        raise AppError(f'{source} holds no App: add `app = App("name")`, or name the module that has one')
    raise AppError(f"{source} holds several Apps{_choices(module, source)}")


def _apps(module: ModuleType) -> dict[str, App]:
    return {name: value for name, value in vars(module).items() if isinstance(value, App)}


def _choices(module: ModuleType, source: str) -> str:
    names = [f"{source}:{name}" for name in _apps(module)]
    return f"; write {' or '.join(names)}" if names else ""


def _described(found: object) -> str:
    return f"the class {found.__name__}" if isinstance(found, type) else f"a {type(found).__name__}"
