"""Find the App that a command line names; every error says what was found instead and what to write."""

from __future__ import annotations

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
    if not name:
        return _only_app(module, source)
    found = attribute(module, name, reference)
    if not isinstance(found, App):
        raise AppError(f"{reference!r} is {_described(found)}, not an App{_choices(module, source)}")
    return found


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
