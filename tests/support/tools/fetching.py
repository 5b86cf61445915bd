"""Fetch what some tests need beside .venv, each thing once: ``make tools``, and ``make test`` before the tests.

What can't be had here is no error: why is written down, and the tests that need it are skipped with that reason.
"""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT
from tests.support.tools import debian, environments
from tests.support.tools.missing import Missing, skip_or_fail

REASONS = ROOT / ".tools" / "missing"


@dataclass(frozen=True)
class Tool:
    """Something to fetch: ``find`` returns where it is, or None; ``fetch`` raises ``Missing`` where it can't."""

    name: str
    title: str
    find: Callable[[], Path | None]
    fetch: Callable[[], None]


def _environment(
    name: str, title: str, folder: Path, make: Callable[[], None], made_from: Callable[[], str]
) -> Tool:
    def fetch() -> None:
        make()
        environments.mark_current(folder, made_from())

    def find() -> Path | None:
        return folder if environments.is_current(folder, made_from()) else None

    return Tool(name, title, find, fetch)


def _program(name: str) -> Tool:
    return Tool(name, name, lambda: debian.find(name), lambda: debian.fetch(name))


RUSTIC = _environment(
    "rustic", "Rustic AI", environments.RUSTIC, environments.make_rustic, environments.locked
)
CHECKOV = _environment(
    "checkov", "checkov", environments.CHECKOV, environments.make_checkov, environments.locked
)
IMAGE = _environment(
    "image",
    "the steps of the Dockerfile",
    environments.IMAGE,
    environments.make_image,
    environments.image_inputs,
)
PROMTOOL, AMTOOL = _program("promtool"), _program("amtool")
# Each line at the same time as the others.
ALL: tuple[tuple[Tool, ...], ...] = ((RUSTIC,), (CHECKOV,), (IMAGE,), (PROMTOOL, AMTOOL))


def needed(tool: Tool) -> Path:
    """Return where the tool is, for a test; skip the test if it isn't here."""
    found = tool.find()
    if found is None:
        reason = REASONS / tool.name
        why = reason.read_text() if reason.exists() else "it has not been fetched: make tools does that"
        skip_or_fail(f"{tool.title} ({why})")
    return found


def fetch_all() -> dict[str, str]:
    """Fetch what is not here yet; return what can't be had, and why."""
    if all(tool.find() for line in ALL for tool in line):
        return {}
    REASONS.mkdir(parents=True, exist_ok=True)
    with (REASONS.parent / "lock").open("w") as lock, ThreadPoolExecutor(len(ALL)) as threads:
        fcntl.flock(lock, fcntl.LOCK_EX)  # somebody else may be doing the same
        failed = [missing for line in threads.map(_fetch_line, ALL) for missing in line]
    return dict(failed)


def _fetch_line(line: tuple[Tool, ...]) -> list[tuple[str, str]]:
    return [(tool.title, why) for tool in line if (why := _fetch(tool))]


def _fetch(tool: Tool) -> str:
    """Fetch one tool; return why it can't be had, or nothing."""
    reason = REASONS / tool.name
    reason.unlink(missing_ok=True)
    if tool.find():
        return ""
    print(f"Fetching what tests need: {tool.title} ...", flush=True)
    try:
        tool.fetch()
    except Missing as missing:
        reason.write_text(str(missing))
        return str(missing)
    return ""


if __name__ == "__main__":
    missing = fetch_all()
    for title, why in missing.items():
        print(f"Tests will go without {title}: {why}", file=sys.stderr)
    sys.exit(1 if missing else 0)
