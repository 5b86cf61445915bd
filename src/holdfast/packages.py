"""Installed packages: the version of this one, and libraries that load without an optional one."""

from __future__ import annotations

import contextlib
import sys
import threading
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


@cache
def version() -> str:
    """Return the installed version of Holdfast; only the first call searches the disk."""
    from importlib import metadata  # noqa: PLC0415 - it loads the parsers of mail and of zip files

    return metadata.version("holdfast")


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
