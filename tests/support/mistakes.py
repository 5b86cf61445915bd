"""Known mistakes, each put back into a copy of the source: the test that guards against it must fail there.

A module with a table of them has their tests by a class ``TestMistakes(KnownMistakes)``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mistake:
    """A mistake (``old`` becomes ``new`` in ``file``) and the test that must notice it.

    ``also`` are others of the same shape, for a guard that stands behind another one.
    """

    name: str
    file: str
    old: str
    new: str
    test: str
    also: tuple[tuple[str, str, str], ...] = ()

    def __str__(self) -> str:
        return self.name

    @property
    def changes(self) -> tuple[tuple[str, str, str], ...]:
        return ((self.file, self.old, self.new), *self.also)

    def check_in_place(self) -> None:
        """Quick, so that a row which no longer breaks anything is noticed with the change that made it so."""
        for path, old, _ in self.changes:
            assert old in (ROOT / "src" / "holdfast" / path).read_text(), f"{path}: {old}"
        file, _, test = self.test.partition("::")
        assert f"def {test.partition('[')[0]}(" in (ROOT / file).read_text(), self.test

    def check_noticed(self, directory: Path) -> None:
        """Run the test against a copy of the source that has the mistake."""
        source = directory / "src"
        shutil.copytree(ROOT / "src", source)
        for path, old, new in self.changes:
            broken = source / "holdfast" / path
            text = broken.read_text()
            assert text.count(old) >= 1, f"{path} no longer has the guarded line: {old}"
            broken.write_text(text.replace(old, new))
        done = run_tests(source, self.test)
        assert "1 failed" in done.stdout, f"{self.test} does not notice: {self.name}\n{done.stdout[-3000:]}"


def run_tests(source: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "--timeout=60", *tests]
    environ = {**os.environ, "PYTHONPATH": str(source)}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


class KnownMistakes:
    """The tests of a table."""

    mistakes: ClassVar[list[Mistake]]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "mistake" in metafunc.fixturenames:
            metafunc.parametrize("mistake", self.mistakes, ids=str)

    def test_every_guard_is_still_where_it_was(self, mistake: Mistake):
        mistake.check_in_place()

    @pytest.mark.long
    @pytest.mark.timeout(300)
    def test_with_the_mistake_put_back_the_test_fails(self, mistake: Mistake, tmp_path: Path):
        mistake.check_noticed(tmp_path)

    @pytest.mark.long
    @pytest.mark.timeout(300)
    def test_without_mistakes_the_same_tests_pass(self):
        done = run_tests(ROOT / "src", *sorted({mistake.test for mistake in self.mistakes}))
        assert done.returncode == 0, done.stdout[-3000:]
