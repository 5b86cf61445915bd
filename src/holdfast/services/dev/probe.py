"""``python -m holdfast.services.dev.probe APP`` prints an app's contents as JSON, or its error."""

from __future__ import annotations

import contextlib
import sys
import traceback
from typing import TYPE_CHECKING

import msgspec

from holdfast.agents.catalogue import catalogue_of
from holdfast.agents.example import example_input
from holdfast.agents.loader import load_app
from holdfast.agents.reference import load_module, split
from holdfast.errors import AppError, InputError
from holdfast.services.dev.check import BROKEN, MISNAMED, Contents, Example
from holdfast.services.dev.imports import app_files
from holdfast.services.dev.watch import app_folder

if TYPE_CHECKING:
    from holdfast.agents.app import App


def main(reference: str) -> int:
    """Load the app and print its agents, its residents and its files."""
    code = BROKEN
    try:
        load_module(split(reference)[0])
        code = MISNAMED
        app = load_app(reference)
    except AppError as exc:
        sys.stderr.write(f"{exc}\n{_where(exc)}")
        return code
    files = app_files(app_folder(reference))
    catalogue = catalogue_of(app.agents).digest
    contents = Contents(sorted(app.agents), sorted(app.residents), files, _example(app), catalogue)
    sys.stdout.write(f"\n{msgspec.json.encode(contents).decode()}\n")
    return 0


def _example(app: App) -> Example | None:
    """Return the first agent for which an example input can be made."""
    for _, spec in sorted(app.agents.items()):
        with contextlib.suppress(InputError):
            return Example(spec.name, example_input(spec))
    return None


def _where(exc: AppError) -> str:
    """Return the last line of the app's own code in the traceback."""
    cause = exc.__cause__
    if cause is None or isinstance(cause, SyntaxError):
        return "" if cause is None else "".join(traceback.format_exception_only(cause))
    frames = [f for f in traceback.extract_tb(cause.__traceback__) if "importlib" not in f.filename]
    return "".join(traceback.format_list(frames[-1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
