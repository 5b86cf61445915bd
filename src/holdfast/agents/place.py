"""Where in the user's code something is declared: an error about it is of little use with our lines alone."""

from __future__ import annotations

import contextlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.errors import AppError, ConfigError, InputError

if TYPE_CHECKING:
    from collections.abc import Generator

_OURS: Final = (f"{Path(__file__).parents[1]}/", contextlib.__file__)


@contextlib.contextmanager
def declaring() -> Generator[None]:
    """Let what is wrong with a declaration name the file and the line that it is in."""
    try:
        yield
    except (AppError, ConfigError, InputError) as exc:
        exc.args = (f"{exc} (declared at {_place()})",)
        raise


def _place() -> str:
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
