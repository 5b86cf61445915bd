"""Python environments beside .venv, installed as uv.lock says: for Rustic AI, for checkov, and what the image has.

Each has a file that says what it was made from: one that was made from this lock file, in this folder, is not made again.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.deploy import dockerfile
from tests.support.paths import ROOT
from tests.support.tools.missing import Missing

UV = ROOT / ".tools" / "bin" / "uv"
RUSTIC = ROOT / ".venv-rustic"
CHECKOV = ROOT / ".venv-checkov"
IMAGE = ROOT / ".venv-image"

# What a caller has set for other projects, for this one's Python, or for the programs in the environment.
_FOREIGN = ("PYTHON", "PYTEST_", "HOLDFAST_", "VIRTUAL_ENV", "COV_", "UV_PROJECT", "BC_", "CKV_", "CHECKOV_", "LOG_LEVEL")  # fmt: skip


def clean_environ() -> dict[str, str]:
    """The variables for a program of one of these environments."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}


def is_current(environment: Path, key: str) -> bool:
    """Whether it was made from that, and its Python is still there."""
    made_from = environment / "made-from"
    return (environment / "bin" / "python").exists() and made_from.exists() and made_from.read_text() == key


def mark_current(environment: Path, key: str) -> None:
    (environment / "made-from").write_text(key)


def locked() -> str:
    """What Rustic's and checkov's environments are made from. Scripts and editable installs have the folder in them."""
    return _digest(str(ROOT).encode(), (ROOT / "uv.lock").read_bytes())


def image_inputs() -> str:
    """What the image's environment is made from: of our own files the names; their contents are copied as they are."""
    files = (path for name in ("src", "examples/demo", "deploy/helm") for path in (ROOT / name).rglob("*"))
    names = sorted(str(path) for path in files if path.is_file() and "__pycache__" not in path.parts)
    contents = (ROOT / "pyproject.toml", ROOT / "uv.lock", dockerfile.DOCKERFILE)
    return _digest(sys.version.encode(), *map(str.encode, names), *(path.read_bytes() for path in contents))


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def make_rustic() -> None:
    """Rustic AI runs on Python 3.13 only, whatever runs the other tests."""
    python = next((path for path in _candidates("3.13") if _is_python(path, (3, 13))), None)
    if python is None:
        raise Missing("no Python 3.13 was found")
    words = ("--no-default-groups", "--extra", "rustic", "--extra", "embedded", "--group", "rustic")
    _sync(RUSTIC, "--python", python, *words)


def make_checkov() -> None:
    """It asks for old versions of what others need."""
    _sync(CHECKOV, "--python", sys.executable, "--only-group", "checkov")


def make_image() -> None:
    """Do the COPY and RUN lines of the image's build stage in a folder that has nothing else in it."""
    with tempfile.TemporaryDirectory(prefix="hf") as folder:
        for name, words in dockerfile.build_stage():
            if name == "COPY" and "--from=" not in words:
                *sources, target = words.split()
                for source in sources:
                    _copy(ROOT / source, Path(folder) / target / ("" if (ROOT / source).is_dir() else source))
            elif name == "RUN":
                uv, *command = shlex.split(re.sub(r"--mount=\S+ ", "", words))
                assert uv == "uv", f"not a step of an environment: {words}"
                _uv(IMAGE, *command, "--python", sys.executable, cwd=Path(folder))


def _copy(source: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    else:
        shutil.copy(source, place)


def _sync(environment: Path, *words: str) -> None:
    _uv(environment, "sync", "--locked", *words)


def _uv(environment: Path, *words: str, cwd: Path = ROOT) -> None:
    environ = clean_environ() | {
        "UV_PROJECT_ENVIRONMENT": str(environment),
        "UV_PYTHON_DOWNLOADS": "never",
        # A machine without network is to say so soon.
        "UV_HTTP_RETRIES": "1",
        "NO_COLOR": "1",
    }
    done = subprocess.run(
        [str(UV), *words, "-q"], cwd=cwd, env=environ, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise Missing(f"uv could not install it: {_in_one_line(done.stderr)}")


def _in_one_line(report: str) -> str:
    """What uv reports over many lines: the error, and the last of its causes."""
    error, *causes = re.split(
        r"\n\s*(?:cause|Caused by): ", report.partition("\nhint:")[0].partition("\n\n")[0]
    )
    return ": ".join(" ".join(part.split()) for part in (error, *causes[-1:]))


def _candidates(version: str) -> Iterator[str]:
    """Every place where such a Python may be."""
    yield sys.executable
    yield shutil.which(f"python{version}") or ""
    for versions in _version_folders():
        yield from (
            str(path / "bin" / "python") for path in sorted(versions.glob(f"{version}*"), reverse=True)
        )
    found = subprocess.run([str(UV), "python", "find", version], check=False, capture_output=True, text=True)
    yield found.stdout.strip()


def _version_folders() -> Iterator[Path]:
    """Where pyenv keeps its Pythons; CI may have given us another home, or none."""
    yield Path(sys.base_prefix).parent  # beside the one that runs this
    homes = (os.environ.get("HOME", ""), pwd.getpwuid(os.getuid()).pw_dir)
    roots = (os.environ.get("PYENV_ROOT", ""), *(f"{home}/.pyenv" for home in homes if home))
    yield from (Path(root) / "versions" for root in roots if root)


def _is_python(path: str, version: tuple[int, int]) -> bool:
    """Whether it is there, works, and is of that version: a shim may promise what it does not have."""
    code = f"import sys, ssl, sqlite3; sys.exit(sys.version_info[:2] != {version})"
    return (
        bool(path)
        and os.access(path, os.X_OK)
        and not subprocess.run([path, "-c", code], check=False, capture_output=True).returncode
    )
