"""promtool and amtool for tests and for `make tools`: taken out of Debian packages into .tools, with no root and no service.

They are on no package index of Python. What the PATH has is used first; where there is neither, a test is skipped by name,
but fails in a CI: there nobody reads what was skipped.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.paths import ROOT

FOLDER = ROOT / ".tools" / "debian"
# Newer releases of Debian and Ubuntu have promtool in a package of its own.
PACKAGES = {"promtool": ("prometheus", "promtool"), "amtool": ("prometheus-alertmanager",)}
_SECONDS = 300
OPT_OUT = "TOOLS_MAY_BE_MISSING"


class Missing(Exception):
    """There is no such tool here, and no way to fetch it."""


def find(tool: str) -> Path:
    """The tool's program: on the PATH, fetched before, or fetched now."""
    if on_path := shutil.which(tool):
        return Path(on_path)
    fetched = FOLDER / "usr" / "bin" / tool
    if not fetched.exists():
        _fetch(tool, fetched)
    return fetched


def _fetch(tool: str, fetched: Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise Missing(
            f"{tool}: install it (Debian: {PACKAGES[tool][0]}), here is no apt-get to fetch it with"
        )
    FOLDER.mkdir(parents=True, exist_ok=True)
    # Tests run side by side: the first one fetches, the others wait for it.
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = ""
        for package in PACKAGES[tool]:
            said = said if fetched.exists() else _unpack(package)
    if not fetched.exists():
        raise Missing(f"{tool}: install it (Debian: {PACKAGES[tool][0]}), fetching it failed: {said}")


def _unpack(package: str) -> str:
    """Take our programs out of a package; return what apt said."""
    folder = FOLDER / package
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        said = _apt(folder, "download", package)
        if not list(folder.glob("*.deb")):
            # No lists of packages, or old ones: lists of our own need no root.
            _apt(folder, "update")
            said = _apt(folder, "download", package)
        for archive in folder.glob("*.deb"):
            _run(["dpkg-deb", "-x", str(archive), str(folder / "x")], folder)
        target = FOLDER / "usr" / "bin"
        target.mkdir(parents=True, exist_ok=True)
        for name in PACKAGES:
            if (program := folder / "x" / "usr" / "bin" / name).exists():
                program.replace(target / name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return said


def _apt(folder: Path, *words: str) -> str:
    own = FOLDER / "apt"
    lists = own / "lists"
    options: list[str] = []
    if "update" in words or lists.exists():
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        (own / "archives" / "partial").mkdir(parents=True, exist_ok=True)
        options = ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={own}"]
    return _run(["apt-get", "-q", *options, *words], folder)


def _run(words: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{words[0]} took longer than {_SECONDS} s"
    return " / ".join(done.stdout.strip().splitlines()[-3:])


def without(what: str) -> NoReturn:
    """Go without a tool: skip the test, or fail it where CI is true and nobody has said that tools may be missing."""
    if os.environ.get("CI", "").lower() in {"true", "1"} and not os.environ.get(OPT_OUT):
        pytest.fail(f"{what}; or set {OPT_OUT}=1 if this CI is to do without", pytrace=False)
    pytest.skip(what)


def _tool(name: str) -> Path:
    try:
        return find(name)
    except Missing as missing:
        without(str(missing))


@pytest.fixture(scope="session")
def promtool() -> Path:
    return _tool("promtool")


@pytest.fixture(scope="session")
def amtool() -> Path:
    return _tool("amtool")


if __name__ == "__main__":
    try:
        for each in PACKAGES:
            print(find(each))
    except Missing as missing:
        sys.exit(str(missing))
