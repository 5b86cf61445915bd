"""``python -m holdfast.services.dev.probe APP`` prints an app's agents, or what is wrong with it."""

from __future__ import annotations

import sys
import traceback

from holdfast.agents.loader import load_app
from holdfast.agents.reference import load_module, split
from holdfast.errors import AppError
from holdfast.services.dev.check import BROKEN, MISNAMED


def main(reference: str) -> int:
    """Load the app and print its agents, then its residents."""
    code = BROKEN
    try:
        load_module(split(reference)[0])
        code = MISNAMED
        app = load_app(reference)
    except AppError as exc:
        sys.stderr.write(f"{exc}\n{_where(exc)}")
        return code
    for names in (app.agents, app.residents):
        sys.stdout.write("\n" + " ".join(sorted(names)))
    sys.stdout.write("\n")
    return 0


def _where(exc: AppError) -> str:
    """The last place in the app's own code that the import came to."""
    cause = exc.__cause__
    if cause is None or isinstance(cause, SyntaxError):
        return "" if cause is None else "".join(traceback.format_exception_only(cause))
    frames = [f for f in traceback.extract_tb(cause.__traceback__) if "importlib" not in f.filename]
    return "".join(traceback.format_list(frames[-1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
