"""Import what ``package.module:name`` or ``path/to/file.py:name`` points at.

Whatever goes wrong is an AppError that says what was looked for, where, and what to do.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import AppError
from holdfast.packages import missing_extra

if TYPE_CHECKING:
    from types import ModuleType

_EXTRAS: Final = {
    "langchain_core": "langgraph",
    "langgraph": "langgraph",
    "pydantic_ai": "pydantic-ai",
    "rustic_ai": "rustic",
}
_OPENAI_AGENTS: Final = "agents"
"""The package of the OpenAI Agents SDK has the name that many give a file of their own."""


def resolve(reference: str) -> Any:
    """Return the object that ``package.module:name`` or ``path/to/file.py:name`` points at."""
    source, name = split(reference)
    if not name:
        raise AppError(f"{reference!r} names no object: write it as {source}:name")
    return attribute(load_module(source), name, reference)


def split(reference: str) -> tuple[str, str]:
    """Split a reference into its module or file and its (perhaps empty) name."""
    source, _, name = reference.strip().partition(":")
    if not source:
        raise AppError(f"{reference!r} names no module: write package.module:name or path/to/file.py:name")
    return source, name


def load_module(source: str) -> ModuleType:
    """Import a module by its dotted name, or a file by its path."""
    if source.endswith(".py") or "/" in source:
        return _load_file(source)
    _make_importable(Path.cwd())
    return _import(source, source)


def attribute(module: ModuleType, name: str, reference: str) -> Any:
    """Return a (dotted) attribute of a module."""
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError:
        close = get_close_matches(name, vars(module), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise AppError(f"{reference!r}: module {module.__name__} has no {name!r}{hint}") from None


def _load_file(source: str) -> ModuleType:
    path = Path(source).expanduser().resolve()
    if not path.is_file():
        raise AppError(f"there is no file {path}: give a path to a .py file, or package.module:name")
    root, name = _module_name(path)
    _make_importable(root)
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    if "." in name:
        return _import(name, source)
    return _execute(path, name if known is None else f"holdfast_app_{name}", source)


def _module_name(path: Path) -> tuple[Path, str]:
    """Return the folder to import from and the dotted name, so that a package's relative imports work."""
    root, parts = path.parent, [] if path.name == "__init__.py" else [path.stem]
    while (root / "__init__.py").is_file():
        parts.insert(0, root.name)
        root = root.parent
    return root, ".".join(parts)


def _make_importable(folder: Path) -> None:
    # A console script, unlike `python -m`, does not look in the working directory.
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import(name: str, source: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name == exc.name or name.startswith(f"{exc.name}.")):
            raise AppError(
                f"there is no module {name!r} (looked in {Path.cwd()} and the installed packages): "
                "start from the folder that holds it, or give the path to its file"
            ) from None
        raise _broken(source, exc) from exc
    except (Exception, SystemExit) as exc:
        raise _broken(source, exc) from exc


def _execute(path: Path, name: str, source: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise AppError(f"{path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as exc:
        del sys.modules[name]
        if isinstance(exc, Exception | SystemExit):
            raise _broken(source, exc) from exc
        raise
    return module


def _broken(source: str, exc: BaseException) -> AppError:
    if isinstance(exc, ModuleNotFoundError):
        return AppError(_missing(source, exc.name or str(exc)))
    if isinstance(exc, SystemExit):
        return AppError(
            f"{source} ended the process while it was imported: guard it by __name__ == '__main__'"
        )
    return AppError(f"{source} can't be imported: {type(exc).__name__}: {exc}{_where(exc)}")


def _missing(source: str, module: str) -> str:
    package = module.partition(".")[0]
    if package in _EXTRAS:
        return missing_extra(source, module, _EXTRAS[package])
    said = f"{source} needs the module {module!r}, which is not installed here"
    if package == _OPENAI_AGENTS:
        return f"{said}; if it is the OpenAI Agents SDK: pip install 'holdfast[openai-agents]'"
    return said


def _where(exc: BaseException) -> str:
    """The last line of the user's own that led to it; a syntax error names its own."""
    if isinstance(exc, SyntaxError):
        return ""
    lines = traceback.extract_tb(exc.__traceback__)
    own = [
        line for line in lines if not line.filename.startswith(("<", sys.prefix, sys.base_prefix))
    ] or lines
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
