"""Where things are: the root of the repository, which is also what a process needs on its path to import ``tests``."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
