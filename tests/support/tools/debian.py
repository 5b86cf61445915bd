"""promtool and amtool, which are on no package index of Python: taken out of Debian packages into .tools, with no root."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.tools.missing import Missing

FOLDER = ROOT / ".tools" / "debian"
# Newer releases of Debian and Ubuntu have promtool in a package of its own.
PACKAGES = {"promtool": ("prometheus", "promtool"), "amtool": ("prometheus-alertmanager",)}
_SECONDS = 300


def find(tool: str) -> Path | None:
    """The tool's program, if there is one: on the PATH, or fetched before."""
    fetched = FOLDER / "usr" / "bin" / tool
    on_path = shutil.which(tool)
    return Path(on_path) if on_path else fetched if fetched.exists() else None


def fetch(tool: str) -> None:
    """Fetch the tool's program, or raise ``Missing``."""
    install = f"install {PACKAGES[tool][0]}, the Debian package"
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise Missing(f"it is not on the PATH, and there is no apt-get to fetch it with; {install}")
    said = ""
    for package in PACKAGES[tool]:
        said = _unpack(package)
        if find(tool):
            return
    raise Missing(f"fetching it failed: {said}; {install}")


def _unpack(package: str) -> str:
    """Take our programs out of a package; return what apt said."""
    folder = FOLDER / package
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        said = _apt(folder, "download", package)
        if not list(folder.glob("*.deb")):
            # No lists of packages, or old ones: lists of our own need no root.
            updated = _apt(folder, "update")
            downloaded = _apt(folder, "download", package)
            said = updated if updated.startswith(("E:", "W:")) else downloaded
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
    options = ["-o", "Acquire::Retries=1"]  # a machine without network is to say so soon
    if "update" in words or lists.exists():
        (lists / "partial").mkdir(parents=True, exist_ok=True)
        (own / "archives" / "partial").mkdir(parents=True, exist_ok=True)
        options += ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={own}"]
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
    lines = done.stdout.strip().splitlines()
    return next((line for line in lines if line.startswith(("E:", "W:"))), " / ".join(lines[-3:]))
