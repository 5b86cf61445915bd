"""Runs tests/rustic in an environment of its own: Rustic AI needs Python 3.13, whatever runs this."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
ENVIRONMENT = ROOT / ".venv-rustic"
SUITE = "tests/rustic"


def run(*command: str, stderr: int = subprocess.STDOUT, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, check=False, text=True, stdout=subprocess.PIPE, stderr=stderr, **options
    )


def version_folders() -> Iterator[Path]:
    """Where pyenv keeps its Pythons; CI may have given us another home, or none."""
    yield Path(sys.base_prefix).parent  # beside the one that runs this
    homes = (os.environ.get("HOME", ""), pwd.getpwuid(os.getuid()).pw_dir)
    roots = (os.environ.get("PYENV_ROOT", ""), *(f"{home}/.pyenv" for home in homes if home))
    yield from (Path(root) / "versions" for root in roots if root)


def candidates(uv: str) -> Iterator[str]:
    """Every place where a Python 3.13 may be."""
    yield sys.executable
    yield shutil.which("python3.13") or ""
    for versions in version_folders():
        yield from (str(found / "bin" / "python") for found in sorted(versions.glob("3.13*"), reverse=True))
    yield run(uv, "python", "find", "3.13", stderr=subprocess.DEVNULL).stdout.strip()


def is_right(python: str) -> bool:
    """Whether it is there, works, and is 3.13: a shim may promise what it does not have."""
    code = "import sys, ssl, sqlite3; sys.exit(sys.version_info[:2] != (3, 13))"
    return bool(python) and Path(python).exists() and run(python, "-c", code).returncode == 0


def own_environment() -> dict[str, str]:
    """What the tests in there may know of this run: nothing of its Python, its pytest, or its settings."""
    foreign = ("PYTEST_", "PYTHON", "HOLDFAST_", "VIRTUAL_ENV", "COV_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    environ |= {"UV_PROJECT_ENVIRONMENT": str(ENVIRONMENT), "UV_PYTHON_DOWNLOADS": "never"}
    home = Path(environ.get("HOME") or "/nonexistent")
    if not os.access(home, os.W_OK):
        environ.setdefault("UV_CACHE_DIR", str(ROOT / ".tools" / "cache"))
    return environ


@pytest.mark.timeout(1200)
def test_rustic_ai_on_python_3_13():
    own = ROOT / ".tools" / "bin" / "uv"
    uv = str(own) if own.exists() else shutil.which("uv")
    if uv is None:
        pytest.skip(
            "RUSTIC AI WAS NOT TESTED: there is no uv, neither in .tools (make setup) nor on the PATH"
        )
    python = next((path for path in candidates(uv) if is_right(path)), None)
    if python is None:
        pytest.skip("RUSTIC AI WAS NOT TESTED: it needs Python 3.13, and there is none on this machine")
    environ = own_environment()
    sync = [uv, "sync", "-q", "--locked", "--no-default-groups", "--python", python]
    sync += ["--extra", "rustic", "--extra", "embedded", "--group", "rustic"]
    installed = run(*sync, env=environ)
    assert installed.returncode == 0, installed.stdout
    command = [str(ENVIRONMENT / "bin" / "python"), "-m", "pytest", "-q", "-m", "not long", "--durations=5"]
    # Not this suite's conftest: it asks for what that environment does not have.
    command += [f"--confcutdir={SUITE}", SUITE]
    # The plugins that pyproject.toml names are those of this environment.
    command += ["-o", "addopts=--import-mode=importlib -p no:cacheprovider"]
    ran = run(*command, env=environ)
    print(ran.stdout)
    assert ran.returncode == 0, f"{SUITE} failed, see its output"
