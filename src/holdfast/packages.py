"""Installed packages: the version of this one, extras that are missing, libraries without an optional one."""

from __future__ import annotations

import contextlib
import sys
import threading
from functools import cache
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator


@cache
def version() -> str:
    """Return the installed version of Holdfast; only the first call searches the disk."""
    from importlib import metadata  # noqa: PLC0415 - it loads the parsers of mail and of zip files

    return metadata.version("holdfast")


def missing_extra(what: str, package: str, extra: str) -> str:
    """Say that ``what`` needs a package, or several with commas, and which extra brings it."""
    are = "are" if "," in package else "is"
    return f"{what} needs {package}, which {are} not installed: pip install 'holdfast[{extra}]'"


@contextlib.contextmanager
def needs_extra(what: str, extra: str) -> Generator[None]:
    """Import inside what ``what`` needs of an extra; one that is missing is a ConfigError of one line."""
    try:
        yield
    except ImportError as exc:
        package = exc.name or str(exc)  # a driver without its C library names no package
        if package.partition(".")[0] == "holdfast":
            raise
        raise ConfigError(missing_extra(what, package, extra)) from exc


@contextlib.contextmanager
def hidden(module: str) -> Generator[None]:
    """Let imports inside find no ``module``: some libraries load an optional one that is never used here.

    One that is loaded already stays visible.
    """
    finder = _NotFound(module, threading.get_ident())
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _NotFound:
    """Reports a module as not installed, to one thread: another may be importing it with good reason."""

    def __init__(self, module: str, thread: int) -> None:
        self._module = module
        self._thread = thread

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> None:
        if name == self._module and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
